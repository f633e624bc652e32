"""From sums between words to labels: accuracy over the best rule, mass over habits of position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..atlas_check import COLUMNS
from ..bootstrap import Bounds, Sample, halves, simultaneous_bounds
from ..excess import Excess, excess
from ..grade import Rule
from ..sums import Sums
from .kind import WordKind
from .prompts import SET
from .score import MIN_INSTANCES
from .sums import WordSums, hits_over_baseline

INSUFFICIENT = "insufficient"
"""The grade of kinds with too few instances: nothing is claimed, either way."""


@dataclass(frozen=True)
class WordRule(Rule):
    """When a head gets a label for links between words.

    With [low, high] the simultaneous interval of accuracy − baseline: *strong* if low ≥ `strong`,
    *weak* if low > `margin`, both only if the lower end of the mass's excess over the head's own
    profile of word offsets exceeds 0 (else *ambiguous*, or *none* where its upper end does not
    either); *ambiguous* if the interval straddles the margin; else *none*. Kinds with fewer than
    `min_instances` visible instances are *insufficient*.

    Args:
        margin: accuracy below which a label is of no practical interest.
        strong: accuracy over the baseline that every value of the interval must reach for
            *strong*: Voita's 10 points.
        level: simultaneous coverage.
        resamples: bootstrap draws.
        min_instances: with fewer, a false head of 10 points is likely among a few hundred.

    Example:
        >>> rule = WordRule()
        >>> rule.of_both((0.12, 0.3), (0.01, 0.2)), rule.of_both((0.12, 0.3), (-0.01, 0.2))
        ('strong', 'ambiguous')
    """

    margin: float = 0.05
    strong: float = 0.10
    min_instances: int = MIN_INSTANCES

    def of_both(self, accuracy: tuple[float, float], mass: tuple[float, float]) -> str:
        """Grade from the simultaneous intervals of both excesses."""
        grade = self.grade(*accuracy)
        if grade == "none" or mass[1] <= 0:
            return "none"
        return grade if mass[0] > 0 else "ambiguous"


@dataclass(frozen=True, eq=False)
class WordTests:
    """The hypotheses of word-level kinds, to be bounded alone or together with others.

    Args:
        sums: what `score_words` left.
        rule: margins and levels.
        seed: seed of the halves.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.circuits.bootstrap import simultaneous_bounds
        >>> from headatlas.circuits.words.prompts import word_prompts
        >>> from headatlas.circuits.words.score import score_words
        >>> from headatlas.interp.grammar import Grammar
        >>> from headatlas.interp.parsed import from_grammar
        >>> model, tokenizer = ha.load("tiny")
        >>> documents = [from_grammar(d) for d in Grammar(0).documents(16)]
        >>> prompts = word_prompts(tokenizer, documents, sentences=True, prepend_bos=True)
        >>> sums = score_words(model, prompts, "syntactic.det.to_dependent")
        >>> tests = WordTests(sums, WordRule(min_instances=100), seed=0)
        >>> len(tests.samples), tests.n_hypotheses
        (2, 64)
        >>> len(tests.frame(simultaneous_bounds(tests.samples)))
        32
    """

    sums: WordSums
    rule: WordRule
    seed: int = 0

    @cached_property
    def half(self) -> np.ndarray:
        """Marks half A of the documents."""
        return halves(len(self.sums.mass.rows), seed=self.seed)

    @cached_property
    def _over_rule(self) -> Sums:
        return hits_over_baseline(self.sums, self.half)

    @cached_property
    def accuracy(self) -> dict[str, Excess]:
        """Accuracy over the best baseline, by kind.

        Each half is judged by the baseline that is best on the other half. (To choose on one half
        and to report on the other alone would judge no more fairly, and leave half the instances.)
        """
        over = self._over_rule
        return {
            kind.name: excess(over, over.index(kind.name), "uniform", self.half)
            for kind in self.sums.kinds
        }

    @cached_property
    def mass(self) -> dict[str, Excess]:
        """Mass over what the head's own profile of word offsets gives, by kind."""
        own = self.sums.mass
        return {
            kind.name: excess(own, own.index(kind.name), "profile", self.half)
            for kind in self.sums.kinds
        }

    @cached_property
    def tested(self) -> tuple[str, ...]:
        """The kinds with instances enough."""
        least = self.rule.min_instances
        names = (kind.name for kind in self.sums.kinds)
        return tuple(name for name in names if self.sums.instances(name) >= least)

    @property
    def samples(self) -> list[Sample]:
        """Two per tested kind, accuracy and mass, to be bounded alone or with others'."""
        return [
            Sample(SET, found[name].excess, found[name].influence, self.half)
            for name in self.tested
            for found in (self.accuracy, self.mass)
        ]

    @property
    def n_hypotheses(self) -> int:
        """How many entries of the bounds are ours."""
        return 2 * len(self.tested) * len(self.sums.heads)

    def frame(self, bounds: Bounds | None, start: int = 0) -> pd.DataFrame:
        """One row per head × kind, in the format of an atlas.

        Args:
            bounds: simultaneous bounds; None where no kind is tested.
            start: index of the first of ours among them.

        Returns:
            `score` is the accuracy, `expected` the baseline's, `low` and `high` bound their
            difference; `n` counts visible instances. `details` holds the mass with its expectation
            and bounds, the accuracy over Aᵀ, the baselines, and the accuracy by group.
        """
        rows = []
        for kind in self.sums.kinds:
            ends = self._ends(kind.name, bounds, start)
            shared = self._shared(kind)
            groups = self._by_group(kind)
            rows += [
                self._row(kind, head, ends, {**shared, **groups[head]})
                for head in range(len(self.sums.heads))
            ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def _ends(self, name: str, bounds: Bounds | None, start: int) -> np.ndarray:
        """[accuracy or mass, low · high · p · p_family, head]; NaN for an untested kind."""
        heads = len(self.sums.heads)
        if bounds is None or name not in self.tested:
            return np.full((2, 4, heads), math.nan)
        first = start + 2 * heads * self.tested.index(name)
        columns = (bounds.low, bounds.high, bounds.p, bounds.p_family)
        table = np.stack([column[first : first + 2 * heads] for column in columns])
        return table.reshape(4, 2, heads).transpose(1, 0, 2)

    def _shared(self, kind: WordKind) -> dict[str, Any]:
        """Details that all heads share: the baselines chosen, and what was left out."""
        sums = self.sums
        _, judges = sums.expected_hits(self.half)
        column = sums.hits.index(kind.name)
        return {
            "prompts": SET,
            "baselines": [sums.baselines[i] for i in judges[:, column].tolist()],
            "baseline_accuracy": self._named_baselines(kind, column),
            "linked_words": int(sums.chosen.rows[:, column].sum()),
            "unaligned_words": sums.unaligned,
        }

    def _named_baselines(self, kind: WordKind, column: int) -> dict[str, float]:
        """Accuracy, on all documents, of the best offset and of the kind's own rules."""
        right = self.sums.guesses[:, column].sum(0) / self.sums.instances(kind.name)
        offsets = len(self.sums.baselines) - len({g for k in self.sums.kinds for g in k.guesses})
        best = int(right[:offsets].argmax())
        own = {name: float(right[self.sums.baselines.index(name)]) for name in kind.guesses}
        return {self.sums.baselines[best]: float(right[best]), **own}

    def _by_group(self, kind: WordKind) -> list[dict[str, Any]]:
        """Accuracy, baseline and instances of each group of queries, for each head."""
        over = self._over_rule
        variants = [s.variant for s in over.statistics if s.kind == kind.name and s.variant]
        if not variants:
            return [{}] * len(self.sums.heads)
        found = {v: excess(over, over.index(kind.name, v), "uniform", self.half) for v in variants}
        return [
            {
                "groups": {
                    v: {
                        "accuracy": float(one.score[head]),
                        "baseline": float(one.expected[head]),
                        "n": int(one.n[head]),
                    }
                    for v, one in found.items()
                }
            }
            for head in range(len(self.sums.heads))
        ]

    def _row(
        self, kind: WordKind, head: int, ends: np.ndarray, shared: dict[str, Any]
    ) -> dict[str, Any]:
        accuracy, mass = self.accuracy[kind.name], self.mass[kind.name]
        (low, high, p, p_family), (mass_low, mass_high, mass_p, _) = ends[:, :, head].tolist()
        tested = kind.name in self.tested
        grade = self.rule.of_both((low, high), (mass_low, mass_high)) if tested else INSUFFICIENT
        address, gain = self.sums.heads[head], float(accuracy.excess[head])
        chosen = self.sums.chosen
        numbers = {"p": p, "p_family": p_family, "mass_low": mass_low, "mass_high": mass_high}
        numbers["mass_p"] = mass_p
        return {
            "site": address.site,
            "layer": address.layer,
            "head": address.head,
            "kind": kind.name,
            "score": float(accuracy.score[head]),
            "expected": float(accuracy.expected[head]),
            "excess": gain,
            "low": low,
            "high": high,
            "n": int(accuracy.n[head]),
            "grade": grade,
            "legacy": None if kind.legacy_margin is None else gain >= kind.legacy_margin,
            "evidence": "pattern only" if grade in ("weak", "strong") else "none",
            "details": {
                **shared,
                **{name: None if math.isnan(x) else x for name, x in numbers.items()},
                "halves": [float(x) for x in accuracy.by_half[:, head]],
                "mass": float(mass.score[head]),
                "mass_expected": float(mass.expected[head]),
                "chosen_accuracy": float(chosen.mean(kind.name)[head]),
            },
        }


def label_words(sums: WordSums, *, rule: WordRule | None = None, seed: int = 0) -> pd.DataFrame:
    """Grade every head for every kind of link between words.

    A head is labelled if argmax_u W[w, u] finds the linked word more often than the best rule does
    (a fixed offset, or one of the kind's own guesses, chosen on the other half of the documents),
    and if its mass on the linked words exceeds what its own profile of word offsets gives. The
    bounds of both hold at once for all heads and tested kinds.

    Args:
        sums: what `score_words` left.
        rule: margins and levels; None: `WordRule()`.
        seed: seed of the halves and of the bootstrap.

    Returns:
        One row per head × kind, with the columns of `HeadAtlas.rows`.

    Reference:
        Voita et al. 2019 for the margin over the best offset; the mass's null and the simultaneous
        bounds are this project's.
    """
    tests = WordTests(sums, WordRule() if rule is None else rule, seed)
    return tests.frame(bound(tests.samples, tests.rule, seed))


def bound(samples: Sequence[Sample], rule: Rule, seed: int) -> Bounds | None:
    """Simultaneous bounds of some samples; None where there is nothing to bound."""
    if not samples:
        return None
    return simultaneous_bounds(samples, level=rule.level, resamples=rule.resamples, seed=seed)
