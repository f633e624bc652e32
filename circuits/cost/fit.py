"""Which shape of attention layer explains the sizes of its projections exactly."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import NamedTuple

from torch import nn
from transformers.pytorch_utils import Conv1D

from ...interp.errors import InputError
from .shapes import LatentShape, LayerShape

INSTEAD = "Give its numbers instead (layers, d_model, heads, …)."
"""What to do about a model whose shapes cannot be read."""


class Heads(NamedTuple):
    """What is known of a layer's heads before looking at its projections.

    Attributes:
        n_heads: query heads.
        n_kv_heads: what the number of key-value heads may be, the likeliest first.
        d_head: width of a key.
        d_value: width of a value.
        causal: whether a query sees no later key.
    """

    n_heads: int
    n_kv_heads: tuple[int, ...]
    d_head: int
    d_value: int
    causal: bool


def fit_layer(module: nn.Module, heads: Heads, window: int | None, name: str) -> LayerShape:
    """The shape that explains every projection of an attention module.

    Args:
        module: holds the projections of one attention layer, W_O included.
        heads: what is known of its heads.
        window: keys a query sees at most; None: all.
        name: how errors call the model.

    Raises:
        InputError: its projections are none of MHA, GQA, MQA and MLA with such heads.
    """
    sizes = Counter(
        _size(part) for part in module.modules() if isinstance(part, nn.Linear | Conv1D)
    )
    h, groups, d_head, d_value, causal = heads
    for g in groups:
        d_model = _grouped(sizes, h, g, d_head, d_value)
        if d_model is not None:
            return LayerShape(d_model, h, g, d_head, d_value, window, causal)
    low_rank = _low_rank(sizes, h, d_head, d_value)
    if low_rank is not None:
        d_model, latent = low_rank
        return LayerShape(d_model, h, h, d_head, d_value, window, causal, latent)
    listing = ", ".join(f"{into} → {out}" for into, out in sorted(sizes.elements()))
    raise InputError(
        f"the attention of {name} ({type(module).__name__}) has projections {listing[:200]} and "
        f"{h} heads of {d_head}: neither MHA, GQA, MQA nor MLA. {INSTEAD}"
    )


def _size(projection: nn.Module) -> tuple[int, int]:
    """(inputs, outputs) of a Linear or Conv1D; a quantised weight has another shape than these."""
    if isinstance(projection, nn.Linear):
        return projection.in_features, projection.out_features
    rows, columns = projection.weight.shape  # type: ignore[union-attr]  # Conv1D's
    return int(rows), int(columns)


def _grouped(
    sizes: Counter[tuple[int, int]], h: int, g: int, d_head: int, d_value: int
) -> int | None:
    """d_model, if these are Q, K, V (apart, K and V together, or all together) and W_O."""
    q, k, v = h * d_head, g * d_head, g * d_value
    for d_model in {into for into, _ in sizes}:
        for outputs in ((q, k, v), (q, k + v), (q + k + v,)):
            inwards = [(d_model, out) for out in outputs]
            if sizes == Counter([*inwards, (h * d_value, d_model)]):
                return d_model
    return None


def _low_rank(
    sizes: Counter[tuple[int, int]], h: int, d_head: int, d_value: int
) -> tuple[int, LatentShape] | None:
    """(d_model, latent), if these are MLA's down and up projections, queries and W_O."""
    if sizes.total() not in (4, 5):
        return None
    for (d_model, down), (d_latent, up) in permutations(sizes.elements(), 2):
        d_rope = down - d_latent
        if not 0 <= d_rope < d_head or up != h * (d_head - d_rope + d_value):
            continue
        rest = sizes - Counter([(d_model, down), (d_latent, up), (h * d_value, d_model)])
        ranks = [None, *(out for into, out in rest if into == d_model)]
        for rank in ranks:
            query = [(d_model, h * d_head)]
            if rank is not None:
                query = [(d_model, rank), (rank, h * d_head)]
            if rest == Counter(query):
                return d_model, LatentShape(d_latent, d_rope, rank)
    return None
