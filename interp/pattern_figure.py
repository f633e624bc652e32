"""The drawing behind `plots.plot_pattern`; imports plotly."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np
from jaxtyping import Float
from plotly import graph_objects
from plotly.subplots import make_subplots

_LABELLED = 64  # an axis up to this long labels every token, in a figure of one panel
_LABELS = 40  # a longer one keeps about this many labels
_PRECISE = 256  # a longer axis: weights in units of 1/10000 as 16-bit integers, for the file's size
_UNIT = 10_000
# light to dark blue: rising in lightness alone, so it holds for every colour vision and in grey
_PALETTE = ["#f7fbff", "#d2e3f3", "#9ac8e0", "#529dcc", "#1c6cb1", "#08306b"]
_BLANK = "#e2e2e2"
_LABEL_PIXELS = 7  # per character of a label


def draw(
    weights: Float[np.ndarray, "head query key"],
    *,
    x_labels: list[str],
    y_labels: list[str],
    names: list[str],
    title: str | None,
    max_weight: float,
) -> graph_objects.Figure:
    """Draw one panel per head on shared axes; NaN stays blank.

    Args:
        weights: what to draw, checked.
        x_labels: one per key, escaped; y_labels: one per query.
        y_labels: one per query, escaped.
        names: one per head, escaped; drawn above its panel.
        title: of the figure, escaped.
        max_weight: the weight with the darkest colour.
    """
    figure, grid = _panels(names)
    unit = 1 if max(weights.shape) <= _PRECISE else _UNIT
    for number, name in enumerate(names):
        _draw_panel(figure, weights[number], name, unit, divmod(number, grid[1]))
    _lay_out(figure, grid, x_labels, y_labels, title)
    _colour(figure, max_weight, unit)
    return figure


def _panels(names: list[str]) -> tuple[graph_objects.Figure, tuple[int, int]]:
    """An empty figure of as many panels as names, nearly square, with its rows and columns."""
    columns = math.ceil(math.sqrt(len(names)))
    rows = math.ceil(len(names) / columns)
    layout: dict[str, Any] = {"shared_xaxes": "all", "shared_yaxes": "all"}
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=names,
        horizontal_spacing=0.1 / columns,
        vertical_spacing=0.2 / rows,
        **layout,
    )
    return figure, (rows, columns)


def _draw_panel(
    figure: graph_objects.Figure,
    cells: Float[np.ndarray, "query key"],
    name: str,
    unit: int,
    place: tuple[int, int],
) -> None:
    """Draw one head's weights, in 1/`unit`, into the panel at (row, column) of the grid."""
    row, column = place[0] + 1, place[1] + 1
    if unit > 1:
        for path in _blank_regions(cells):
            shape = {"type": "path", "path": path, "fillcolor": _BLANK, "line": {"width": 0}}
            figure.add_shape(shape, row=row, col=column)
    trace = graph_objects.Heatmap(
        z=np.round(np.nan_to_num(cells) * unit).astype(np.uint16) if unit > 1 else cells,
        coloraxis="coloraxis",
        hoverongaps=False,
        name=name,
        # unformatted, an axis value shows as its tick text: the token
        hovertemplate=(
            f"query %{{y:d}}  %{{y}}<br>key %{{x:d}}  %{{x}}<br>"
            f"weight %{{z{'} × 10⁻⁴' if unit > 1 else ':.4f}'}<extra>{name}</extra>"
        ),
    )
    figure.add_trace(trace, row=row, col=column)


def _blank_regions(weights: Float[np.ndarray, "query key"]) -> list[str]:
    """The blank cells as closed paths: integers have no NaN, so a long pattern is covered instead.

    Blank cells form runs at the end of rows: keys after the query, or the whole of a dead row.
    """
    n_key = weights.shape[1]
    first_blank = n_key - np.isnan(weights).sum(axis=1)
    paths, points = [], []
    for row, first in enumerate([*first_blank.tolist(), n_key]):
        if first < n_key:
            points += [f"{first - 0.5},{row - 0.5}", f"{first - 0.5},{row + 0.5}"]
        elif points:
            start, end = points[0].split(",")[1], points[-1].split(",")[1]
            corners = [f"{n_key - 0.5},{start}", *points, f"{n_key - 0.5},{end}"]
            paths.append(f"M{'L'.join(corners)}Z")
            points = []
    return paths


