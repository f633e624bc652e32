"""The null put to the test: what permuted labels would have been graded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from .atlas_file import NULL_CHECK_COLUMNS
from .bootstrap import Sample, halves, simultaneous_bounds
from .excess import permuted_excess
from .grade import Rule
from .sums import Sums


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
                [Sample(name, e.excess, e.influence, half) for e in every],
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
    return pd.DataFrame(rows, columns=list(NULL_CHECK_COLUMNS))
