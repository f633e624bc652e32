"""From sums to labels: excess over chance, simultaneous intervals, the field's own verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .atlas_check import COLUMNS
from .bootstrap import Bounds, Sample, halves, simultaneous_bounds
from .excess import Excess, best_excess, excess
from .grade import GRADES, Rule
from .kinds import Kind
from .sums import OFFSETS, Sums
from .words.label import WordTests

_NUMBERS = ("score", "expected", "excess", "low", "high", "p", "p_family")


@dataclass(frozen=True, eq=False)
class _Tested:
    """One kind on one prompt set: a family of hypotheses, one per head."""

    kind: Kind
    prompts: str
    excess: Excess
    variant: tuple[str, ...]  # per head
    half: np.ndarray  # marks half A of the documents


def label(
    sums: Mapping[str, Sums],
    kinds: Sequence[Kind],
    rule: Rule,
    *,
    words: WordTests | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Grade every head for every kind.

    Args:
        sums: by prompt set.
        kinds: kinds that were scored.
        rule: margins and levels.
        words: what was scored between words; its intervals hold together with the others.
        seed: seed of the halves and of the bootstrap.

    Returns:
        One row per head × kind: site, layer, head, kind, score, expected, excess, low, high, n,
        grade, legacy, evidence, details.
    """
    tested = [
        _test(kind, name, sums, seed) for kind in kinds for name in kind.prompts if name in sums
    ]
    between = [] if words is None else words.samples
    bounds = _bound_together(tested, between, rule, seed)
    by_kind: dict[str, list[tuple[_Tested, int]]] = {}  # with each one's place in the bounds
    start = 0
    for one in tested:
        by_kind.setdefault(one.kind.name, []).append((one, start))
        start += len(one.excess.score)
    rows = (
        []
        if bounds is None
        else [
            _row(
                [one for one, _ in group],
                [_numbers(one, head, bounds, place + head, rule) for one, place in group],
                head,
                sums,
            )
            for group in by_kind.values()
            for head in range(len(group[0][0].excess.score))
        ]
    )
    frames = [pd.DataFrame(rows, columns=list(COLUMNS))] if rows else []
    if words is not None:
        frames.append(words.frame(bounds, start))
    return pd.concat(frames, ignore_index=True)


def _test(kind: Kind, name: str, sums: Mapping[str, Sums], seed: int) -> _Tested:
    own = sums[name]
    half = halves(len(own.rows), seed=seed)
    if not kind.candidates:
        found = excess(own, own.index(kind.name), kind.null, half)
        return _Tested(kind, name, found, ("",) * len(own.heads), half)
    # the best variant by half A of the first set, scored on documents that did not choose it
    first = next(sums[prompts] for prompts in kind.prompts if prompts in sums)
    variants = [s.variant for s in first.statistics if s.kind == kind.name]
    chooses = halves(len(first.rows), seed=seed)
    by_half_a = [
        _where_scored(
            excess(first, first.index(kind.name, v), kind.null, chooses, documents=chooses)
        )
        for v in variants
    ]
    chosen = np.argmax(by_half_a, axis=0)
    columns = [own.index(kind.name, v) for v in variants]
    scored = ~half if own is first else None
    every = [excess(own, column, kind.null, half, documents=scored) for column in columns]
    whole = [excess(own, column, kind.null, half) for column in columns]
    best = best_excess(every, whole, chosen)
    return _Tested(kind, name, best, tuple(variants[i] for i in chosen), half)


def _where_scored(found: Excess) -> np.ndarray:
    """Excess per head, −inf without a scored row: a variant that was not seen is not chosen."""
    return np.where(found.n > 0, found.excess, -np.inf)


def _bound_together(
    tested: list[_Tested], between: list[Sample], rule: Rule, seed: int
) -> Bounds | None:
    """Intervals over all kinds, sets and heads; sets of prompts are independent documents."""
    samples = [
        Sample(one.prompts, one.excess.excess, one.excess.influence, one.half) for one in tested
    ]
    samples += between
    if not samples:
        return None
    return simultaneous_bounds(samples, level=rule.level, resamples=rule.resamples, seed=seed)


def _numbers(one: _Tested, head: int, bounds: Bounds, place: int, rule: Rule) -> dict[str, Any]:
    if one.excess.n[head] == 0:  # no row to score: nothing is known, and nothing is claimed
        return {**dict.fromkeys(_NUMBERS, math.nan), "grade": "none"}
    low, high = float(bounds.low[place]), float(bounds.high[place])
    return {
        "score": float(one.excess.score[head]),
        "expected": float(one.excess.expected[head]),
        "excess": float(one.excess.excess[head]),
        "low": low,
        "high": high,
        "p": float(bounds.p[place]),
        "p_family": float(bounds.p_family[place]),
        "grade": rule.grade(low, high),
    }


def _row(
    group: list[_Tested], numbers: list[dict[str, Any]], head: int, sums: Mapping[str, Sums]
) -> dict[str, Any]:
    first = group[0]
    kind, own = first.kind, sums[first.prompts]
    address = own.heads[head]
    grade = min((n["grade"] for n in numbers), key=GRADES.index)
    legacy, value = _legacy(kind, first.variant[head], head, sums)
    details: dict[str, Any] = {
        "prompts": first.prompts,
        "p": numbers[0]["p"],
        "p_family": numbers[0]["p_family"],
        "halves": [float(x) for x in first.excess.by_half[:, head]],
    }
    if kind.candidates:
        details["variant"] = first.variant[head]
    else:
        companions = (s.variant for s in own.statistics if s.kind == kind.name and s.variant)
        details["companions"] = {
            variant: _mean(own, kind.name, variant, head) for variant in companions
        }
    for one, number in zip(group[1:], numbers[1:], strict=True):
        details[one.prompts] = {k: v for k, v in number.items() if not k.startswith("p")}
    if value is not None:
        details["legacy_value"] = value
    return {
        "site": address.site,
        "layer": address.layer,
        "head": address.head,
        "kind": kind.name,
        **{name: numbers[0][name] for name in ("score", "expected", "excess", "low", "high")},
        "n": int(first.excess.n[head]),
        "grade": grade,
        "legacy": legacy,
        "evidence": "pattern only" if grade in ("weak", "strong") else "none",
        "details": details,
    }


def _mean(own: Sums, kind: str, variant: str, head: int) -> float | None:
    """A companion's mean mass; None where it scored no row."""
    scored = own.rows[:, own.index(kind, variant)].sum() > 0
    return float(own.mean(kind, variant)[head]) if scored else None


def _legacy(
    kind: Kind, variant: str, head: int, sums: Mapping[str, Sums]
) -> tuple[bool | None, float | None]:
    rule = kind.legacy
    if rule is None or rule.prompts not in sums:
        return None, None
    own = sums[rule.prompts]
    if rule.variant == "argmax":
        place = OFFSETS.index(int(variant))
        hits, rows = own.largest[:, head, place].sum(), own.largest_rows[:, place].sum()
    else:
        column = own.index(kind.name, rule.variant)
        hits, rows = own.mass[:, head, column].sum(), own.rows[:, column].sum()
    if rows == 0:
        return None, None
    value = float(hits / rows)
    # Voita 2019 asks for at least 90 % of rows, the others for more than their threshold
    holds = value >= rule.threshold if rule.variant == "argmax" else value > rule.threshold
    return holds, value
