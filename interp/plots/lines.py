"""Curves with the intervals of their points: what several figures draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from plotly.graph_objects import Figure

from .style import DASHES, MARKS, Theme, lay_out, named

_SIZE = (820, 480)
_MARGIN = (80, 30, 70, 60)
_LEGEND_PIXELS = 7


@dataclass(frozen=True, eq=False)
class Line:
    """One curve.

    Attributes:
        name: in the legend; any text.
        x: where its points stand.
        y: their values; NaN leaves a gap.
        low: lower ends of their intervals; None: there are none.
        high: upper ends.
        told: what hover tells, as a plotly template over x, y and, where there are intervals,
            `customdata` with their ends; escaped.
    """

    name: str
    x: Float[np.ndarray, " point"]
    y: Float[np.ndarray, " point"]
    low: Float[np.ndarray, " point"] | None = None
    high: Float[np.ndarray, " point"] | None = None
    told: str = "%{x}: %{y:.4f}"


def plot_lines(lines: Sequence[Line], *, x: str, y: str, title: str | None, theme: Theme) -> Figure:
    """Draw curves with a legend, told apart by colour, mark and dash.

    Args:
        lines: in the order of the legend.
        x: title of the axis; any text.
        y: likewise.
        title: of the figure.
        theme: its colours.

    Example:
        >>> from headatlas.interp.plots.style import LIGHT
        >>> line = Line("a", np.arange(3.0), np.array([0.0, 1.0, 4.0]))
        >>> figure = plot_lines([line], x="heads removed", y="loss", title=None, theme=LIGHT)
        >>> figure.data[0].name
        'a'
    """
    figure = Figure()
    for place, line in enumerate(lines):
        colour = theme.colours[place % len(theme.colours)]
        figure.add_scatter(
            x=line.x, y=line.y, name=named(line.name, 40), mode="lines+markers",
            line={"color": colour, "dash": DASHES[place // len(theme.colours) % len(DASHES)]},
            marker={"symbol": MARKS[place % len(MARKS)], "size": 8},
            error_y=_bars(line),
            customdata=_ends(line),
            hovertemplate=line.told, showlegend=True,
        )  # fmt: skip
    lay_out_axes(figure, x=x, y=y, title=title, theme=theme)
    return figure


def lay_out_axes(figure: Figure, *, x: str, y: str, title: str | None, theme: Theme) -> None:
    """The frame that curves and bars share: two titled axes, and the legend on the right.

    Args:
        figure: with its traces.
        x: title of the axis; any text.
        y: likewise.
        title: of the figure.
        theme: its colours.
    """
    traces: tuple[Any, ...] = tuple(figure.select_traces())
    names = [str(trace.name or "") for trace in traces if trace.showlegend]
    legend = 60 + _LEGEND_PIXELS * max(map(len, names), default=0) if names else 0
    left, right, top, bottom = _MARGIN
    size = (_SIZE[0] + max(0, legend - 180), _SIZE[1])
    lay_out(figure, theme, title, size=size, margin=(left, right + legend, top, bottom))
    lines: dict[str, Any] = {
        "gridcolor": theme.grid,
        "zerolinecolor": theme.grid,
        "linecolor": theme.grid,
    }
    figure.update_xaxes(title_text=named(x), **lines)
    figure.update_yaxes(title_text=named(y), **lines)
    figure.update_layout(legend={"x": 1.02, "xanchor": "left", "y": 1, "yanchor": "top"})


def _ends(line: Line) -> np.ndarray | None:
    if line.low is None or line.high is None:
        return None
    return np.stack([line.low, line.high], axis=1)


def _bars(line: Line) -> dict[str, object] | None:
    if line.low is None or line.high is None:
        return None
    return {
        "type": "data", "symmetric": False, "array": line.high - line.y,
        "arrayminus": line.y - line.low, "thickness": 1.2, "width": 4,
    }  # fmt: skip