def _lay_out(
    figure: graph_objects.Figure,
    grid: tuple[int, int],
    x_labels: list[str],
    y_labels: list[str],
    title: str | None,
) -> None:
    """Sizes, margins and titles."""
    rows, columns = grid
    single = rows * columns == 1
    longest = max(len(x_labels), len(y_labels))
    every = longest <= _LABELLED and single
    x_room, y_room = _room(x_labels), _room(y_labels)
    left, bottom = y_room + 50, x_room + 50
    cell = 16 if every else max(1, 700 // longest)
    panel = (
        (max(240, cell * len(x_labels)), max(240, cell * len(y_labels))) if single else (250, 250)
    )
    figure.update_layout(
        title={"text": title, "x": 0.5} if title else None,
        template="plotly_white",
        plot_bgcolor=_BLANK,
        width=left + 110 + columns * panel[0],
        height=80 + bottom + rows * panel[1],
        margin={"l": left, "r": 110, "t": 80, "b": bottom},
        font={"family": "monospace", "size": 11},
    )
    _label_axes(figure, grid, x_labels, y_labels, every)
    figure.update_xaxes(title_text="key (source)", row=rows, title_standoff=8 if every else x_room)
    figure.update_yaxes(
        title_text="query (destination)", col=1, title_standoff=8 if every else y_room
    )


def _room(labels: list[str]) -> int:
    """Pixels for the longest label; labels are escaped, and &lt; is one character."""
    return _LABEL_PIXELS * max(len(html.unescape(label)) for label in labels) + 10


def _label_axes(
    figure: graph_objects.Figure,
    grid: tuple[int, int],
    x_labels: list[str],
    y_labels: list[str],
    every: bool,
) -> None:
    for axis, labels in (("x", x_labels), ("y", y_labels)):
        # all tick texts stay, because hover reads them; long axes label some through annotations
        update = figure.update_xaxes if axis == "x" else figure.update_yaxes
        update(
            tickmode="array",
            tickvals=list(range(len(labels))),
            ticktext=labels,
            showgrid=False,
            zeroline=False,
            constrain="domain",
        )
        if not every:
            update(showticklabels=False)
            _label_some(figure, axis, labels, grid)
    figure.update_xaxes(tickangle=-90, range=[-0.5, len(x_labels) - 0.5])
    figure.update_yaxes(range=[len(y_labels) - 0.5, -0.5])  # the first query at the top


def _colour(figure: graph_objects.Figure, max_weight: float, unit: int) -> None:
    ticks = np.linspace(0, max_weight, 6)
    figure.update_layout(
        coloraxis={
            "colorscale": _PALETTE,
            "cmin": 0,
            "cmax": max_weight * unit,
            "colorbar": {
                "title": {"text": "weight"},
                "thickness": 14,
                "tickvals": (ticks * unit).tolist(),
                "ticktext": [f"{tick:.3g}" for tick in ticks],
            },
        }
    )


def _label_some(
    figure: graph_objects.Figure, axis: str, labels: list[str], grid: tuple[int, int]
) -> None:
    """Label evenly spaced positions along the outer panels."""
    rows, columns = grid
    wanted = _LABELS if rows * columns == 1 else 16
    step = max(1, math.ceil(len(labels) / wanted))
    panels = range(columns) if axis == "x" else range(rows)
    for panel in panels:
        number = (rows - 1) * columns + panel if axis == "x" else panel * columns
        suffix = "" if number == 0 else str(number + 1)
        for position in range(0, len(labels), step):
            place: dict[str, Any] = (
                {"x": position, "xref": f"x{suffix}", "y": 0, "yref": f"y{suffix} domain"}
                | {"textangle": -90, "yanchor": "top", "xanchor": "center"}
                if axis == "x"
                else {"y": position, "yref": f"y{suffix}", "x": 0, "xref": f"x{suffix} domain"}
                | {"xanchor": "right", "yanchor": "middle"}
            )
            figure.add_annotation(text=labels[position], showarrow=False, **place)
