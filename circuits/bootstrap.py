"""Cluster bootstrap over documents with a studentised max-T bound over all hypotheses at once.

A statistic enters as its influence values: one number per document whose mean is the deviation of
the estimate that the document causes (for a plain mean over documents, value − mean). Ratios and
the profile's own sampling error are linearised into them, so one resampling serves all heads and
kinds and the model never runs again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

# A resample may miss the few documents that carry a heavy-tailed statistic; its own standard
# error is then near zero and its t meaningless. Never let it fall below this share of the whole's.
_SE_FLOOR = 1 / 3
_RESOLUTION = 1e-6  # float32 masses carry no more


@dataclass(frozen=True, eq=False)
class Bounds:
    """Simultaneous interval and single-hypothesis p-values, one entry per hypothesis.

    Args:
        se: standard error.
        low: lower end of the interval.
        high: upper end of the interval.
        p: one-sided p-value of estimate ≤ 0, for this hypothesis alone.
        p_family: one-sided p-value adjusted for all hypotheses (max-T).
    """

    se: Float[np.ndarray, " hypothesis"]
    low: Float[np.ndarray, " hypothesis"]
    high: Float[np.ndarray, " hypothesis"]
    p: Float[np.ndarray, " hypothesis"]
    p_family: Float[np.ndarray, " hypothesis"]


def simultaneous_bounds(
    estimate: Float[np.ndarray, " hypothesis"],
    influence: Float[np.ndarray, "document hypothesis"],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Bounds:
    """Intervals that hold for all hypotheses at once with the given level.

    t*_b = (θ*_b − θ) / se*_b over resamples b of the documents, the same draw for every
    hypothesis; the interval's ends use the (1 − level) / 2 quantiles of the minimum and maximum
    of t* over hypotheses.

    Args:
        estimate: θ, one per hypothesis.
        influence: influence values, mean zero over documents.
        level: simultaneous coverage.
        resamples: number of bootstrap draws.
        seed: seed of the draws.

    Returns:
        The bounds.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal([0.0, 1.0], 1.0, (200, 2))
        >>> bounds = simultaneous_bounds(x.mean(0), x - x.mean(0))
        >>> [bool(low > 0) for low in bounds.low]
        [False, True]

    Reference:
        Westfall and Young 1993 (max-T); Efron and Tibshirani 1993, ch. 12 (bootstrap-t). The
        resample's standard error has a floor of a third of the whole sample's.
    """
    n_documents, n = influence.shape
    influence = influence - influence.mean(0)
    se = np.maximum(np.sqrt((influence**2).sum(0) / (n_documents * (n_documents - 1))), _RESOLUTION)
    observed = estimate / se
    rng = np.random.default_rng((seed, 4))
    largest, smallest = np.empty(resamples), np.empty(resamples)
    exceed = np.zeros(n)
    for start in range(0, resamples, 100):  # in blocks: resamples × hypotheses can be large
        block = slice(start, min(start + 100, resamples))
        size = block.stop - block.start
        draw = rng.multinomial(n_documents, np.full(n_documents, 1 / n_documents), size=size)
        shift = draw @ influence / n_documents
        square = draw @ influence**2 / n_documents
        own = np.sqrt(np.maximum(square - shift**2, 0) / (n_documents - 1))
        t = shift / np.maximum(own, _SE_FLOOR * se)
        largest[block], smallest[block] = t.max(1), t.min(1)
        exceed += (t >= observed).sum(0)
    tail = (1 - level) / 2
    up, down = np.quantile(largest, 1 - tail), np.quantile(smallest, tail)
    return Bounds(
        se,
        estimate - up * se,
        estimate - down * se,
        (1 + exceed) / (1 + resamples),
        (1 + (largest[:, None] >= observed).sum(0)) / (1 + resamples),
    )


def halves(n_documents: int, *, seed: int = 0) -> Bool[np.ndarray, " document"]:
    """Marks half A of the documents, at random.

    Example:
        >>> int(halves(9).sum())
        4
    """
    order = np.random.default_rng((seed, 5)).permutation(n_documents)
    return np.isin(np.arange(n_documents), order[: n_documents // 2])
