"""The drawing behind `AblationSweep.plot`; imports plotly."""

from __future__ import annotations

import html
from typing import Any

import numpy as np
import pandas as pd
from plotly import graph_objects

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
_CELL = 28  # pixels


def draw(rows: pd.DataFrame, value: str, title: str | None) -> graph_objects.Figure:
    """Layers down (the first at the top), heads across; heads that were not removed stay blank.

    Args:
        rows: one row per head of one method and one sort of documents.
        value: one of `VALUES`.
        title: of the figure; None says what is shown.
    """
    name, low, high, middle = VALUES[value]
    place = rows["layer"].to_numpy(int), rows["head"].to_numpy(int)
    layers, heads = (int(numbers.max()) + 1 for numbers in place)
    cells = np.full((layers, heads, 3), np.nan)
    cells[place] = rows[[value, low, high]].to_numpy(float)
    first = rows.iloc[0].to_dict()
    where = "second copies" if first["documents"] == "repeated" else first["documents"]
    shown = title or f"{name} without each head: {first['method']} ablation, {where}"
    hover = (
        "<br>[%{customdata[0]:.4f}, %{customdata[1]:.4f}]"
        if np.isfinite(cells[..., 1]).any()
        else ""
    )
    trace = graph_objects.Heatmap(
        z=cells[..., 0],
        customdata=cells[..., 1:],
        coloraxis="coloraxis",
        hoverongaps=False,
        hovertemplate=f"L%{{y}}H%{{x}}<br>{name} %{{z:.4f}}{hover}<extra></extra>",
    )
    colours = _colours(cells[..., 0], middle)
    beyond = float(np.nanmax(cells[..., 0])) > colours["cmax"]
    legend = f"{name}<br>last colour: {colours['cmax']:.2g} or more" if beyond else name
    figure = graph_objects.Figure(trace)
    figure.update_layout(
        # plotly reads tags in its texts
        title={"text": html.escape(shown, quote=False), "x": 0.5, "font": {"size": 13}},
        template="plotly_white",
        plot_bgcolor=_BLANK,
        width=max(640, 240 + _CELL * heads),
        height=max(320, 160 + _CELL * layers),
        font={"family": "monospace", "size": 11},
        coloraxis={**colours, "colorbar": {"title": {"text": legend}}},
    )
    figure.update_xaxes(title_text="head", dtick=1, showgrid=False, zeroline=False)
    figure.update_yaxes(
        title_text="layer", dtick=1, showgrid=False, zeroline=False, range=[layers - 0.5, -0.5]
    )
    return figure


def _colours(values: np.ndarray, middle: float | None) -> dict[str, Any]:
    """A scale around no effect that most heads can be told apart on.

    A few heads cost many times what the others do: colours end at the 98th percentile.
    """
    found = values[np.isfinite(values)]
    if middle is None:
        return {"colorscale": _RISING, "cmin": 0, "cmax": float(np.quantile(found, 0.98)) or 1.0}
    reach = float(np.quantile(np.abs(found - middle), 0.98)) or 1.0
    return {"colorscale": _DIVERGING, "cmin": middle - reach, "cmax": middle + reach}
