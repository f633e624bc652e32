"""Interventions on attention heads: frozen values that compose, run once or held over a block.

    silence = zero("L0H1")
    frozen = freeze(cache)
    run(model, tokens, [frozen, silence]).logits

Each takes effect where its target comes up, S = softcap(scale · q kᵀ) + bias, A = softmax(S),
z = A v: interventions on q, k and v first, then on the scores S, the pattern A and z; on the same
target in the order of the list. They never touch weights, caches or the model's state.

A query head, `L3H2` or (3, 2), means that head alone, also for k and v under grouped-query
attention: it then gets its own view of its group's keys or values. A key-value head, `L3KV1`, means
all query heads of its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .capture import Cache
from .errors import InputError
from .heads import HeadId, Heads, KvHeadId
from .hook_names import is_rotary, read_target
from .inputs import Readable, read_inputs
from .intervene import intervene, run
from .intervention import Intervention, as_heads, as_positions
from .intervention_layers import LAYERS_TAKE, holds_layers
from .intervention_values import as_factor
from .plain_numbers import as_seed
from .reference import Reference
from .reference_sources import from_cache, from_run, mean_of
from .sites import check_model, unbridged

__all__ = [
    "Intervention",
    "add",
    "freeze",
    "gate",
    "intervene",
    "mean",
    "patch",
    "resample",
    "run",
    "zero",
]

Positions = int | Sequence[int] | None


def zero(heads: Heads, target: str = "z", *, positions: Positions = None) -> Intervention:
    """Put 0 in place of what heads compute: x[h] ← 0.

    In z and in the pattern this removes the head's output; the rows of a zeroed pattern are not
    renormalised. Zeroed visible scores, or q, or k, give every visible key the same score before
    biases and sinks, so the head attends to all alike; masked keys stay masked.

    Args:
        heads: the heads.
        target: `"q"`, `"k"`, `"v"`, `"scores"`, `"pattern"` or `"z"`. TransformerLens's names do
            too: `"attn_scores"`, `"hook_z"`; q and k are its `"rot_q"` and `"rot_k"`.
        positions: columns of the sequence; None: all.

    Example:
        >>> zero(["L0H1", "L2KV0"], positions=5)
        <zero z of L0H1, L2KV0 at [5]>

    Reference: Michel et al. 2019.
    """
    return Intervention("zero", target, _named(heads), as_positions(positions))


def gate(
    heads: Heads, factor: float | int | Tensor, target: str = "z", *, positions: Positions = None
) -> Intervention:
    """Scale what heads compute: x[h] ← ξ_h · x[h].

    The factor is kept as given: with `run(..., grad=True)` or in a block, gradients reach it, and
    steps of an optimiser on it take effect. A gated pattern is not renormalised; of the scores
    only visible ones are scaled.

    Args:
        heads: the heads.
        factor: a number, or one per named head [head].
        target: as in `zero`.
        positions: columns of the sequence; None: all.

    Raises:
        InputError: a factor of another shape, not of floating point, or not finite.

    Example:
        >>> gate("L0H1", 0.5, "pattern")
        <gate pattern of L0H1 by 0.5>

    Reference: Michel et al. 2019, equation 2 (head masks ξ_h); Voita et al. 2019 (trained gates).
    """
    return Intervention("gate", target, _named(heads), as_positions(positions), as_factor(factor))


def add(
    heads: Heads, vector: Tensor, target: str = "z", *, positions: Positions = None
) -> Intervention:
    """Add a vector to what heads compute: x[h] ← x[h] + u_h.

    Its width is d_head for q and k, d_value for v and z. For scores it is one number per key
    column, 0 beyond its end, or a single one; masked keys stay masked. A pattern takes none: a row
    plus a vector is no attention, so steer the scores.

    Args:
        heads: the heads.
        vector: [width], or [head, width], or [head, position, width] with `positions`. Kept as
            given, like the factor of `gate`.
        target: `"q"`, `"k"`, `"v"`, `"scores"` or `"z"`.
        positions: columns of the sequence; None: all.

    Raises:
        InputError: a vector of another shape, not of floating point, or not finite; a pattern.

    Example:
        >>> add(["L0H1", "L0H2"], torch.zeros(2, 8), "q")
        <add q of L0H1, L0H2 with (2, 8) values>
    """
    return Intervention("add", target, _named(heads), as_positions(positions), vector)


def patch(
    source: Cache | nn.Module,
    heads: Heads,
    target: str = "z",
    *,
    tokens: Readable | None = None,
    positions: Positions = None,
) -> Intervention:
    """Put in what heads computed in another run, at the same columns: x[h, c] ← x′[h, c].

    The other run has one sequence, which then serves all, or as many as the run that is changed.
    Without positions, `run` asks for equal lengths. The values are copied: what happens to the
    cache later has no effect. More than 256 MiB of them are announced through the logger
    `headatlas`.

    Args:
        source: a capture that holds the target, or a model to run on `tokens` now. One narrowed by
            `rows=` serves the positions among them.
        heads: the heads.
        target: as in `zero`. Patched scores bring the other run's mask along.
        tokens: what the source model reads.
        positions: columns of the sequence; None: all.

    Raises:
        InputError: the source does not hold the target of these heads, or a position, or no tokens
            for a model. Whether a capture of query heads holds a whole key-value head shows when
            the model is known, in `run` or `intervene`.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> patch(model, "L0H1", tokens=torch.tensor([[1, 2, 3]]), positions=1)
        <patch z of L0H1 at [1] from a run of 1 × 3 tokens>

    Reference: Vig et al. 2020 (causal mediation); Meng et al. 2022, section 2 (causal tracing).
    """
    target = read_target(target, "an intervention")
    named = _named(heads)
    columns = as_positions(positions)
    reference = _reference(source, tokens, named, target, columns)
    return Intervention("patch", target, named, columns, reference)


def freeze(
    source: Cache | nn.Module,
    heads: Heads | None = None,
    *,
    tokens: Readable | None = None,
    positions: Positions = None,
) -> Intervention:
    """Hold attention patterns at those of another run, so that only values change: A[h] ← A′[h].

    Together with an ablation of earlier heads this is Olsson's pattern-preserving ablation: what
    those heads do through later patterns, by Q- and K-composition, is cut, what they do through
    values and MLPs stays. The patterns are copied, as by `patch`.

    Args:
        source: a capture that holds the patterns, or a model to run on `tokens` now.
        heads: the heads; None: every head of the model.
        tokens: what the source model reads.
        positions: columns of the queries; None: all.

    Raises:
        InputError: the source does not hold these patterns, or no tokens for a model.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=2, n_head=2))
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> run(model, ids, [freeze(model, tokens=ids), zero("L0H1")]).logits.shape
        torch.Size([1, 3, 50])

    Reference: Olsson et al. 2022, "Ablations" (pattern-preserving); Elhage et al. 2021.
    """
    named = None if heads is None else _named(heads)
    columns = as_positions(positions)
    reference = _reference(source, tokens, named, "pattern", columns)
    return Intervention("freeze", "pattern", named, columns, reference)


def mean(
    model: nn.Module,
    tokens: Readable,
    heads: Heads,
    target: str = "z",
    *,
    positions: Positions = None,
    per_position: bool = False,
    include_bos: bool = True,
) -> Intervention:
    """Put in what heads compute on average over a reference set: x[h] ← mean over (d, c) of x[h].

    The model is run now, a few documents at a time; sums are float64 and leave padding out. In a
    rotary model q and k of different columns are turned by different angles: only their mean per
    position exists.

    Args:
        model: a transformers model.
        tokens: the reference documents.
        heads: the heads.
        target: `"q"`, `"k"`, `"v"`, `"z"`, or `"pattern"` per position.
        positions: columns of the sequence; None: all.
        per_position: one mean per column, over the documents that have a token there.
        include_bos: whether each document's first token counts; only `Tokens` with a BOS can leave
            it out, and only where columns are not kept apart.

    Raises:
        InputError: a mean that does not exist: of scores, or over columns of patterns or of rotated
            q or k.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> mean(model, torch.tensor([[1, 2, 3], [4, 5, 6]]), "L0H1")
        <mean z of L0H1 from the mean over 2 documents>

    Reference: Wang et al. 2022, section 2.2 (mean ablation).
    """
    target = read_target(target, "an intervention")
    _refuse_layers(model, "mean")
    columns = as_positions(positions)
    if target == "scores" or (target == "pattern" and not per_position):
        raise InputError(
            f"{target} has no mean over columns, which see different keys. Take the mean of z, or "
            "of the pattern with per_position=True."
        )
    model = check_model(model)
    inputs, named = read_inputs(model, tokens), _named(heads)
    if target in ("q", "k") and not per_position and is_rotary(model):
        raise InputError(
            f"{target} of this model has no mean over columns: RoPE turns each column by another "
            "angle, and turned vectors cancel. Take it with per_position=True, or the mean of z."
        )
    if not include_bos and (per_position or not inputs.bos):
        raise InputError(
            "include_bos=False needs Tokens that begin with a BOS, and per_position=False: kept "
            "apart, the BOS has a column of its own."
        )
    reference = mean_of(
        model, inputs, named, target, by_column=per_position, include_bos=include_bos
    )
    return Intervention("mean", target, named, columns, reference)


def resample(
    model: nn.Module,
    tokens: Readable,
    heads: Heads,
    target: str = "z",
    *,
    seed: int,
    positions: Positions = None,
) -> Intervention:
    """Put in what heads computed on another document: x[h] of sequence b ← x[h] of document π(b).

    The run has as many sequences as the reference set, D. Document π(b) is drawn once, uniformly
    among the D − 1 others than number b: when the reference set itself is run, no document gets its
    own values. All named heads take theirs from the same document. In a block a batch of n · D
    counts as D sequences, each n times in a row, as `generate` lays out its beams or continuations;
    other sizes are refused.

    Args:
        model: a transformers model, run now on the whole reference set.
        tokens: at least two reference documents, without padding.
        heads: the heads.
        target: as in `zero`.
        seed: of the draw.
        positions: columns of the sequence; None: all.

    Raises:
        InputError: fewer than two documents, padding, or a seed that is no integer.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> resample(model, torch.tensor([[1, 2, 3], [4, 5, 6]]), "L0H1", seed=0).values.donors
        (1, 0)

    Reference: Chan et al. 2022 (causal scrubbing: resampling ablation).
    """
    target = read_target(target, "an intervention")
    _refuse_layers(model, "resample")
    columns = as_positions(positions)
    generator = torch.Generator().manual_seed(as_seed(seed))
    model = check_model(model)
    inputs, named = read_inputs(model, tokens), _named(heads)
    count = len(inputs)
    if count < 2 or not bool(inputs.mask.all()):
        raise InputError(
            f"resample needs at least two documents of equal length, without padding; got {count}"
            f"{'' if bool(inputs.mask.all()) else ' with padding'}. Make them from one text with "
            "headatlas.interp.tokens.windows(tokenizer, text, seq_len=…), or from texts that are "
            "long enough with tokenize(tokenizer, texts, seq_len=…)."
        )
    shift = torch.randint(1, count, (count,), generator=generator)
    donors = tuple(((torch.arange(count) + shift) % count).tolist())
    reference = from_run(model, inputs, named, target, donors=donors)
    return Intervention("resample", target, named, columns, reference)


def _reference(
    source: Any,
    tokens: Any,
    heads: tuple[HeadId | KvHeadId, ...] | None,
    target: str,
    positions: tuple[int, ...] | None,
) -> Reference:
    target = read_target(target, "an intervention")
    source = unbridged(source)
    if isinstance(source, Cache):
        if tokens is not None:
            raise InputError("a cache has been run already: leave tokens out.")
        return from_cache(source, heads, target, positions)
    if not isinstance(source, PreTrainedModel):
        raise InputError(
            f"the source must be a Cache or a transformers model; got {type(source).__name__}."
            f"{LAYERS_TAKE if holds_layers(source) else ''}"
        )
    if tokens is None:
        raise InputError("a model as source needs tokens=, what it shall read.")
    return from_run(source, read_inputs(source, tokens), heads, target)


def _refuse_layers(model: Any, action: str) -> None:
    """Say what works on layers of our own where a reference run does not."""
    if holds_layers(model):
        raise InputError(f"{action} runs a transformers model for its values.{LAYERS_TAKE}")


def _named(heads: Any) -> tuple[HeadId | KvHeadId, ...]:
    named = as_heads(heads)
    if named is None:
        raise InputError("name the heads; only freeze takes None, for all of them.")
    return named
