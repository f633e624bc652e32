"""The rows of an induction trace: links with intervals, and the verdicts that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ..atlas import HeadAtlas
from ..bootstrap import Sample, halves, simultaneous_bounds
from ..weights.compose import composition
from .chain import DECIDES, rows_of
from .sweep import Progress

TRACED = ("previous_token", "induction")
PATHS = ("mass", "mass_through_keys", "mass_through_queries")
COLUMNS = ["site", "layer", "head", "link", "target", "value", "low", "high", "holds"]


@dataclass(frozen=True, eq=False)
class Link:
    """One measured link: its values per document, and each document's share of the rows."""

    head: HeadId
    link: str
    target: str
    values: Float[np.ndarray, " document"]
    weights: Float[np.ndarray, " document"]

    @property
    def value(self) -> float:
        """The mean over all measured rows."""
        return float(self.weights @ self.values)

    @property
    def influence(self) -> Float[np.ndarray, " document"]:
        """Influence of each document on it."""
        return len(self.values) * self.weights * (self.values - self.value)


def feeds(head: HeadId, other: HeadId) -> bool:
    """Whether one head's output can reach the other's keys: a later layer of the same stack.

    Example:
        >>> feeds(HeadId("", 0, 3), HeadId("", 1, 0)), feeds(HeadId("", 1, 3), HeadId("", 1, 0))
        (True, False)
    """
    return head.site == other.site and head.layer < other.layer


def split_roles(atlas: HeadAtlas) -> tuple[dict[str, tuple[HeadId, ...]], tuple[HeadId, ...]]:
    """The heads to test, by role, and the previous-token heads before no induction head at all."""
    first, last = (tuple(sorted(atlas.heads(name))) for name in TRACED)
    able = tuple(head for head in first if any(feeds(head, other) for other in last))
    return {TRACED[0]: able, TRACED[1]: last}, tuple(head for head in first if head not in able)


def pattern_rows(atlas: HeadAtlas, heads: Sequence[HeadId]) -> list[dict[str, Any]]:
    """The weight that each head puts on the previous token, as the atlas scored it."""
    rows = atlas.rows.loc[atlas.rows["kind"] == "previous_token"].to_dict("records")
    score = {HeadId(row["site"], row["layer"], row["head"]): row["score"] for row in rows}
    return [_row(head, "previous_mass", "", score[head]) for head in heads]


def composition_rows(
    model: Any, roles: Mapping[str, tuple[HeadId, ...]], progress: Progress | None
) -> tuple[list[dict[str, Any]], str]:
    """K-composition of every pair, or NaN with the reason why there is none."""
    pairs = [(a, b) for a in roles["previous_token"] for b in roles["induction"] if feeds(a, b)]
    if not pairs:
        return [], ""
    try:
        found = composition(model, kinds="K", up_to_norms=True, progress=progress)
    except InputError as error:
        rows = [_row(a, "k_composition", str(b), math.nan) for a, b in pairs]
        return rows, f"K-composition was not measured: {error}"
    place = {head: index for index, head in enumerate(found.heads)}
    scores = found["K"].score
    rows = [_row(a, "k_composition", str(b), float(scores[place[a], place[b]])) for a, b in pairs]
    return rows, " ".join(found.caveats)


def bounded_rows(links: Sequence[Link], margin: float, seed: int) -> list[dict[str, Any]]:
    """The rows of all links, with intervals that hold together."""
    if not links:
        return []
    half = halves(len(links[0].values), seed=seed)
    estimate = np.array([link.value for link in links])
    influence = np.stack([link.influence for link in links], axis=1)
    bounds = simultaneous_bounds([Sample("causal", estimate, influence, half)], seed=seed)
    rows = []
    for link, low, high in zip(links, bounds.low, bounds.high, strict=True):
        least = margin if link.link in PATHS else 0.0
        decided = link.link != "induction_mass"
        row = _row(link.head, link.link, link.target, link.value)
        rows.append(
            row | {"low": float(low), "high": float(high),
                   "holds": bool(low > least) if decided else None}
        )  # fmt: skip
    return rows


def _row(head: HeadId, link: str, target: str, value: float) -> dict[str, Any]:
    return {
        "site": head.site, "layer": head.layer, "head": head.head, "link": link,
        "target": target, "value": float(value), "low": math.nan, "high": math.nan, "holds": None,
    }  # fmt: skip


def _deciding(rows: pd.DataFrame, role: str) -> pd.DataFrame:
    return rows.loc[rows["link"] == DECIDES[role]]


def verdicts(
    rows: pd.DataFrame, roles: Mapping[str, tuple[HeadId, ...]], atlas: HeadAtlas
) -> pd.DataFrame:
    """The tested heads, each with its evidence and the link that decides."""
    graded = atlas.rows.set_index(["site", "layer", "head", "kind"])["grade"]
    found = []
    for role in TRACED:
        deciding = _deciding(rows, role)
        for head in roles[role]:
            own = rows_of(deciding, head)
            best = own.sort_values("value", ascending=False).head(1).to_dict("records")
            held = own.loc[own["holds"] == True]  # noqa: E712  (None where nothing is decided)
            found.append(
                {
                    "site": head.site, "layer": head.layer, "head": head.head, "role": role,
                    "grade": str(graded[head.site, head.layer, head.head, role]),
                    "evidence": "pattern + causal" if len(held) else "pattern only",
                    "target": best[0]["target"] if best else "",
                    "value": best[0]["value"] if best else math.nan,
                    "low": best[0]["low"] if best else math.nan,
                    "high": best[0]["high"] if best else math.nan,
                }
            )  # fmt: skip
    columns = [
        "site", "layer", "head", "role", "grade", "evidence", "target", "value", "low", "high",
    ]  # fmt: skip
    return pd.DataFrame(found, columns=columns)


def best_chain(rows: pd.DataFrame) -> tuple[HeadId, HeadId] | None:
    """The induction head that matters most among those fed, and the head that feeds it most."""
    loss = _deciding(rows, "induction").to_dict("records")
    rise = {str(HeadId(r["site"], r["layer"], r["head"])): r["value"] for r in loss if r["holds"]}
    pairs = [
        row
        for row in _deciding(rows, "previous_token").to_dict("records")
        if row["holds"] and row["target"] in rise
    ]
    if not pairs:
        return None
    best = max(pairs, key=lambda row: (rise[row["target"]], row["value"]))
    return HeadId(best["site"], best["layer"], best["head"]), HeadId.parse(best["target"])
