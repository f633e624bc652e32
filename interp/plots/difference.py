"""What changed between two runs: one pattern less another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from plotly.graph_objects import Figure
from torch import Tensor

from ..errors import InputError
from .style import head_names, theme_of
from .token_axes import read_axes
from .token_maps import Scale, draw_maps
from .weights import check_max_weight, read_pattern

_LEAST = 1e-30


def plot_difference(
    pattern: Float[Tensor, "*_"] | Float[np.ndarray, "*_"],
    other: Float[Tensor, "*_"] | Float[np.ndarray, "*_"],
    *,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    heads: Sequence[object] | None = None,
    title: str | None = None,
    sinks: bool = False,
    rows: Sequence[int] | None = None,
    max_weight: float | None = None,
    theme: str = "light",
) -> Figure:
    """Draw how two patterns differ, A[i, j] − B[i, j].

    Orange is where A looks more, blue where B does. Cells that are blank in both, by a causal mask
    or as rows of dead queries, stay blank; zero is the colour in the middle.

    A page of more than 65,536 cells (256 × 256) holds differences as whole numbers, to 1/6,500 of
    the last colour's or better; one of more than 2 million to 1/250 of it. Both hold what is beyond
    `max_weight` as the last colour's. Hover says so.

    Args:
        pattern: A, weights after the softmax, as `plot_pattern` takes them.
        other: B, of the same shape.
        tokens: as in `plot_pattern`.
        keys: as in `plot_pattern`.
        heads: one name per head.
        title: of the figure; None says which is which.
        sinks: rows may sum to less than 1.
        rows: as in `plot_pattern`.
        max_weight: the difference that gets the last colours; None: the largest there is.
        theme: `light` or `dark`.

    Raises:
        InputError: not weights, other shapes, or what `plot_pattern` refuses.

    Example:
        >>> import torch
        >>> one, two = torch.tensor([[1.0, 0], [0.5, 0.5]]), torch.tensor([[1.0, 0], [0.25, 0.75]])
        >>> figure = plot_difference(one, two)
        >>> figure.data[0].z.tolist(), figure.layout.coloraxis.cmax
        ([[0.0, nan], [0.25, -0.25]], 0.25)
    """
    one, two = (
        read_pattern(given, sinks=sinks, rows=rows, name=name)
        for given, name in ((pattern, "pattern"), (other, "other"))
    )
    if one.shape != two.shape:
        raise InputError(
            f"patterns differ cell by cell, so both have one shape; got {one.shape} and "
            f"{two.shape} (head, query, key). Run both on the same tokens and heads."
        )
    cells = np.nan_to_num(one) - np.nan_to_num(two)
    cells[np.isnan(one) & np.isnan(two)] = np.nan
    chosen = theme_of(theme)
    most = float(np.nanmax(np.abs(cells), initial=0.0)) if max_weight is None else None
    # what float64 rounds away beside any weight is no difference
    reach = check_max_weight(max_weight) if most is None else most if most > _LEAST else 1.0
    scale = Scale("difference", chosen.diverging, -reach, reach)
    return draw_maps(
        cells,
        read_axes(cells.shape[1:], tokens, keys, rows),
        names=head_names(heads, len(cells)),
        scale=scale,
        title="pattern − other" if title is None else title,
        theme=chosen,
    )
