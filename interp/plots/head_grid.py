"""Maps of layers by heads, one or several beside and below one another, each with its colours."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from plotly.graph_objects import Figure, Heatmap
from plotly.subplots import make_subplots

from .style import Theme, lay_out

# pixels
_CELL, _LEAST_CELL = 28, 8
_WIDE, _HIGH = 640, 600  # what a panel of many heads or layers takes, unless cells get too small
_LEAST_HIGH = 150  # what a colour bar takes with its title
_LEAST_WIDE = 600  # what a title takes
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 200, 76, 52
_BETWEEN = (36, 68)  # columns, behind the room of a colour bar, and rows
_TICK = 18  # from one number of an axis to the next
_SIGNED = 13  # a cell with a letter


@dataclass(frozen=True, eq=False)
class HeadPanel:
    """One map.

    Attributes:
        name: drawn above it; escaped.
        cells: a value per head; NaN stays blank.
        colours: plotly's colorscale, cmin and cmax.
        told: what hover tells of a value, as a plotly template; escaped.
        bar: further settings of the colour bar, its title among them; escaped.
        details: what the template's `customdata` reads.
        signs: a letter per head, written into its cell.
        prefix: what stands before a head's address, such as `enc.`.
    """

    name: str
    cells: Float[np.ndarray, "layer head"]
    colours: dict[str, Any]
    told: str
    bar: dict[str, Any] = field(default_factory=dict)
    details: np.ndarray | None = None
    signs: list[list[str]] | None = None
    prefix: str = ""


def draw_heads(
    panels: Sequence[HeadPanel], *, across: int, title: str | None, theme: Theme
) -> Figure:
    """Draw maps in rows of `across`: layers down (the first at the top), heads across.

    Args:
        panels: in order; all of one size, or they get that of the largest.
        across: how many beside one another.
        title: of the figure.
        theme: its colours.
    """
    layers, heads = (max(panel.cells.shape[axis] for panel in panels) for axis in (0, 1))
    right, bar = _bar_room(panels)
    signed = any(panel.signs is not None for panel in panels)
    least = _SIGNED if signed else _LEAST_CELL
    grid = _Grid(math.ceil(len(panels) / across), across, layers, heads, right, bar, least)
    figure = grid.figure([panel.name for panel in panels], title, theme)
    for number, panel in enumerate(panels):
        _draw_panel(figure, panel, number, grid, theme)
    return figure


@dataclass(frozen=True)
class _Grid:
    """Panels of equal size, in pixels that follow from the numbers of layers and heads."""

    down: int
    across: int
    layers: int
    heads: int
    right: int
    bar: int
    least_cell: int

    @property
    def cell(self) -> int:
        """Pixels from one head or layer to the next."""
        fit = min(_WIDE // self.heads, _HIGH // self.layers)
        return min(max(fit, self.least_cell), _CELL)

    @property
    def panel(self) -> tuple[int, int]:
        """Width and height of a panel."""
        return self.cell * self.heads, max(self.cell * self.layers, _LEAST_HIGH, self.bar)

    @property
    def between(self) -> tuple[int, int]:
        """Pixels between panels, each with its colour bar."""
        return self.right + _BETWEEN[0], _BETWEEN[1]

    @property
    def area(self) -> tuple[int, int]:
        """Width and height of all panels with what is between them."""
        counts = (self.across, self.down)
        wide, high = (
            count * size + (count - 1) * between
            for count, size, between in zip(counts, self.panel, self.between, strict=True)
        )
        return wide, high

    def figure(self, names: list[str], title: str | None, theme: Theme) -> Figure:
        """An empty figure with a name above each panel."""
        wide, high = self.area
        figure = make_subplots(
            rows=self.down, cols=self.across, subplot_titles=names,
            horizontal_spacing=self.between[0] / wide if self.across > 1 else 0,
            vertical_spacing=self.between[1] / high if self.down > 1 else 0,
        )  # fmt: skip
        figure.update_annotations(font_size=11)
        # a narrow figure is as wide as its title; panels keep their size
        right = max(self.right, _LEAST_WIDE - _LEFT - wide)
        size = (_LEFT + wide + right, _TOP + high + _BOTTOM)
        lay_out(figure, theme, title, size=size, margin=(_LEFT, right, _TOP, _BOTTOM))
        figure.update_layout(plot_bgcolor=theme.blank)
        step = next((step for step in (1, 2, 5) if step * self.cell >= _TICK), 10)
        plain: dict[str, Any] = {"dtick": step, "tick0": 0, "showgrid": False, "zeroline": False}
        figure.update_xaxes(**plain, matches="x", range=[-0.5, self.heads - 0.5])
        figure.update_yaxes(**plain, matches="y", range=[self.layers - 0.5, -0.5])
        figure.update_xaxes(title={"text": "head", "standoff": 6}, row=self.down)
        figure.update_yaxes(title={"text": "layer", "standoff": 6}, col=1)
        return figure


def _draw_panel(figure: Figure, panel: HeadPanel, number: int, grid: _Grid, theme: Theme) -> None:
    """Draw one map with its colour bar; panels are numbered by row."""
    row, column = divmod(number, grid.across)
    axis = f"coloraxis{number + 1 if number else ''}"
    trace = Heatmap(
        z=panel.cells,
        customdata=panel.details,
        coloraxis=axis,
        hoverongaps=False,
        hovertemplate=f"{panel.prefix}L%{{y}}H%{{x}}<br>{panel.told}<extra></extra>",
    )
    if panel.signs is not None:
        trace.update(text=panel.signs, texttemplate="%{text}", textfont={"size": 10})
    figure.add_trace(trace, row=row + 1, col=column + 1)
    (wide, high), (panel_wide, panel_high) = grid.area, grid.panel
    right = column * (panel_wide + grid.between[0]) + panel_wide
    centre = row * (panel_high + grid.between[1]) + panel_high / 2
    bar = {
        "x": (right + 6) / wide, "xanchor": "left", "xpad": 0,
        "y": 1 - centre / high, "yanchor": "middle", "ypad": 0,
        "len": panel_high, "lenmode": "pixels", "thickness": 14,
        "tickfont": {"size": 10}, "nticks": 6, "outlinecolor": theme.grid, **panel.bar,
    }  # fmt: skip
    figure.update_layout({axis: {**panel.colours, "colorbar": bar}})


def _bar_room(panels: Sequence[HeadPanel]) -> tuple[int, int]:
    """Pixels right of a panel for its colour bar and what it says, and for its height."""
    said = [text for panel in panels for text in panel.bar.get("ticktext", ())]
    longest = max((len(html.unescape(text)) for text in said), default=0)
    high = max(panel.bar.get("len", 0) for panel in panels)
    return max(_RIGHT, 40 + 7 * longest), high


def range_of(
    values: Float[np.ndarray, "*shape"], theme: Theme, *, middle: float | None, share: float = 1.0
) -> dict[str, Any]:
    """Colours of numbers: diverging around `middle`, or rising from 0.

    Args:
        values: what will be drawn; without a finite one, colours reach to 1.
        theme: its colours.
        middle: the value of the colour in the middle; None: colours rise.
        share: of the values that must lie within the colours. Below 1, where a few heads have
            many times what the others have, the others can be told apart.
    """
    found = values[np.isfinite(values)]
    found = found if found.size else np.array([1.0 + (middle or 0.0)])
    if middle is None:
        most = float(np.quantile(found, share)) or 1.0
        return {"colorscale": list(theme.rising), "cmin": 0, "cmax": most}
    reach = float(np.quantile(np.abs(found - middle), share)) or 1.0
    return {
        "colorscale": list(theme.diverging), "cmin": middle - reach, "cmax": middle + reach
    }  # fmt: skip
