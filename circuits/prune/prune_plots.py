"""The drawings of a pruning; imports plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from plotly.graph_objects import Figure

from ...interp.heads import HeadId
from ...interp.plots.lines import Line, lay_out_axes, plot_lines
from ...interp.plots.style import named, theme_of
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

_MOST_POINTS = 2**17  # of all trajectories; each is some 35 bytes of the page
_SHAPES = ("", "/", ".", "x")


def draw_curve(curve: pd.DataFrame, value: str, title: str | None, theme: str = "light") -> Figure:
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
    lines = []
    for method, own in groups.items():
        points, what = _points(own, value, ends)
        x, y, low, high = np.concatenate([start, points]).T
        shown = f"{method} (mean; bars: all draws)" if what == "draws" else method
        told = f"%{{x:.0f}} heads: %{{y:.4f}}<br>{what} "
        told += "[%{customdata[0]:.4f}, %{customdata[1]:.4f}]"
        lines.append(Line(shown, x, y, low, high, told))
    shown = f"{name} without heads" if title is None else title
    return plot_lines(lines, x="heads removed", y=name, title=shown, theme=theme_of(theme))


def _points(own: Sequence[Row], value: str, ends: tuple[str, str]) -> tuple[np.ndarray, str]:
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


def draw_survivors(found: pd.DataFrame, title: str | None, theme: str = "light") -> Figure:
    """Heads of each kind that are left, against heads removed, for one method."""
    records = found.to_dict("records")
    method, removed = records[0]["method"], [0.0]
    bars: dict[str, list[float]] = {}
    for row in records:
        if row["kind"] == ALL:
            removed.append(row["n_removed"])
            continue
        bars.setdefault(row["kind"], [row["n_labelled"]]).append(row["n_surviving"])
    figure, chosen = Figure(), theme_of(theme)
    for place, (kind, heights) in enumerate(bars.items()):
        figure.add_bar(
            x=[f"{n:g}" for n in removed], y=heights, name=named(kind, 40), showlegend=True,
            marker={
                "color": chosen.colours[place % len(chosen.colours)],
                "pattern": {"shape": _SHAPES[place // len(chosen.colours) % len(_SHAPES)]},
                "line": {"width": 0},
            },
        )  # fmt: skip
    said = f"kinds of heads that {method} keeps (heads of several kinds count for each)"
    shown = said if title is None else title
    axes = {"x": "heads removed", "y": "labels of heads that are left"}
    lay_out_axes(figure, **axes, title=shown, theme=chosen)
    figure.update_layout(barmode="stack", xaxis_type="category")
    return figure


def draw_trajectories(
    trajectory: pd.DataFrame, kept: Mapping[HeadId, bool], title: str | None, theme: str = "light"
) -> Figure:
    """P(open) of every head along the training, in one colour those it keeps, in another the rest.

    Of very many heads fewer of the recorded updates are drawn, the first and the last among them.

    Args:
        trajectory: as `GateResult.trajectory`.
        kept: whether each head is kept, in the table's order of heads.
        title: of the figure; None says what is shown.
        theme: `light` or `dark`.
    """
    updates = trajectory["update"].drop_duplicates().to_numpy(float)
    values = trajectory["p_open"].to_numpy(float).reshape(len(updates), len(kept))
    most = max(2, _MOST_POINTS // len(kept))
    if len(updates) > most:
        some = np.unique(np.linspace(0, len(updates) - 1, most).round().astype(int))
        updates, values = updates[some], values[some]
    chosen, figure = theme_of(theme), Figure()
    faint = max(0.3, min(0.9, 40 / len(kept)))
    for keep, what, dash in ((False, "cut", "dot"), (True, "kept", "solid")):
        own = [place for place, one in enumerate(kept.values()) if one is keep]
        if not own:
            continue
        heads = [*kept]
        # one trace for all: a missing value lifts the pen between heads
        lifted = np.full((len(own), 1), np.nan)
        figure.add_scatter(
            x=np.concatenate([np.tile(updates, (len(own), 1)), lifted], axis=1).ravel(),
            y=np.concatenate([values[:, own].T, lifted], axis=1).ravel(),
            customdata=np.repeat([str(heads[place]) for place in own], len(updates) + 1),
            mode="lines", name=f"{what} ({len(own)})", showlegend=True, opacity=faint,
            line={"color": chosen.colours[0 if keep else 1], "dash": dash, "width": 1.5},
            hovertemplate="%{customdata}<br>update %{x}: P(open) %{y:.3f}<extra></extra>",
        )  # fmt: skip
    shown = "how likely each head's gate is open" if title is None else title
    lay_out_axes(figure, x="update", y="P(open)", title=shown, theme=chosen)
    figure.update_yaxes(range=[-0.02, 1.02])
    return figure
