"""Maps of tokens by tokens, one panel per head: what patterns and their differences share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from plotly.graph_objects import Figure, Heatmap
from plotly.subplots import make_subplots

from .style import Theme, lay_out, room
from .token_axes import Axes

_LABELLED = 64  # an axis up to this long labels every token, in a figure of one panel
_LABELS = 40  # a longer one keeps about this many labels
_PRECISE_CELLS = 2**16  # more: whole numbers in 16 bits, for the file's size
_ROUGH_CELLS = 2**21  # more: in 8 bits
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """What values mean and how they are coloured.

    Attributes:
        what: a word for the value.
        colours: from `low` to `high`.
        low: the value of the first colour; below 0 values are signed.
        high: the value of the last colour.
    """

    what: str
    colours: tuple[str, ...]
    low: float
    high: float

    def kept(self, cells: Float[np.ndarray, "head query key"]) -> Kept:
        """The cells as the page holds them: the more there are, the fewer bytes each.

        Whole numbers are of a unit that uses their bits for the range of the colours.
        """
        signed, what = self.low < 0, self.what
        if cells.size <= _PRECISE_CELLS:
            return Kept(cells, 1.0, f"{what} %{{z:.4~g}}")
        if cells.size <= _ROUGH_CELLS:
            exponent = math.floor(math.log10((2**15 - 1 if signed else 2**16 - 1) / self.high))
            unit, dtype = 10.0**exponent, np.int16 if signed else np.uint16
            told = f"{what} %{{z}} × 10{str(-exponent).translate(_SUPERSCRIPT)}"
        else:
            unit, dtype = (125 if signed else 250) / self.high, np.int8 if signed else np.uint8
            told = f"{what} %{{z}}/{unit:.6g} (±{0.5 / unit:.2g})"
        numbers = np.round(np.nan_to_num(cells) * unit)
        most = round(self.high * unit)
        if np.abs(numbers).max() > most:
            told += f"<br>{most:g} stands for {self.high:g} and more"
            told += f", −{most:g} for −{self.high:g} and less" if signed else ""
        if np.isnan(cells).any():
            told += "<br>where grey: no weight"  # whole numbers have no NaN, so it reads 0
        return Kept(np.clip(numbers, -most, most).astype(dtype), unit, told)


@dataclass(frozen=True)
class Kept:
    """Cells as a page holds them.

    Attributes:
        cells: in units of `1 / unit`.
        unit: 1 for the values themselves.
        told: how hover tells one, as a plotly template.
    """

    cells: Shaped[np.ndarray, "head query key"]
    unit: float
    told: str


def draw_maps(
    cells: Float[np.ndarray, "head query key"],
    axes: Axes,
    *,
    names: list[str],
    scale: Scale,
    title: str | None,
    theme: Theme,
) -> Figure:
    """Draw one panel per head on shared axes; NaN stays blank.

    Args:
        cells: what to draw; blank cells are runs at the end of rows.
        axes: labels.
        names: one per head, escaped; drawn above its panel.
        scale: of the values.
        title: of the figure.
        theme: its colours.
    """
    grid = _Grid.of(len(names))
    figure = _panels(names, grid)
    kept = scale.kept(cells)
    query = "%{y}" if axes.positions else "%{y:d}  %{y}"
    for number, name in enumerate(names):
        trace = Heatmap(
            z=kept.cells[number],
            coloraxis="coloraxis",
            hoverongaps=False,
            name=name,
            # unformatted, an axis value shows as its tick text: the token
            hovertemplate=(
                f"query {query}<br>key %{{x:d}}  %{{x}}<br>{kept.told}<extra>{name}</extra>"
            ),
        )
        row, column = (place + 1 for place in divmod(number, grid.columns))
        if kept.unit != 1:
            _cover(figure, cells[number], theme, row, column)
        figure.add_trace(trace, row=row, col=column)
    _lay_out(figure, grid, axes, title, theme)
    _colour(figure, scale, kept.unit)
    return figure


class _Grid(NamedTuple):
    """Panels in rows, nearly square; the last row may not be full."""

    rows: int
    columns: int
    n: int

    @classmethod
    def of(cls, n: int) -> _Grid:
        columns = math.ceil(math.sqrt(n))
        return cls(math.ceil(n / columns), columns, n)

    def lowest(self, column: int) -> int:
        """The number of the last panel of a column."""
        return column + (self.n - 1 - column) // self.columns * self.columns


def _panels(names: list[str], grid: _Grid) -> Figure:
    """An empty figure of as many panels as names."""
    rows, columns, n = grid
    layout: dict[str, Any] = {"shared_xaxes": "all", "shared_yaxes": "all"}
    places = [{} if place < n else None for place in range(rows * columns)]
    figure = make_subplots(
        rows=rows,
        cols=columns,
        specs=[places[row * columns : (row + 1) * columns] for row in range(rows)],
        subplot_titles=names,
        horizontal_spacing=0.1 / columns,
        vertical_spacing=0.2 / rows,
        **layout,
    )
    figure.update_annotations(font_size=11)
    return figure


def _cover(
    figure: Figure, cells: Float[np.ndarray, "query key"], theme: Theme, row: int, column: int
) -> None:
    """Lay blank regions over a panel of whole numbers, which have no NaN."""
    for path in _blank_regions(cells):
        shape = {"type": "path", "path": path, "fillcolor": theme.blank, "line": {"width": 0}}
        figure.add_shape(shape, row=row, col=column)


def _blank_regions(cells: Float[np.ndarray, "query key"]) -> list[str]:
    """The blank cells as closed paths.

    Blank cells form runs at the end of rows: keys after the query, or the whole of a dead row.
    """
    n_key = cells.shape[1]
    first_blank = n_key - np.isnan(cells).sum(axis=1)
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


def _lay_out(figure: Figure, grid: _Grid, axes: Axes, title: str | None, theme: Theme) -> None:
    """Sizes, margins and titles."""
    rows, columns, n = grid
    single = n == 1
    longest = max(len(axes.x), len(axes.y))
    every = longest <= _LABELLED and single
    x_room, y_room = room(axes.x), room(axes.y)
    left, bottom = y_room + 50, x_room + 50
    cell = 16 if every else max(1, 700 // longest)
    panel = (max(240, cell * len(axes.x)), max(240, cell * len(axes.y))) if single else (250, 250)
    size = (left + 110 + columns * panel[0], 80 + bottom + rows * panel[1])
    lay_out(figure, theme, title, size=size, margin=(left, 110, 80, bottom))
    figure.update_layout(plot_bgcolor=theme.blank)
    _label_axes(figure, grid, axes, every)
    for column in range(columns):
        row = grid.lowest(column) // columns + 1
        below = {"text": "key (source)", "standoff": 8 if every else x_room}
        figure.update_xaxes(title=below, row=row, col=column + 1)
    figure.update_yaxes(
        title_text="query (destination)", col=1, title_standoff=8 if every else y_room
    )


def _label_axes(figure: Figure, grid: _Grid, axes: Axes, every: bool) -> None:
    for axis, labels in (("x", axes.x), ("y", axes.y)):
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
    figure.update_xaxes(tickangle=-90, range=[-0.5, len(axes.x) - 0.5])
    figure.update_yaxes(range=[len(axes.y) - 0.5, -0.5])  # the first query at the top


def _colour(figure: Figure, scale: Scale, unit: float) -> None:
    ticks = np.linspace(scale.low, scale.high, 6 if scale.low == 0 else 5)
    figure.update_layout(
        coloraxis={
            "colorscale": list(scale.colours),
            "cmin": scale.low * unit,
            "cmax": scale.high * unit,
            "colorbar": {
                "title": {"text": scale.what},
                "thickness": 14,
                "tickvals": (ticks * unit).tolist(),
                "ticktext": [f"{tick:.3g}" for tick in ticks],
            },
        }
    )


def _label_some(figure: Figure, axis: str, labels: list[str], grid: _Grid) -> None:
    """Label evenly spaced positions along the outer panels."""
    rows, columns, n = grid
    wanted = _LABELS if n == 1 else 16
    step = max(1, math.ceil(len(labels) / wanted))
    panels, notes = range(columns) if axis == "x" else range(rows), []
    for panel in panels:
        number = grid.lowest(panel) if axis == "x" else panel * columns
        suffix = "" if number == 0 else str(number + 1)
        for position in range(0, len(labels), step):
            place: dict[str, Any] = (
                {"x": position, "xref": f"x{suffix}", "y": 0, "yref": f"y{suffix} domain"}
                | {"textangle": -90, "yanchor": "top", "xanchor": "center"}
                if axis == "x"
                else {"y": position, "yref": f"y{suffix}", "x": 0, "xref": f"x{suffix} domain"}
                | {"xanchor": "right", "yanchor": "middle"}
            )
            notes.append({"text": labels[position], "showarrow": False, **place})
    figure.update_layout(annotations=[*figure.layout.annotations, *notes])  # one by one is slow
