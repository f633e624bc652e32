"""A model whose attention is set by hand: every head puts a chosen mass where we say.

A GPT-2 whose residual stream holds one-hot codes: the token, the position, (after layer 0) the
previous token, and what the unembedding reads. A head's query and key matrices give one score to
the pairs of its relation and another to the first position, so its mass on the relation is exactly
the sigmoid of their difference (noise aside); the rest of the weight rests on the sink. A sink head
spreads the rest of its weight evenly. A live head moves the code of the token it attends to into
the slot that the unembedding reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB, POSITIONS = 120, 64
_HEADS = 2
_TOKEN, _POS, _PREV = 0, VOCAB, VOCAB + POSITIONS  # where each code starts
_OUT = _PREV + VOCAB
_BALANCE = _OUT + VOCAB
_ANCHOR = _BALANCE + 1
_WIDTH = _ANCHOR + 3
_D_HEAD = _WIDTH // _HEADS
_ANCHOR_SIZE = 400.0  # dwarfs the codes, so that LayerNorm's scale is the same for every row
_MATCH = 25.0  # score of a matching pair, in nats above a pair of no interest
_SINK = _D_HEAD - 1
_NOISE = slice(VOCAB + POSITIONS, _D_HEAD - 1)  # dimensions of a head that no relation uses
_READ = (
    100.0  # the unembedding's weight: what live heads write is small, and leaves LayerNorm alone
)
_COPY = 6.0  # what a live head of mass 1 adds to the logit of the token it attends to, in nats

CLASSES, VARIANTS = 8, 4
GOVERNORS = range(60, 60 + CLASSES * VARIANTS)
"""Tokens that a `lexical` head is to find: `VARIANTS` of each of `CLASSES` classes."""
DEPENDENTS = range(100, 100 + CLASSES)
"""Tokens that look for a governor of their class."""

MASSES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
FAR = "offset-30"
"""A head that seems to be induction where every second copy stands 31 tokens after the first."""
_DRAWN = ("first", "duplicate", "lexical", "offset-1", "offset-2", "offset-n", FAR, "induction")


@dataclass(frozen=True)
class Plant:
    """One head.

    Args:
        relation: `offset-1`, `offset-2` …, `first`, `duplicate`, `induction` or `lexical` (a
            dependent's earlier governors of its class).
        mass: weight on the relation's keys in rows that have some (one, for `first` on position
            0); the rest goes to position 0, that of `first` to all later keys alike.
        live: whether it writes what it attends to where the unembedding reads.
    """

    relation: str
    mass: float
    live: bool = False


def planted_model(
    *layers: tuple[Plant | tuple[str, float], ...], noise: float = 0.0, seed: int = 0
) -> GPT2LMHeadModel:
    """Build the model; each layer is two heads.

    Layer 0 must start with `("offset-1", 1.0)`, which writes the previous token's code for
    induction heads to read.

    Args:
        layers: heads of each layer; a pair is a `Plant` that is not live.
        noise: standard deviation of a random score for each pair of tokens, in nats.
        seed: seed of the noise.
    """
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=POSITIONS, n_embd=_WIDTH, n_layer=len(layers),
        n_head=_HEADS, n_inner=4, bos_token_id=0, eos_token_id=0, pad_token_id=None,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, tie_word_embeddings=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("weight") and "ln_" in name else 0.0)
        _embed(model)
        for block, heads in zip(model.transformer.h, layers, strict=True):
            for head, given in enumerate(heads):
                plant = given if isinstance(given, Plant) else Plant(*given)
                _plant(block.attn, head, plant.relation, plant.mass)
                _disturb(block.attn, head, noise, generator)
                if plant.live:
                    _move(block.attn, head, _OUT, _COPY / (_READ * _gain()))
        _move(model.transformer.h[0].attn, 0, _PREV, 1.0)
    return model


def draw_layers(rng: np.random.Generator) -> tuple[tuple[Plant, Plant], ...]:
    """Three or four layers of random heads; relations, masses and whether they are live.

    The first head is the one that induction reads; induction stands in later layers only.
    """
    drawn = []
    for layer in range(int(rng.integers(3, 5))):
        heads = [_draw(rng, layer) for _ in range(_HEADS)]
        drawn.append((Plant("offset-1", 1.0), heads[1]) if layer == 0 else (heads[0], heads[1]))
    return tuple(drawn)


def _draw(rng: np.random.Generator, layer: int) -> Plant:
    names = _DRAWN[:-1] if layer == 0 else _DRAWN
    relation = names[int(rng.integers(len(names)))]
    if relation == "offset-n":
        relation = f"offset-{int(rng.integers(3, 9))}"
    mass = MASSES[int(rng.integers(len(MASSES)))]
    return Plant(relation, mass, live=bool(rng.random() < 0.5))


def _embed(model: GPT2LMHeadModel) -> None:
    """One-hot codes, each balanced to sum zero, the anchor, and an unembedding of its own slot."""
    tokens, positions = model.transformer.wte.weight, model.transformer.wpe.weight
    for token in range(VOCAB):
        tokens[token, _TOKEN + token], tokens[token, _BALANCE] = 1.0, -1.0
        model.lm_head.weight[token, _OUT + token] = _READ
    for position in range(POSITIONS):
        positions[position, _POS + position], positions[position, _BALANCE] = 1.0, -1.0
    positions[:, _ANCHOR], positions[:, _ANCHOR + 1] = _ANCHOR_SIZE, -_ANCHOR_SIZE


def _gain() -> float:
    """LayerNorm's factor on every code."""
    return math.sqrt(_WIDTH / (2 * _ANCHOR_SIZE**2))


