"""Attention patterns: who looks where."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from plotly.graph_objects import Figure
from torch import Tensor

from .style import head_names, theme_of
from .token_axes import read_axes
from .token_maps import Scale, draw_maps
from .weights import check_max_weight, read_pattern


def plot_pattern(
    pattern: Float[Tensor, "*shape"] | Float[np.ndarray, "*shape"],
    *,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    heads: Sequence[object] | None = None,
    title: str | None = None,
    sinks: bool = False,
    rows: Sequence[int] | None = None,
    max_weight: float = 1.0,
    theme: str = "light",
) -> Figure:
    """Draw attention weights: queries down (the first at the top), keys across.

    The cell (i, j) is A[i, j], the weight of key j in query i's softmax. Weights above the diagonal
    of a causal pattern and the rows of dead queries (all zero) are left blank, which is not the
    colour of zero. A pattern does not tell why another weight is zero, so keys outside a sliding
    window and padded keys have the colour of zero.

    A page of more than 65,536 weights (256 × 256) holds them as whole numbers, to 1/13,000 of
    `max_weight` or better; one of more than 2 million to 1/500 of it. Both hold what is above
    `max_weight` as `max_weight`. Hover says so.

    Args:
        pattern: weights after the softmax, [query, key], [head, query, key] (one panel per head)
            or [1, head, query, key].
        tokens: vocabulary strings of the queries, and of the keys where `keys` is not given; with
            `rows` and without `keys` those of the whole text. Hover shows all of them, long axes
            label some. None: positions.
        keys: vocabulary strings of the keys.
        heads: one name per head, such as `["L18H6"]`; None: `head 0`, `head 1`, …
        title: of the figure.
        sinks: rows may sum to less than 1, as in models whose softmax has a sink logit.
        rows: the position of each query, where the pattern holds some alone: `Cache.rows`. None:
            the last query stands on the last key.
        max_weight: the weight that gets the last colour, for patterns of small weights.
        theme: `light` or `dark`.

    Returns:
        A plotly figure; nothing is shown or written (`write_figure` writes).

    Raises:
        InputError: not weights (NaN, negative, rows that do not sum to 1), more than one sequence,
            more than 64 heads, tokens, names and rows that do not fit the shape, or no such theme.

    Example:
        >>> import torch
        >>> weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
        >>> figure = plot_pattern(weights, tokens=["Ġa", "Ġcat"], heads=["L0H0"])
        >>> figure.layout.xaxis.ticktext
        ('·a', '·cat')
        >>> figure.data[0].z.tolist()
        [[1.0, nan], [0.25, 0.75]]
    """
    weights = read_pattern(pattern, sinks=sinks, rows=rows)
    chosen = theme_of(theme)
    scale = Scale("weight", chosen.rising, 0.0, check_max_weight(max_weight))
    names = head_names(heads, len(weights))
    axes = read_axes(weights.shape[1:], tokens, keys, rows)
    return draw_maps(weights, axes, names=names, scale=scale, title=title, theme=chosen)
