"""From sums to grades: excess over chance, simultaneous intervals, the field's own verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from .bootstrap import Bounds, halves, simultaneous_bounds
from .excess import Excess, permuted_excess, profile_excess, uniform_excess
from .kinds import Kind
from .sums import OFFSETS, Sums

GRADES = ("none", "ambiguous", "weak", "strong")
"""From least to most."""


@dataclass(frozen=True)
class Rule:
    """When a head gets a label.

    With [low, high] the simultaneous interval of the excess: *strong* if low ≥ `strong`, *weak*
    if low > `margin`, *ambiguous* if the interval straddles the margin (more prompts would
    decide), else *none*.

    Args:
        margin: excess mass below which a label is of no practical interest.
        strong: excess mass that every value of the interval must reach for *strong*.
        level: simultaneous coverage over heads × kinds.
        resamples: bootstrap draws.

    Example:
        >>> rule = Rule()
        >>> [rule.grade(low, high) for low, high in [(.5, .6), (.12, .3), (.05, .2), (.0, .04)]]
        ['strong', 'weak', 'ambiguous', 'none']
    """

    margin: float = 0.10
    strong: float = 0.25
    level: float = 0.95
    resamples: int = 1000

    def grade(self, low: float, high: float) -> str:
        """Grade of an excess whose simultaneous interval is [low, high]."""
        if low > self.margin:
            return "strong" if low >= self.strong else "weak"
        return "ambiguous" if high > self.margin else "none"


@dataclass(frozen=True, eq=False)
class _Tested:
    """One kind on one prompt set: a family of hypotheses, one per head."""

    kind: Kind
    prompts: str
    excess: Excess
    variant: tuple[str, ...]  # per head
    bounds: dict[str, np.ndarray] = field(default_factory=dict)


def label(
    sums: Mapping[str, Sums], kinds: Sequence[Kind], rule: Rule, *, seed: int = 0
) -> pd.DataFrame:
    """Grade every head for every kind.

    Args:
        sums: by prompt set.
        kinds: kinds that were scored.
        rule: margins and levels.
        seed: seed of the halves and of the bootstrap.

    Returns:
        One row per head × kind: site, layer, head, kind, score, expected, excess, low, high, n,
        grade, legacy, evidence, details.
    """
    tested = [
        _test(kind, name, sums, seed) for kind in kinds for name in kind.prompts if name in sums
    ]
    _bound_together(tested, rule, seed)
    by_kind: dict[str, list[_Tested]] = {}
    for one in tested:
        by_kind.setdefault(one.kind.name, []).append(one)
    rows = [
        _row(group, head, sums, rule)
        for group in by_kind.values()
        for head in range(len(group[0].excess.score))
    ]
    return pd.DataFrame(rows)


def _test(kind: Kind, name: str, sums: Mapping[str, Sums], seed: int) -> _Tested:
    own = sums[name]
    half = halves(len(own.rows), seed=seed)
    if kind.candidates:
        return _test_candidates(kind, name, sums, seed)
    column = own.index(kind.name)
    build = profile_excess if kind.null == "profile" else uniform_excess
    return _Tested(kind, name, build(own, column, half), ("",) * len(own.heads))


def _test_candidates(kind: Kind, name: str, sums: Mapping[str, Sums], seed: int) -> _Tested:
    """The best variant by half A of the first set, scored on documents that did not choose it."""
    first = next(sums[prompts] for prompts in kind.prompts if prompts in sums)
    variants = [s.variant for s in first.statistics if s.kind == kind.name]
    half = halves(len(first.rows), seed=seed)
    chosen = np.argmax(
        [
            uniform_excess(first, first.index(kind.name, v), half, documents=half).excess
            for v in variants
        ],
        axis=0,
    )
    own = sums[name]
    own_half = halves(len(own.rows), seed=seed)
    scored = ~half if own is first else None
    every = [
        uniform_excess(own, own.index(kind.name, v), own_half, documents=scored) for v in variants
    ]
    heads = np.arange(len(chosen))
    whole = [uniform_excess(own, own.index(kind.name, v), own_half) for v in variants]
    excess = Excess(
        np.stack([e.score for e in every])[chosen, heads],
        np.stack([e.expected for e in every])[chosen, heads],
        np.stack([e.influence for e in every])[chosen, :, heads].T,
        np.stack([e.by_half for e in whole])[chosen, :, heads].T,
        int(max(e.n for e in every)),
    )
    return _Tested(kind, name, excess, tuple(variants[i] for i in chosen))


def _bound_together(tested: list[_Tested], rule: Rule, seed: int) -> None:
    """Intervals over all kinds and heads; sets of prompts are independent documents."""
    blocks = {id(t): (t.excess.excess, t.excess.influence) for t in tested}
    documents = max((len(i) for _, i in blocks.values()), default=0)
    estimate = np.concatenate([blocks[id(t)][0] for t in tested])
    influence = np.concatenate([_pad(blocks[id(t)][1], documents) for t in tested], axis=1)
    bounds = simultaneous_bounds(
        estimate, influence, level=rule.level, resamples=rule.resamples, seed=seed
    )
    start = 0
    for one in tested:
        part = slice(start, start + len(one.excess.score))
        one.bounds.update(
            {name: getattr(bounds, name)[part] for name in Bounds.__dataclass_fields__}
        )
        start = part.stop


def _pad(influence: np.ndarray, documents: int) -> np.ndarray:
    """Influence over `documents` documents of a set that has fewer; the mean's se is kept."""
    short = len(influence)
    if short == documents:
        return influence
    centred = influence - influence.mean(0)
    grown = centred * np.sqrt(documents * (documents - 1) / (short * (short - 1)))
    return np.concatenate([grown, np.zeros((documents - short, influence.shape[1]))])