def _views(attention, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The query and key weights of a head; Conv1D: [in, q|k|v]."""
    weight, start = attention.c_attn.weight, head * _D_HEAD
    return weight[:, start : start + _D_HEAD], weight[:, _WIDTH + start :][:, :_D_HEAD]


def _plant(attention, head: int, relation: str, mass: float) -> None:
    query, key = _views(attention, head)
    scale = math.sqrt(_D_HEAD) / _gain() ** 2
    if relation.startswith("offset"):
        offset = int(relation.removeprefix("offset"))
        for position in range(POSITIONS):
            key[_POS + position, position] = 1.0
            if position + offset >= 0:
                query[_POS + position, position + offset] = _MATCH * scale
    elif relation in ("duplicate", "induction"):
        read = _TOKEN if relation == "duplicate" else _PREV
        for token in range(VOCAB):
            key[read + token, token] = 1.0
            query[_TOKEN + token, token] = _MATCH * scale
        for position in range(POSITIONS):  # never the row itself
            key[_POS + position, VOCAB + position] = 1.0
            query[_POS + position, VOCAB + position] = -2 * _MATCH * scale
    elif relation == "lexical":
        for place, token in enumerate(GOVERNORS):
            key[_TOKEN + token, place // VARIANTS] = 1.0
        for place, token in enumerate(DEPENDENTS):
            query[_TOKEN + token, place] = _MATCH * scale
    elif relation != "first":
        raise ValueError(relation)
    if relation == "first":
        _rest(attention, head, mass)
    elif mass < 1.0:
        key[_POS, _SINK] = 1.0
        sink = _MATCH - math.log(mass / (1 - mass))
        attention.c_attn.bias[head * _D_HEAD + _SINK] = sink * math.sqrt(_D_HEAD) / _gain()


def _rest(attention, head: int, mass: float) -> None:
    """Put a mass on position 0 in every row, however many keys share the rest."""
    query, key = _views(attention, head)
    key[_POS, _SINK] = 1.0
    scale = math.sqrt(_D_HEAD) / _gain() ** 2
    for position in range(1, POSITIONS):
        odds = _MATCH if mass == 1.0 else math.log(mass / (1 - mass) * position)
        query[_POS + position, _SINK] = odds * scale


def _disturb(attention, head: int, noise: float, generator: torch.Generator) -> None:
    """Add a random score to each pair of tokens."""
    if not noise:
        return
    query, key = _views(attention, head)
    width = len(range(*_NOISE.indices(_D_HEAD)))
    both = torch.randn(2, VOCAB, width, generator=generator)
    scale = math.sqrt(_D_HEAD) / (_gain() ** 2 * math.sqrt(width))
    query[_TOKEN : _TOKEN + VOCAB, _NOISE] = both[0] * noise * scale
    key[_TOKEN : _TOKEN + VOCAB, _NOISE] = both[1]


def _move(attention, head: int, to: int, size: float) -> None:
    """Add the code of the token that a head attends to in a slot of the residual stream.

    A BOS is never predicted: a head that rests on it says nothing.
    """
    value = attention.c_attn.weight[:, 2 * _WIDTH + head * _D_HEAD :][:, :_D_HEAD]
    out = attention.c_proj.weight[head * _D_HEAD : (head + 1) * _D_HEAD]
    for token in range(1 if to == _OUT else 0, VOCAB):
        value[_TOKEN + token, token] = 1.0 / _gain()
        out[token, to + token] = size
        out[token, _BALANCE] = out[token, _BALANCE] - size
