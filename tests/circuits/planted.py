"""A model whose attention is set by hand: every head puts a chosen mass where we say.

A GPT-2 whose residual stream holds one-hot codes: the token, the position, and (after layer 0)
the previous token. A head's query and key matrices give one score to the pairs of its relation
and another to the first position, so its mass on the relation is exactly the sigmoid of their
difference; the rest of the weight rests on the sink.
"""

from __future__ import annotations

import math

import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB, POSITIONS = 120, 64
_WIDTH, _HEADS = 400, 2
_D_HEAD = _WIDTH // _HEADS
_TOKEN, _POS, _PREV = 0, VOCAB, VOCAB + POSITIONS  # where each code starts
_BALANCE, _ANCHOR = _WIDTH - 3, _WIDTH - 2
_ANCHOR_SIZE = 400.0  # dwarfs the codes, so that LayerNorm's scale is the same for every row
_MATCH = 25.0  # score of a matching pair, in nats above a pair of no interest
_SINK = _D_HEAD - 1


def planted_model(*layers: tuple[tuple[str, float], tuple[str, float]]) -> GPT2LMHeadModel:
    """Build the model; each layer is two (relation, mass) pairs.

    Relations: `offset-1` … `offset-9`, `first`, `duplicate`, `induction`. Layer 0 must start with
    `("offset-1", 1.0)`, which writes the previous token's code for induction heads to read.
    """
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=POSITIONS, n_embd=_WIDTH, n_layer=len(layers),
        n_head=_HEADS, n_inner=4, bos_token_id=0, eos_token_id=0, pad_token_id=None,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("weight") and "ln_" in name else 0.0)
        _embed(model)
        for block, heads in zip(model.transformer.h, layers, strict=True):
            for head, (relation, mass) in enumerate(heads):
                _plant(block.attn, head, relation, mass)
        copy = model.transformer.h[0].attn
        _copy_token(copy)
    return model


def _embed(model: GPT2LMHeadModel) -> None:
    """One-hot codes, each balanced to sum zero, and the anchor."""
    tokens, positions = model.transformer.wte.weight, model.transformer.wpe.weight
    for token in range(VOCAB):
        tokens[token, _TOKEN + token], tokens[token, _BALANCE] = 1.0, -1.0
    for position in range(POSITIONS):
        positions[position, _POS + position], positions[position, _BALANCE] = 1.0, -1.0
    positions[:, _ANCHOR], positions[:, _ANCHOR + 1] = _ANCHOR_SIZE, -_ANCHOR_SIZE


def _gain() -> float:
    """LayerNorm's factor on every code."""
    return math.sqrt(_WIDTH / (2 * _ANCHOR_SIZE**2))


def _plant(attention, head: int, relation: str, mass: float) -> None:
    weight, bias = attention.c_attn.weight, attention.c_attn.bias  # Conv1D: [in, q|k|v]
    query = weight[:, head * _D_HEAD : (head + 1) * _D_HEAD]
    key = weight[:, _WIDTH + head * _D_HEAD : _WIDTH + (head + 1) * _D_HEAD]
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
    elif relation != "first":
        raise ValueError(relation)
    if mass < 1.0 or relation == "first":
        share = 1 - mass if relation != "first" else mass
        sink = _MATCH - math.log((1 - share) / share) if relation != "first" else _MATCH
        key[_POS, _SINK] = 1.0
        bias[head * _D_HEAD + _SINK] = sink * math.sqrt(_D_HEAD) / _gain()


def _copy_token(attention) -> None:
    """Head 0 moves the token's code of the key it attends to into the slot for the previous one."""
    value = attention.c_attn.weight[:, 2 * _WIDTH : 2 * _WIDTH + _D_HEAD]
    out = attention.c_proj.weight
    for token in range(VOCAB):
        value[_TOKEN + token, token] = 1.0 / _gain()
        out[token, _PREV + token], out[token, _BALANCE] = 1.0, -1.0