def _row(group: list[_Tested], head: int, sums: Mapping[str, Sums], rule: Rule) -> dict[str, Any]:
    first = group[0]
    kind, own = first.kind, sums[first.prompts]
    address = own.heads[head]
    numbers = [_numbers(one, head, rule) for one in group]
    grade = min((n["grade"] for n in numbers), key=GRADES.index)
    details: dict[str, Any] = {"prompts": first.prompts, "p": numbers[0]["p"]}
    details["p_family"] = numbers[0]["p_family"]
    details["halves"] = [float(x) for x in first.excess.by_half[:, head]]
    if kind.candidates:
        details["variant"] = first.variant[head]
    for companion in (s.variant for s in own.statistics if s.kind == kind.name and s.variant):
        if not kind.candidates:
            details[companion] = float(own.mean(kind.name, companion)[head])
    for one, number in zip(group[1:], numbers[1:], strict=True):
        details[one.prompts] = {k: v for k, v in number.items() if not k.startswith("p")}
    legacy, value = _legacy(kind, first.variant[head], head, sums)
    if kind.legacy is not None and value is not None:
        details["legacy_value"] = value
    return {
        "site": address.site,
        "layer": address.layer,
        "head": address.head,
        "kind": kind.name,
        **{name: numbers[0][name] for name in ("score", "expected", "excess", "low", "high")},
        "n": first.excess.n,
        "grade": grade,
        "legacy": legacy,
        "evidence": "none" if grade == "none" else "pattern only",
        "details": details,
    }


def _numbers(one: _Tested, head: int, rule: Rule) -> dict[str, Any]:
    if one.excess.n == 0:  # no row to score: nothing is known, and nothing is claimed
        return {
            **dict.fromkeys(
                ("score", "expected", "excess", "low", "high", "p", "p_family"), math.nan
            ),
            "grade": "none",
        }
    score, expected = float(one.excess.score[head]), float(one.excess.expected[head])
    # a mass lies in [0, 1], and so its interval
    low = max(float(one.bounds["low"][head]), -expected)
    high = min(float(one.bounds["high"][head]), 1 - expected)
    return {
        "score": score,
        "expected": expected,
        "excess": float(one.excess.excess[head]),
        "low": low,
        "high": high,
        "p": float(one.bounds["p"][head]),
        "p_family": float(one.bounds["p_family"][head]),
        "grade": rule.grade(low, high),
    }


def _legacy(
    kind: Kind, variant: str, head: int, sums: Mapping[str, Sums]
) -> tuple[bool | None, float | None]:
    rule = kind.legacy
    if rule is None or rule.prompts not in sums:
        return None, None
    own = sums[rule.prompts]
    if rule.variant == "argmax":
        place = OFFSETS.index(int(variant))
        value = own.largest[:, head, place].sum() / max(1.0, own.largest_rows[:, place].sum())
    else:
        value = own.mean(kind.name, rule.variant)[head]
    return bool(value > rule.threshold), float(value)


def check_null(sums: Mapping[str, Sums], rule: Rule, *, seed: int = 0) -> pd.DataFrame:
    """What permuted labels would have been graded: one row per draw.

    Returns:
        Columns draw, prompts, kinds (how many were permuted), mean_score, mean_expected (over
        heads and kinds), false_labels (heads × kinds whose simultaneous lower bound exceeds 0)
        and p_values (single-hypothesis, an array).
    """
    rows = []
    for name, own in sums.items():
        half = halves(len(own.rows), seed=seed)
        for draw in range(own.null_mass.shape[2]):
            every = [permuted_excess(own, draw, slot, half) for slot in range(len(own.permuted))]
            bounds = simultaneous_bounds(
                np.concatenate([e.excess for e in every]),
                np.concatenate([e.influence for e in every], axis=1),
                level=rule.level, resamples=rule.resamples, seed=seed + draw,
            )  # fmt: skip
            rows.append(
                {
                    "draw": draw,
                    "prompts": name,
                    "kinds": len(every),
                    "mean_score": float(np.mean([e.score for e in every])),
                    "mean_expected": float(np.mean([e.expected for e in every])),
                    "false_labels": int((bounds.low > 0).sum()),
                    "p_values": bounds.p,
                }
            )
    return pd.DataFrame(rows)
