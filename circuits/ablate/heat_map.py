"""The drawing behind `AblationSweep.plot`; imports plotly."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from plotly.graph_objects import Figure, Heatmap
from plotly.subplots import make_subplots

from .said import TITLES

VALUES = {
    "delta_loss_nats": ("Δ loss (nats/token)", "delta_low", "delta_high", 0.0),
    "perplexity_ratio": ("perplexity ratio", "ratio_low", "ratio_high", 1.0),
    "kl_nats": ("KL (nats/token)", "kl_low", "kl_high", None),
}
"""By value: its title, the columns of its interval, and where no effect stands between colours."""

# blue, white, orange: told apart by every colour vision; white is no effect
_DIVERGING = ["#1c6cb1", "#9ac8e0", "#f7f7f7", "#f4a582", "#b35806"]
_RISING = ["#f7fbff", "#d2e3f3", "#9ac8e0", "#529dcc", "#1c6cb1", "#08306b"]
_BLANK = "#e2e2e2"

# pixels
_CELL, _LEAST_CELL = 28, 8
_WIDE, _HIGH = 640, 600  # what a panel of many heads or layers takes, unless cells get too small
_LEAST_HIGH = 150  # what a colour bar takes with its title
_LEAST_WIDE = 600  # what a title takes
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 200, 76, 52
_BETWEEN = (_RIGHT + 36, 68)  # columns, each with its colour bar, and rows
_TICK = 18  # from one number of an axis to the next


def draw(
    rows: pd.DataFrame,
    value: str,
    methods: Sequence[str],
    documents: Sequence[str],
    title: str | None,
) -> Figure:
    """A map per method (down) and sort of documents (across), each with colours of its own.

    Layers down (the first at the top), heads across; heads that were not removed stay blank.

    Args:
        rows: one row per head, method and sort of documents.
        value: one of `VALUES`.
        methods: which ones to draw.
        documents: which ones to draw.
        title: of the figure; None says what is shown.
    """
    name = VALUES[value][0]
    panels = [*product(methods, documents)]
    names = [f"{method} ablation, {TITLES[sort]}" for method, sort in panels]
    shown = title or f"{name} without each head"
    if len(panels) == 1:
        shown, names = (title or f"{shown}: {names[0]}"), [""]
    layers, heads = (int(rows[column].to_numpy().max()) + 1 for column in ("layer", "head"))
    grid = _Grid(len(methods), len(documents), layers, heads)
    figure = grid.figure(names)
    for number, (method, sort) in enumerate(panels):
        own = rows.loc[(rows["method"] == method) & (rows["documents"] == sort)]
        _draw_panel(figure, _cells(own, value, layers, heads), value, number, grid)
    # plotly reads tags in its texts
    figure.update_layout(title={"text": html.escape(shown, quote=False)})
    return figure


@dataclass(frozen=True)
class _Grid:
    """Panels of equal size, in pixels that follow from the numbers of layers and heads."""

    down: int
    across: int
    layers: int
    heads: int

    @property
    def cell(self) -> int:
        """Pixels from one head or layer to the next."""
        fit = min(_WIDE // self.heads, _HIGH // self.layers)
        return min(max(fit, _LEAST_CELL), _CELL)

    @property
    def panel(self) -> tuple[int, int]:
        """Width and height of a panel."""
        return self.cell * self.heads, max(self.cell * self.layers, _LEAST_HIGH)

    @property
    def area(self) -> tuple[int, int]:
        """Width and height of all panels with what is between them."""
        counts = (self.across, self.down)
        wide, high = (
            count * size + (count - 1) * between
            for count, size, between in zip(counts, self.panel, _BETWEEN, strict=True)
        )
        return wide, high

    def figure(self, names: list[str]) -> Figure:
        """An empty figure with a name above each panel."""
        wide, high = self.area
        figure = make_subplots(
            rows=self.down, cols=self.across, subplot_titles=names,
            horizontal_spacing=_BETWEEN[0] / wide if self.across > 1 else 0,
            vertical_spacing=_BETWEEN[1] / high if self.down > 1 else 0,
        )  # fmt: skip
        figure.update_annotations(font_size=11)
        figure.update_layout(
            title={"x": 0.5, "font": {"size": 13}},
            template="plotly_white",
            plot_bgcolor=_BLANK,
            width=max(_LEFT + wide + _RIGHT, _LEAST_WIDE),
            height=_TOP + high + _BOTTOM,
            margin={"l": _LEFT, "r": _RIGHT, "t": _TOP, "b": _BOTTOM},
            font={"family": "monospace", "size": 11},
        )
        step = next((step for step in (1, 2, 5) if step * self.cell >= _TICK), 10)
        plain: dict[str, Any] = {"dtick": step, "tick0": 0, "showgrid": False, "zeroline": False}
        figure.update_xaxes(**plain, matches="x", range=[-0.5, self.heads - 0.5])
        figure.update_yaxes(**plain, matches="y", range=[self.layers - 0.5, -0.5])
        figure.update_xaxes(title={"text": "head", "standoff": 6}, row=self.down)
        figure.update_yaxes(title={"text": "layer", "standoff": 6}, col=1)
        return figure


def _cells(
    rows: pd.DataFrame, value: str, layers: int, heads: int
) -> Float[np.ndarray, "layer head part"]:
    """The value with the ends of its interval; NaN where a head was not removed."""
    _, low, high, _ = VALUES[value]
    cells = np.full((layers, heads, 3), np.nan)
    place = rows["layer"].to_numpy(int), rows["head"].to_numpy(int)
    cells[place] = rows[[value, low, high]].to_numpy(float)
    return cells


def _draw_panel(
    figure: Figure,
    cells: Float[np.ndarray, "layer head part"],
    value: str,
    number: int,
    grid: _Grid,
) -> None:
    """Draw one map with its colour bar; panels are numbered by row."""
    name, *_, middle = VALUES[value]
    row, column = divmod(number, grid.across)
    axis = f"coloraxis{number + 1 if number else ''}"
    ends = "<br>[%{customdata[0]:.4f}, %{customdata[1]:.4f}]"
    interval = ends if np.isfinite(cells[..., 1]).any() else ""
    trace = Heatmap(
        z=cells[..., 0],
        customdata=cells[..., 1:],
        coloraxis=axis,
        hoverongaps=False,
        hovertemplate=f"L%{{y}}H%{{x}}<br>{name} %{{z:.4f}}{interval}<extra></extra>",
    )
    figure.add_trace(trace, row=row + 1, col=column + 1)
    colours = _colours(cells[..., 0], middle)
    (wide, high), (panel_wide, panel_high) = grid.area, grid.panel
    right = column * (panel_wide + _BETWEEN[0]) + panel_wide
    centre = row * (panel_high + _BETWEEN[1]) + panel_high / 2
    bar = {
        "title": {"text": _legend(name, cells[..., 0], colours, middle), "font": {"size": 10}},
        "x": (right + 6) / wide, "xanchor": "left", "xpad": 0,
        "y": 1 - centre / high, "yanchor": "middle", "ypad": 0,
        "len": panel_high, "lenmode": "pixels", "thickness": 14,
        "tickfont": {"size": 10}, "nticks": 6,
    }  # fmt: skip
    figure.update_layout({axis: {**colours, "colorbar": bar}})


def _colours(values: Float[np.ndarray, "layer head"], middle: float | None) -> dict[str, Any]:
    """A scale around no effect that most heads can be told apart on.

    A few heads cost many times what the others do: colours end at the 98th percentile.
    """
    found = values[np.isfinite(values)]
    if middle is None:
        return {"colorscale": _RISING, "cmin": 0, "cmax": float(np.quantile(found, 0.98)) or 1.0}
    reach = float(np.quantile(np.abs(found - middle), 0.98)) or 1.0
    return {"colorscale": _DIVERGING, "cmin": middle - reach, "cmax": middle + reach}


def _legend(
    name: str,
    values: Float[np.ndarray, "layer head"],
    colours: dict[str, Any],
    middle: float | None,
) -> str:
    """What the colours mean, and where they end if some heads are beyond."""
    digits = ".4g" if middle else ".2g"  # ratios differ from 1 in late digits
    lines = [name]
    if float(np.nanmax(values)) > colours["cmax"]:
        lines.append(f"last colour: {colours['cmax']:{digits}} or more")
    if float(np.nanmin(values)) < colours["cmin"]:
        lines.append(f"first colour: {colours['cmin']:{digits}} or less")
    return "<br>".join(lines)
