"""How far heads look: the mean weight of keys by their distance from the query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from plotly.graph_objects import Figure
from torch import Tensor

from ..errors import InputError, shown
from ..plain_numbers import as_index
from .lines import Line, plot_lines
from .style import head_names, theme_of
from .weights import own_keys, read_pattern


def plot_offsets(
    pattern: Float[Tensor, "*shape"] | Float[np.ndarray, "*shape"],
    *,
    heads: Sequence[object] | None = None,
    max_offset: int = 32,
    title: str | None = None,
    sinks: bool = False,
    rows: Sequence[int] | None = None,
    theme: str = "light",
) -> Figure:
    """Draw the mean weight at each offset, one line per head.

        m(d) = mean of A[i, i − d] over the queries i that have such a key

    d = 1 is the token before; patterns that look ahead have negative offsets too. Rows of dead
    queries do not count. Of a pattern with more keys than queries, as with a cache, the last query
    stands on the last key, unless `rows` says where each stands.

    Args:
        pattern: weights after the softmax, as `plot_pattern` takes them.
        heads: one name per head.
        max_offset: the largest distance to show.
        title: of the figure; None says what is shown.
        sinks: rows may sum to less than 1.
        rows: the position of each query, as in `plot_pattern`.
        theme: `light` or `dark`.

    Raises:
        InputError: what `plot_pattern` refuses, or no whole number of tokens of at least 0.

    Example:
        >>> import torch
        >>> before = torch.cat([torch.eye(8)[:1], torch.eye(8)[:7]])  # the first looks at itself
        >>> figure = plot_offsets(before, heads=["L2H1"], max_offset=3)
        >>> figure.data[0].x.tolist(), figure.data[0].y.tolist()
        ([0.0, 1.0, 2.0, 3.0], [0.125, 1.0, 0.0, 0.0])
    """
    most = as_index(max_offset)
    if most is None or most < 0:
        raise InputError(f"max_offset is a whole number of at least 0; got {shown(max_offset)}.")
    chosen, weights = theme_of(theme), read_pattern(pattern, sinks=sinks, rows=rows)
    names = head_names(heads, len(weights))
    lines = []
    own = own_keys(weights.shape[1], weights.shape[2], rows)
    offsets = _offsets(weights, own, most)
    for number, cells in enumerate(weights):
        y, counts = _profile(cells, own, offsets)
        told = "offset %{x}: %{y:.4~g}<br>mean of %{customdata[0]:.0f} weights"
        line = Line(_raw(heads, number, names), offsets.astype(float), y, told=told)
        lines.append((line, counts))
    figure = plot_lines(
        [line for line, _ in lines],
        x="offset (query position − key position)",
        y="mean weight",
        title="mean attention weight by offset" if title is None else title,
        theme=chosen,
    )
    traces: list[Any] = list(figure.select_traces())
    for trace, (_, counts) in zip(traces, lines, strict=True):
        trace.update(customdata=counts[:, None], showlegend=names != [""])
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(tickformat="d")
    return figure


def _offsets(weights: np.ndarray, own: np.ndarray, most: int) -> np.ndarray:
    """The offsets to show: back to `most`, and ahead where some head looks there."""
    last = weights.shape[-1] - 1
    later = np.arange(last + 1)[None] > own[:, None]
    looks_ahead = bool(np.nansum(weights[:, later]) > 0)
    back, ahead = int(own.max()), max(0, last - int(own.min())) if looks_ahead else 0
    return np.arange(-min(most, ahead), min(most, back) + 1)


def _profile(
    cells: np.ndarray, own: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The mean weight at each offset, and of how many; NaN where there is none."""
    n_key = cells.shape[1]
    means, counts = np.full(len(offsets), np.nan), np.zeros(len(offsets))
    for place, offset in enumerate(offsets):
        keys = own - offset
        seen = (keys >= 0) & (keys < n_key)
        found = cells[seen, keys[seen]]
        found = found[~np.isnan(found)]
        if found.size:
            means[place], counts[place] = found.mean(), found.size
    return means, counts


def _raw(heads: Sequence[object] | None, number: int, names: list[str]) -> str:
    """A head's name as it was given; lines make theirs safe themselves."""
    if heads is None:
        return f"head {number}" if len(names) > 1 else ""
    return heads if isinstance(heads, str) else str(heads[number])
