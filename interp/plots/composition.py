"""Who reads whom: heads as a graph in layers, with the strongest pairs as its edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from plotly.graph_objects import Figure

from ..errors import InputError, shown
from ..heads import HeadId
from ..plain_numbers import as_index
from .style import DASHES, Theme, escaped, lay_out, named, theme_of

_COLUMN, _ROW = 110, 34  # pixels from one layer, or head, to the next
_MARGIN = (60, 150, 76, 50)
_LEAST = (640, 320)
_WIDEST = 6.0  # pixels of the strongest edge
_STEPS = 16  # points of a curve
_MOST_EDGES = 500


@dataclass(frozen=True)
class _Edge:
    source: HeadId
    target: HeadId
    kind: str
    value: float
    told: str


def plot_composition(
    table: Any,
    *,
    top: int = 30,
    kind: str | None = None,
    value: str | None = None,
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw the strongest pairs of heads as a graph, layers from left to right.

    An edge is as wide as its pair is strong. It leads from the head that writes to the one that
    reads it; its colour and dash tell through what (Q, K or V). Only heads with an edge are drawn.
    Hover on the middle of an edge tells its numbers.

    Args:
        table: a DataFrame with the columns source and target (`L1H3`), `z` or `score`, and where
            there are several `kind`; or something with such a `table()`, as a `Composition`.
        top: how many pairs, the strongest first.
        kind: pairs of this kind alone.
        value: the column that ranks pairs and gives edges their width; None: `z`, else `score`.
        title: of the figure; None says what is shown.
        theme: `light` or `dark`.

    Raises:
        InputError: columns that are missing, addresses that are none, a source whose layer is not
            earlier, numbers that are not, no pair at all, or no whole number from 1 to 500.

    Example:
        >>> rows = [{"source": "L1H3", "target": "L2H0", "kind": "K", "z": 9.0}]
        >>> figure = plot_composition(pd.DataFrame(rows))
        >>> [text for trace in figure.data for text in trace.text or ()]
        ['L1H3', 'L2H0']

    Reference:
        Elhage et al. 2021 (composition of heads).
    """
    chosen, count = theme_of(theme), as_index(top)
    if count is None or not 1 <= count <= _MOST_EDGES:
        raise InputError(f"top is a whole number from 1 to {_MOST_EDGES}; got {shown(top)}.")
    rows, column = _read(table, count, kind, value)
    edges = [_edge(row, column) for row in rows.to_dict("records")]
    places = _places(edges)
    figure = Figure()
    _draw_edges(figure, edges, places, chosen)
    _draw_heads(figure, places, chosen)
    said = f"who reads whom: the {len(edges)} pairs of largest {column}"
    _finish(figure, places, said if title is None else title, chosen)
    return figure


def _read(table: Any, top: int, kind: str | None, value: str | None) -> tuple[pd.DataFrame, str]:
    """The strongest rows, and the column that says so."""
    if not isinstance(table, pd.DataFrame):
        make = getattr(table, "table", None)
        if not callable(make):
            raise InputError(
                "composition is drawn from a DataFrame with source, target and z, or what "
                f"composition(model) gives; got {type(table).__name__}."
            )
        table = make(kind=kind, top=None)
    rows: pd.DataFrame = table
    column = value if value is not None else next((c for c in ("z", "score") if c in rows), "z")
    missing = [one for one in ("source", "target", column) if one not in rows]
    if missing:
        raise InputError(f"the table has no column {' and no '.join(map(shown, missing))}.")
    if kind is not None:
        if "kind" not in rows:
            raise InputError(f"the table has no column kind to choose {shown(kind)} by.")
        rows = rows.loc[rows["kind"] == kind]
    numbers = np.array(pd.to_numeric(rows[column], errors="coerce"), float)
    order = np.argsort(-np.where(np.isfinite(numbers), numbers, -np.inf), kind="stable")
    order = order[np.isfinite(numbers[order])][:top]
    if not len(order):
        raise InputError(f"no pair has a finite {column}, so there is nothing to draw.")
    return rows.iloc[order].reset_index(drop=True), column


def _edge(row: dict[Any, Any], column: str) -> _Edge:
    source, target = HeadId.parse(row["source"]), HeadId.parse(row["target"])
    if source.layer >= target.layer:
        raise InputError(
            f"{source} writes after {target} has read: a source stands in an earlier layer."
        )
    kind = str(row.get("kind", ""))
    numbers = [
        f"{name} {float(row[name]):.4g}" for name in dict.fromkeys((column, "score", "z", "q"))
        if isinstance(row.get(name), int | float | np.number)
    ]  # fmt: skip
    told = f"{source} → {target}" + (f" through {named(kind)}" if kind else "")
    return _Edge(source, target, kind, float(row[column]), "<br>".join(
        [told, *map(escaped, numbers)])
    )  # fmt: skip


