"""The drawings of a pruning; imports plotly."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from plotly import graph_objects

from .curve import SECOND
from .survivors import ALL

VALUES = {
    "delta_loss_nats": ("Δ loss (nats/token)", ("delta_low", "delta_high")),
    "perplexity_ratio": ("perplexity ratio", ("ratio_low", "ratio_high")),
    "kl_nats": ("KL(whole ‖ pruned) (nats/token)", ("kl_low", "kl_high")),
    f"{SECOND}delta_loss_nats": (
        "Δ loss at second copies (nats/token)", (f"{SECOND}delta_low", f"{SECOND}delta_high"),
    ),
}  # fmt: skip
"""By column of the curve: its title, and the columns of its interval."""

Row = Mapping[Any, Any]

# told apart by every colour vision (Okabe and Ito 2008), and by their marks
_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c8c8c",
)  # fmt: skip
_MARKS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star", "triangle-down")


def draw_curve(curve: pd.DataFrame, value: str, title: str | None) -> graph_objects.Figure:
    """Loss against heads removed, one line per method, with intervals.

    Of methods with several draws the line is their mean, and the bars go from the least draw to the
    largest.
    """
    name, ends = VALUES[value]
    records = curve.to_dict("records")
    start = [[0.0, *[records[0][value]] * 3]]
    groups: dict[str, list[Row]] = {}
    for row in records[1:]:
        groups.setdefault(row["method"], []).append(row)
    figure = graph_objects.Figure()
    for place, (method, own) in enumerate(groups.items()):
        points, what = _line(own, value, ends)
        x, y, low, high = np.concatenate([start, points]).T
        told = f"{method} (mean; bars: all draws)" if what == "draws" else method
        figure.add_scatter(
            x=x, y=y, name=html.escape(told, quote=False), mode="lines+markers",
            line={"color": _COLOURS[place % 8]},
            marker={"symbol": _MARKS[place % 8], "size": 9},
            error_y={
                "type": "data", "symmetric": False, "array": high - y, "arrayminus": y - low,
                "thickness": 1.2, "width": 4,
            },
            customdata=np.stack([low, high], axis=1),
            hovertemplate=f"%{{x:.0f}} heads: %{{y:.4f}}<br>{what} "
            "[%{customdata[0]:.4f}, %{customdata[1]:.4f}]",
        )  # fmt: skip
    figure.update_layout(
        title={"text": html.escape(title or f"{name} without heads", quote=False), "x": 0.5},
        template="plotly_white", xaxis_title="heads removed", yaxis_title=name, width=820,
        height=480, font={"family": "monospace", "size": 11},
    )  # fmt: skip
    return figure


def _line(own: Sequence[Row], value: str, ends: tuple[str, str]) -> tuple[np.ndarray, str]:
    """Heads removed, value and ends of each cut, [cut, 4]; and what the ends are."""
    groups: dict[int, list[Row]] = {}
    for row in own:
        groups.setdefault(row["n_removed"], []).append(row)
    points, what = [], "interval"
    for n, rows in sorted(groups.items()):
        values = [row[value] for row in rows]
        low, high = (rows[0][end] for end in ends)
        if len(rows) > 1:
            low, high, what = min(values), max(values), "draws"
        points.append((n, sum(values) / len(values), low, high))
    return np.array(points, float), what


def draw_survivors(found: pd.DataFrame, title: str | None) -> graph_objects.Figure:
    """Heads of each kind that are left, against heads removed, for one method."""
    records = found.to_dict("records")
    method, removed = records[0]["method"], [0.0]
    bars: dict[str, list[float]] = {}
    for row in records:
        if row["kind"] == ALL:
            removed.append(row["n_removed"])
            continue
        bars.setdefault(row["kind"], [row["n_labelled"]]).append(row["n_surviving"])
    figure = graph_objects.Figure()
    for place, (kind, heights) in enumerate(bars.items()):
        figure.add_bar(
            x=[f"{n:g}" for n in removed], y=heights, name=html.escape(kind, quote=False),
            marker={"color": _COLOURS[place % 8], "pattern": {"shape": _SHAPES[place // 8 % 4]}},
        )  # fmt: skip
    shown = title or f"kinds of heads that {method} keeps (heads of several kinds count for each)"
    figure.update_layout(
        barmode="stack", title={"text": html.escape(shown, quote=False), "x": 0.5},
        template="plotly_white", xaxis={"title": "heads removed", "type": "category"},
        yaxis_title="labels of heads that are left", width=820, height=480,
        font={"family": "monospace", "size": 11},
    )  # fmt: skip
    return figure


_SHAPES = ("", "/", ".", "x")
