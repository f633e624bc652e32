"""The drawing behind `AblationSweep.plot`; imports plotly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from plotly.graph_objects import Figure

from ...interp.plots.head_grid import HeadPanel, draw_heads, range_of
from ...interp.plots.style import Theme, theme_of
from .said import TITLES

VALUES = {
    "delta_loss_nats": ("Δ loss (nats/token)", "delta_low", "delta_high", 0.0),
    "perplexity_ratio": ("perplexity ratio", "ratio_low", "ratio_high", 1.0),
    "kl_nats": ("KL (nats/token)", "kl_low", "kl_high", None),
}
"""By value: its title, the columns of its interval, and where no effect stands between colours."""

_SHARE = 0.98
"""Of the heads, within the colours: a few cost many times what the others do."""


def draw(
    rows: pd.DataFrame,
    value: str,
    methods: Sequence[str],
    documents: Sequence[str],
    title: str | None,
    theme: str = "light",
) -> Figure:
    """A map per method (down) and sort of documents (across), each with colours of its own.

    Layers down (the first at the top), heads across; heads that were not removed stay blank.

    Args:
        rows: one row per head, method and sort of documents.
        value: one of `VALUES`.
        methods: which ones to draw.
        documents: which ones to draw.
        title: of the figure; None says what is shown.
        theme: `light` or `dark`.
    """
    chosen, name = theme_of(theme), VALUES[value][0]
    panels = [*product(methods, documents)]
    names = [f"{method} ablation, {TITLES[sort]}" for method, sort in panels]
    said = f"{name} without each head"
    if len(panels) == 1:
        said, names = f"{said}: {names[0]}", [""]
    layers, heads = (int(rows[column].to_numpy().max()) + 1 for column in ("layer", "head"))
    maps = []
    for (method, sort), above in zip(panels, names, strict=True):
        own = rows.loc[(rows["method"] == method) & (rows["documents"] == sort)]
        maps.append(_panel(above, _cells(own, value, layers, heads), value, chosen))
    return draw_heads(
        maps, across=len(documents), title=said if title is None else title, theme=chosen
    )


def _cells(
    rows: pd.DataFrame, value: str, layers: int, heads: int
) -> Float[np.ndarray, "layer head part"]:
    """The value with the ends of its interval; NaN where a head was not removed."""
    _, low, high, _ = VALUES[value]
    cells = np.full((layers, heads, 3), np.nan)
    place = rows["layer"].to_numpy(int), rows["head"].to_numpy(int)
    cells[place] = rows[[value, low, high]].to_numpy(float)
    return cells


def _panel(
    above: str, cells: Float[np.ndarray, "layer head part"], value: str, theme: Theme
) -> HeadPanel:
    """One map with its colours, and what hover and the colour bar say."""
    name, *_, middle = VALUES[value]
    ends = "<br>[%{customdata[1]}, %{customdata[2]}]"
    interval = ends if not np.isnan(cells[..., 1]).all() else ""
    colours = range_of(cells[..., 0], theme, middle=middle, share=_SHARE)
    legend = _legend(name, cells[..., 0], colours, middle)
    # a page holds no infinity: it is drawn in the last colour, and hover tells it
    clipped = np.clip(cells[..., 0], colours["cmin"], colours["cmax"])
    drawn = np.where(np.isinf(cells[..., 0]), clipped, cells[..., 0])
    texts = [f"{number:.4f}".replace("inf", "∞") for number in cells.ravel()]
    return HeadPanel(
        above,
        drawn,
        colours,
        told=f"{name} %{{customdata[0]}}{interval}",
        bar={"title": {"text": legend, "font": {"size": 10}}},
        details=np.array(texts, object).reshape(cells.shape),
    )


def _legend(
    name: str,
    values: Float[np.ndarray, "layer head"],
    colours: dict[str, Any],
    middle: float | None,
) -> str:
    """What the colours mean, and where they end if some heads are beyond."""
    digits = ".4g" if middle else ".2g"  # ratios differ from 1 in late digits
    lines = [name]
    if (values > colours["cmax"]).any():
        lines.append(f"last colour: {colours['cmax']:{digits}} or more")
    if (values < colours["cmin"]).any():
        lines.append(f"first colour: {colours['cmin']:{digits}} or less")
    return "<br>".join(lines)
