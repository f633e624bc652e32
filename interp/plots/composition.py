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
from .layered import Place, curve_of, places_of, reads
from .style import DASHES, Theme, escaped, lay_out, named, theme_of

_COLUMN, _ROW = 110, 34  # pixels from one layer, or head, to the next
_MARGIN = (60, 150, 76, 50)
_LEAST = (640, 320)
_WIDEST, _THINNEST = 6.0, 0.5  # pixels of the strongest edge, and of the weakest
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

    An edge is as wide as its pair is strong, from 0 on; values below 0 get the thinnest lines. It
    leads from the head that writes to the one that reads it; its colour and dash tell through what
    (Q, K or V). Only heads with an edge are drawn. Hover on the middle of an edge tells its
    numbers. Pairs without a value (NaN) are left out, and the figure's own title counts them.

    Args:
        table: a DataFrame with the columns source and target (`L1H3`), `z` or `score`, and where
            there are several `kind`; or something with such a `table()`, as a `Composition`.
        top: how many pairs, the strongest first.
        kind: pairs of this kind alone.
        value: the column that ranks pairs and gives edges their width; None: `z`, else `score`.
        title: of the figure; None says what is shown.
        theme: `light` or `dark`.

    Raises:
        InputError: columns that are missing, addresses that are none, a source that the target
            cannot read, values that are infinite or no numbers, no pair at all, or no whole number
            from 1 to 500.

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
    rows, column, left_out = _read(table, count, kind, value)
    edges = [_edge(row, column) for row in rows.to_dict("records")]
    places = places_of([(edge.source, edge.target) for edge in edges])
    figure = Figure()
    curves = [curve_of(places[edge.source], places[edge.target], places) for edge in edges]
    _draw_edges(figure, edges, curves, chosen)
    _draw_heads(figure, places, chosen)
    said = f"who reads whom: the {len(edges)} pairs of largest {column}"
    said += f" ({left_out} without a {column} are left out)" if left_out else ""
    tallest = max(float(np.abs(y).max()) for _, y in [*curves, *places.values()])
    _finish(figure, places, tallest, said if title is None else title, chosen)
    return figure


def _read(
    table: Any, top: int, kind: str | None, value: str | None
) -> tuple[pd.DataFrame, str, int]:
    """The strongest rows, the column that says so, and how many rows have nothing there."""
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
        known = ", ".join(map(str, dict.fromkeys(rows["kind"])))
        rows = rows.loc[rows["kind"] == kind]
        if rows.empty:
            raise InputError(f"no pair is of kind {shown(kind)}; there are {known[:400]}.")
    numbers = np.array(pd.to_numeric(rows[column], errors="coerce"), float)
    wrong = np.isinf(numbers) | (np.isnan(numbers) & rows[column].notna().to_numpy())
    if wrong.any():
        found = rows[column].tolist()[int(wrong.argmax())]
        raise InputError(
            f"the column {shown(column)} holds finite numbers, or NaN for none; got {shown(found)}."
        )
    missing_too = int(np.isnan(numbers).sum())
    order = np.argsort(-numbers, kind="stable")[: min(top, len(numbers) - missing_too)]
    if not len(order):
        raise InputError(f"no pair has a {column}, so there is nothing to draw.")
    return rows.iloc[order].assign(**{column: numbers[order]}), column, missing_too


def _edge(row: dict[Any, Any], column: str) -> _Edge:
    source, target = HeadId.parse(row["source"]), HeadId.parse(row["target"])
    if not reads(source, target):
        raise InputError(
            f"{target} cannot read {source}: a source stands before its target in the same stack "
            "(in a decoder's layer, self-attention before cross-attention), or in the encoder, "
            "which cross-attention reads."
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


def _draw_edges(
    figure: Figure,
    edges: list[_Edge],
    curves: list[tuple[np.ndarray, np.ndarray]],
    theme: Theme,
) -> None:
    most = max(edge.value for edge in edges)
    kinds = list(dict.fromkeys(edge.kind for edge in sorted(edges, key=lambda edge: edge.kind)))
    for place, kind in enumerate(kinds):
        colour = theme.colours[place % len(theme.colours)]
        own = [pair for pair in zip(edges, curves, strict=True) if pair[0].kind == kind]
        dash = DASHES[place % len(DASHES)]
        figure.add_scatter(  # for the legend alone: edges differ in width
            x=[None], y=[None], mode="lines", line={"color": colour, "width": 3, "dash": dash},
            name=named(kind, 40), legendgroup=str(place), showlegend=bool(kind),
        )  # fmt: skip
        for edge, (x, y) in own[::-1]:  # the strongest on top
            share = max(0.0, edge.value / most) if most > 0 else 0.0
            figure.add_scatter(
                x=x, y=y, mode="lines", hoverinfo="skip", opacity=0.6 + 0.35 * share,
                line={"color": colour, "width": max(_THINNEST, _WIDEST * share), "dash": dash},
                legendgroup=str(place), showlegend=False,
            )  # fmt: skip
        middles = np.array([[part[len(part) // 2] for part in curve] for _, curve in own])
        figure.add_scatter(
            x=middles[:, 0], y=middles[:, 1], mode="markers", legendgroup=str(place),
            marker={"size": 12, "color": colour, "opacity": 0}, showlegend=False,
            hovertemplate="%{customdata}<extra></extra>", customdata=[edge.told for edge, _ in own],
        )  # fmt: skip


def _draw_heads(figure: Figure, places: dict[HeadId, Place], theme: Theme) -> None:
    x, y = zip(*places.values(), strict=True)
    figure.add_scatter(  # what hover finds; shapes have none
        x=x, y=y, mode="markers", text=[str(head) for head in places], showlegend=False,
        marker={"size": 20, "opacity": 0}, hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    boxes = []
    for head, (across, down) in places.items():
        half = 0.055 * len(str(head)) / 2 + 0.06
        boxes.append({
            "type": "rect", "x0": across - half, "x1": across + half, "y0": down - 0.3,
            "y1": down + 0.3, "fillcolor": theme.paper, "layer": "above",
            "line": {"color": theme.text, "width": 1},
            "label": {"text": str(head), "font": {"size": 10, "color": theme.text}},
        })  # fmt: skip
    figure.update_layout(shapes=boxes)  # one by one they take seconds


def _finish(
    figure: Figure,
    places: dict[HeadId, Place],
    tallest: float,
    title: str,
    theme: Theme,
) -> None:
    layers = {across: _said(head) for head, (across, _) in places.items()}
    left, right, top, bottom = _MARGIN
    wide = max(_LEAST[0], left + right + _COLUMN * len(layers))
    high = max(_LEAST[1], top + bottom + int(_ROW * (2 * tallest + 2)))
    lay_out(figure, theme, title, size=(wide, high), margin=_MARGIN)
    figure.update_xaxes(
        tickmode="array", tickvals=[*layers], ticktext=[*layers.values()],
        title_text="layer", range=[-0.6, len(layers) - 0.4], showgrid=False, zeroline=False,
    )  # fmt: skip
    figure.update_yaxes(visible=False, range=[tallest + 1, -tallest - 1])
    figure.update_layout(legend={"title": {"text": "through"}, "x": 1.02, "y": 1})


def _said(head: HeadId) -> str:
    """What stands below a head's column."""
    return f"{head.site} {head.layer}".strip()
