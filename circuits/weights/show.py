"""Composition on a terminal: the strongest pairs, in 80 columns."""

from __future__ import annotations

import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .composition import Composition
from .null import P_RESOLUTION

_COLUMNS = (
    ("kind", "left"), ("source", "left"), ("target", "left"), ("KV head", "right"),
    ("score", "right"), ("expected", "right"), ("z", "right"), ("p", "right"), ("q", "right"),
)  # fmt: skip
_LEGEND = (
    "score: norm of the product over the product of norms. expected, z, p: one map turned at "
    "random against the other, spectra kept; p is approximate, and not told apart below "
    "{least:g}. q: Benjamini–Hochberg over the {n:,} pairs of a kind. KV head: of the target; "
    "heads that share it share W_K and W_V."
)


def show_composition(
    found: Composition, *, name: str, top: int = 20, by: str = "z", console: Console | None = None
) -> None:
    """Print the strongest pairs and what was left out."""
    console = console or Console()
    table = Table(
        title=f"Composition in {escape(name)}, delta {found.delta}", title_justify="left",
        title_style="bold", box=None, padding=(0, 1, 0, 0), header_style="underline",
    )  # fmt: skip
    for column, justify in _COLUMNS:
        table.add_column(column, justify="right" if justify == "right" else "left", no_wrap=True)
    for row in found.table(top=top, by=by).to_dict("records"):
        table.add_row(
            row["kind"], row["source"], row["target"], str(row["target_kv_head"]),
            f"{row['score']:.3f}", f"{row['expected']:.3f}", f"{row['z']:.1f}",
            _rate(row["p"]), _rate(row["q"]),
        )  # fmt: skip
    console.print(table)
    console.print(_LEGEND.format(n=found.n_pairs, least=P_RESOLUTION), style="dim", highlight=False)
    for caveat in found.caveats:
        console.print(escape(f"left out: {caveat}."), style="dim", highlight=False)


def _rate(value: float) -> str:
    """A p or q as far as the null resolves it.

    Example:
        >>> _rate(1e-102), _rate(0.0421), _rate(float("nan"))
        ('<0.001', '0.042', '–')
    """
    if math.isnan(value):
        return "–"
    return f"<{P_RESOLUTION:g}" if value < P_RESOLUTION else f"{value:.3f}"
