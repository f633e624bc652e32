"""When an effect is evidence: the interval on the side of harm, and a head that stands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ..bootstrap import Sample, halves, simultaneous_bounds
from ..weights.null import false_discovery_q
from .layer_trend import RESOLUTION, layer_trend, rank_p
from .sweep import Sweep

ADDRESS = ["site", "layer", "head"]
"""Columns that name a head."""

COLUMNS = (
    *ADDRESS, "kind", "behaviour", "ablation", "base", "effect", "low", "high", "layer_effect",
    "standing", "p", "q", "n", "reference", "controlled", "evidence",
)  # fmt: skip
"""Columns of the rows of `CausalEffects`."""


@dataclass(frozen=True)
class CausalRule:
    """When an effect is evidence.

    Args:
        level: simultaneous coverage of the intervals of one ablation.
        q: false-discovery rate among the heads of a kind up to which one stands out.
        margin: harm that the whole interval must exceed, in the behaviour's unit; never less than
            1e-6, below which float32 is rounding.
        resamples: bootstrap draws.

    Raises:
        InputError: a number out of range.
    """

    level: float = 0.95
    q: float = 0.05
    margin: float = 0.0
    resamples: int = 1000

    def __post_init__(self) -> None:
        if not (0 < self.level < 1 and 0 < self.q < 1 and self.margin >= 0):
            raise InputError(
                "a causal rule needs 0 < level < 1, 0 < q < 1 and margin ≥ 0; got level "
                f"{self.level}, q {self.q}, margin {self.margin}."
            )
        if self.resamples < 100:
            raise InputError(f"at least 100 resamples are needed; got {self.resamples}.")


@dataclass(frozen=True, eq=False)
class Judged:
    """Labelled heads of one kind on one sweep.

    Args:
        kind: the kind's name.
        behaviour: name of what was measured.
        documents: name of the documents, another for every sweep.
        sweep: the sweep.
        own: all heads that have the label.
        feeding: heads labelled as feeding this kind.
        shown: those of `own` that are asked for.
        unit: what each document of the sweep counts with in the bootstrap; None: itself.
    """

    kind: str
    behaviour: str
    documents: str
    sweep: Sweep
    own: tuple[HeadId, ...]
    feeding: frozenset[HeadId]
    shown: tuple[HeadId, ...]
    unit: Int[np.ndarray, " document"] | None = None

    def places(self, heads: Sequence[HeadId]) -> list[int]:
        """Where heads stand in the sweep."""
        return [self.sweep.heads.index(head) for head in heads]

    def sample(self, ablation: str, seed: int) -> Sample:
        """The effects of the heads that are shown, with the influence of each unit on them."""
        shown = self.places(self.shown)
        influence = by_unit(self.sweep.influence(self.behaviour, ablation)[:, shown], self.unit)
        estimate = self.sweep.effect(self.behaviour, ablation)[shown]
        return Sample(self.documents, estimate, influence, halves(len(influence), seed=seed))


def by_unit(
    influence: Float[np.ndarray, "document head"], unit: Int[np.ndarray, " document"] | None
) -> Float[np.ndarray, "unit head"]:
    """Influence of whole units, whose documents are resampled together: U / D · Σ over a unit.

    Example:
        >>> by_unit(np.array([[1.0], [2.0], [-3.0]]), np.array([0, 0, 1])).tolist()
        [[2.0], [-2.0]]
    """
    if unit is None:
        return influence
    total = np.zeros((int(unit.max()) + 1, influence.shape[1]))
    np.add.at(total, unit, influence)
    return total * (len(total) / len(influence))


def evidence_rows(
    tested: Sequence[Judged], rule: CausalRule, ablations: Sequence[str], seed: int
) -> pd.DataFrame:
    """One row per head × kind × ablation, ordered by head, with the verdict of mean ablation."""
    rows = [row for ablation in ablations for row in _of_ablation(tested, ablation, rule, seed)]

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return (row["kind"], *(row[column] for column in ADDRESS))

    verdicts = {key(row): row["evidence"] for row in rows if row["ablation"] == "mean"}
    for row in rows:
        row["evidence"] = verdicts[key(row)]
    return pd.DataFrame(rows, columns=[*COLUMNS]).sort_values(
        ADDRESS, kind="stable", ignore_index=True
    )


def _of_ablation(
    tested: Sequence[Judged], ablation: str, rule: CausalRule, seed: int
) -> list[dict[str, Any]]:
    """The rows of one way to remove heads; its intervals hold together."""
    if not tested:
        return []
    samples = [one.sample(ablation, seed) for one in tested]
    bounds = simultaneous_bounds(samples, level=rule.level, resamples=rule.resamples, seed=seed)
    rows, start = [], 0
    for one in tested:
        rows += _of_kind(one, ablation, bounds.low[start:], bounds.high[start:], rule)
        start += len(one.shown)
    return rows


@dataclass(frozen=True, eq=False)
class _Standings:
    """Where each head stands among those that are no reference to themselves."""

    layer_effect: Float[np.ndarray, " head"]
    standing: Float[np.ndarray, " head"]
    p: Float[np.ndarray, " head"]
    q: Float[np.ndarray, " head"]
    reference: int
    controlled: bool

    def stands_out(self, head: int, rule: CausalRule) -> bool:
        """Whether few enough reference heads stand out as far: none, where they are too few."""
        if self.controlled:
            return bool(self.q[head] <= rule.q)
        return bool(self.p[head] <= 1 / (1 + self.reference))


def _standings(one: Judged, effect: Float[np.ndarray, " head"], rule: CausalRule) -> _Standings:
    labelled = one.places(one.own)
    reference = np.ones(len(effect), dtype=bool)
    reference[labelled] = False
    reference[one.places(sorted(one.feeding))] = False
    trend = layer_trend(effect, np.array([head.layer for head in one.sweep.heads]), reference)
    standing, q = trend.standing(effect), np.full(len(effect), np.nan)
    p = rank_p(standing, reference)
    q[labelled] = false_discovery_q(p[labelled])
    fewest = int(reference.sum())
    # the least q that a head's rank among so few can have, were it alone at the top
    controlled = len(labelled) / (1 + fewest) <= rule.q
    return _Standings(trend.centre, standing, p, q, fewest, controlled)


def _of_kind(
    one: Judged, ablation: str, low: np.ndarray, high: np.ndarray, rule: CausalRule
) -> list[dict[str, Any]]:
    name, sweep = one.behaviour, one.sweep
    effect = sweep.effect(name, ablation)
    stand = _standings(one, effect, rule)
    place = sweep.behaviours.index(name)
    base, n = float(sweep.weights(name) @ sweep.base[place]), int(sweep.n[place].sum())
    rows = []
    for index, head in enumerate(one.places(one.shown)):
        harms = low[index] > max(rule.margin, RESOLUTION)
        holds = bool(harms and stand.stands_out(head, rule))
        address = sweep.heads[head]
        rows.append(
            {
                "site": address.site, "layer": address.layer, "head": address.head,
                "kind": one.kind, "behaviour": name, "ablation": ablation, "base": base,
                "effect": float(effect[head]), "low": float(low[index]),
                "high": float(high[index]), "layer_effect": float(stand.layer_effect[head]),
                "standing": float(stand.standing[head]), "p": float(stand.p[head]),
                "q": float(stand.q[head]), "n": n, "reference": stand.reference,
                "controlled": stand.controlled,
                "evidence": "pattern + causal" if holds else "pattern only",
            }
        )  # fmt: skip
    return rows