def _places(edges: list[_Edge]) -> dict[HeadId, tuple[float, float]]:
    """Where each head stands: layers in columns, heads ordered so that edges cross little."""
    heads = sorted({head for edge in edges for head in (edge.source, edge.target)})
    layers = sorted({head.layer for head in heads})
    columns = {layer: [head for head in heads if head.layer == layer] for layer in layers}
    near: dict[HeadId, list[HeadId]] = {head: [] for head in heads}
    for edge in edges:
        near[edge.source].append(edge.target)
        near[edge.target].append(edge.source)
    height = dict[HeadId, float]()
    for layer in layers:
        height.update(_spread(columns[layer]))
    for sweep in range(4):  # each layer by the mean height of what it is joined to
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            mean = {
                head: float(np.mean([height[o] for o in near[head]])) for head in columns[layer]
            }
            columns[layer].sort(key=lambda head: (mean[head], head))
            height.update(_spread(columns[layer]))
    return {head: (float(layers.index(head.layer)), height[head]) for head in heads}


def _spread(column: list[HeadId]) -> dict[HeadId, float]:
    """Heads of a layer below one another around height 0."""
    return {head: place - (len(column) - 1) / 2 for place, head in enumerate(column)}


def _draw_edges(
    figure: Figure, edges: list[_Edge], places: dict[HeadId, tuple[float, float]], theme: Theme
) -> None:
    values = np.array([edge.value for edge in edges])
    low, high = float(values.min()), float(values.max())
    kinds = list(dict.fromkeys(edge.kind for edge in sorted(edges, key=lambda edge: edge.kind)))
    for place, kind in enumerate(kinds):
        colour = theme.colours[place % len(theme.colours)]
        own = [edge for edge in edges if edge.kind == kind]
        dash = DASHES[place % len(DASHES)]
        figure.add_scatter(  # for the legend alone: edges differ in width
            x=[None], y=[None], mode="lines", line={"color": colour, "width": 3, "dash": dash},
            name=named(kind, 40), legendgroup=str(place), showlegend=bool(kind),
        )  # fmt: skip
        for edge in own[::-1]:  # the strongest on top
            x, y = _curve(places[edge.source], places[edge.target])
            share = (edge.value - low) / (high - low) if high > low else 1.0
            figure.add_scatter(
                x=x, y=y, mode="lines", hoverinfo="skip", opacity=0.6 + 0.35 * share,
                line={"color": colour, "width": 1 + (_WIDEST - 1) * share, "dash": dash},
                legendgroup=str(place), showlegend=False,
            )  # fmt: skip
        middles = np.array([
            [part[_STEPS // 2] for part in _curve(places[edge.source], places[edge.target])]
            for edge in own
        ])  # fmt: skip
        figure.add_scatter(
            x=middles[:, 0], y=middles[:, 1], mode="markers", legendgroup=str(place),
            marker={"size": 12, "color": colour, "opacity": 0}, showlegend=False,
            hovertemplate="%{customdata}<extra></extra>", customdata=[edge.told for edge in own],
        )  # fmt: skip


def _curve(start: tuple[float, float], end: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Points of an edge that leaves and arrives level, bent around the layers it passes over."""
    t = np.linspace(0, 1, _STEPS + 1)
    smooth = t * t * (3 - 2 * t)
    passed = end[0] - start[0] - 1
    # so that it does not run along behind heads of equal height
    bend = np.where(passed > 0, 0.5, 0.0) * np.sin(np.pi * t)
    return start[0] + (end[0] - start[0]) * t, start[1] + (end[1] - start[1]) * smooth + bend


def _draw_heads(figure: Figure, places: dict[HeadId, tuple[float, float]], theme: Theme) -> None:
    x, y = zip(*places.values(), strict=True)
    figure.add_scatter(  # what hover finds; shapes have none
        x=x, y=y, mode="markers", text=[str(head) for head in places], showlegend=False,
        marker={"size": 20, "opacity": 0}, hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    for head, (across, down) in places.items():
        half = 0.055 * len(str(head)) / 2 + 0.06
        figure.add_shape(
            type="rect", x0=across - half, x1=across + half, y0=down - 0.3, y1=down + 0.3,
            fillcolor=theme.paper, line={"color": theme.text, "width": 1}, layer="above",
            label={"text": str(head), "font": {"size": 10, "color": theme.text}},
        )  # fmt: skip


def _finish(
    figure: Figure, places: dict[HeadId, tuple[float, float]], title: str, theme: Theme
) -> None:
    layers = list(dict.fromkeys(head.layer for head in places))
    tallest = max(abs(y) for _, y in places.values())
    left, right, top, bottom = _MARGIN
    wide = max(_LEAST[0], left + right + _COLUMN * len(layers))
    high = max(_LEAST[1], top + bottom + int(_ROW * (2 * tallest + 2)))
    lay_out(figure, theme, title, size=(wide, high), margin=_MARGIN)
    figure.update_xaxes(
        tickmode="array", tickvals=list(range(len(layers))), ticktext=[str(n) for n in layers],
        title_text="layer", range=[-0.6, len(layers) - 0.4], showgrid=False, zeroline=False,
    )  # fmt: skip
    figure.update_yaxes(visible=False, range=[tallest + 1, -tallest - 1])
    figure.update_layout(legend={"title": {"text": "through"}, "x": 1.02, "y": 1})
