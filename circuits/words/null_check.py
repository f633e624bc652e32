"""The null between words put to the test: what links that nobody made would have been graded."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..atlas_file import NULL_CHECK_COLUMNS
from ..bootstrap import Sample, halves
from ..excess import excess, permuted_excess
from .label import WordRule, bound
from .prompts import SET
from .sums import WordSums, shuffled_hits


def check_words(sums: WordSums, *, rule: WordRule | None = None, seed: int = 0) -> pd.DataFrame:
    """What shuffled links would have been graded at a margin of 0: one row per draw.

    Every link of a kind is moved to a random word of another document that sees a word at the same
    offset (`Shuffled`).

    Args:
        sums: what `score_words` left, with `null_draws`.
        rule: level and resamples; None: `WordRule()`.
        seed: seed of the halves and of the bootstrap.

    Returns:
        As `check_null`: columns draw, prompts, kinds (how many were shuffled), mean_score and
        mean_expected (mass, over heads and kinds), false_labels (heads × kinds with both lower
        bounds above 0) and p_values (of the mass alone: what is expected of the accuracy is the
        best of many rules, so that its p-values lie high).
    """
    rule = WordRule() if rule is None else rule
    half = halves(len(sums.mass.rows), seed=seed)
    rows = []
    for draw in range(sums.mass.null_mass.shape[2]):
        hits = shuffled_hits(sums, draw, half)
        slots = range(len(sums.mass.permuted))
        accuracy = [excess(hits, slot, "uniform", half) for slot in slots]
        mass = [permuted_excess(sums.mass, draw, slot, half) for slot in slots]
        samples = [Sample(SET, e.excess, e.influence, half) for e in (*accuracy, *mass)]
        bounds = bound(samples, rule, seed + draw)
        if bounds is None:
            break
        low, p = (values.reshape(2, len(slots), -1) for values in (bounds.low, bounds.p))
        rows.append(
            {
                "draw": draw,
                "prompts": SET,
                "kinds": len(slots),
                "mean_score": float(np.mean([e.score for e in mass])),
                "mean_expected": float(np.mean([e.expected for e in mass])),
                "false_labels": int((low > 0).all(0).sum()),
                "p_values": p[1].ravel(),
            }
        )
    return pd.DataFrame(rows, columns=list(NULL_CHECK_COLUMNS))
