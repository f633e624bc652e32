"""Cluster bootstrap over documents with a studentised max-T bound over all hypotheses at once.

A statistic enters as its influence values: one number per document whose mean is the deviation of
the estimate that the document causes (for a plain mean over documents, value − mean). Ratios and
the profile's own sampling error are linearised into them, so one resampling serves all heads and
kinds and the model never runs again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True, eq=False)
class Sample:
    """Hypotheses about one set of documents.

    Args:
        documents: name of the set; samples of one name are resampled by the same draws.
        estimate: θ, one per hypothesis.
        influence: influence values; only their spread within each half counts.
        half: marks half A.
    """

    documents: str
    estimate: Float[np.ndarray, " hypothesis"]
    influence: Float[np.ndarray, "document hypothesis"]
    half: Bool[np.ndarray, " document"]

    @property
    def parts(self) -> list[np.ndarray]:
        """Influence of each half on θ, as terms of a mean over that half's own documents.

        A half that does not bear on a hypothesis (its documents chose the variant that the others
        judge) is zero there, and so adds neither spread nor documents to it.
        """
        n = len(self.half)
        return [
            (rows - rows.mean(0)) * (len(rows) / n)
            for rows in (self.influence[self.half], self.influence[~self.half])
        ]


def simultaneous_bounds(
    samples: Sequence[Sample],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Bounds:
    """Intervals that hold for all hypotheses of all samples at once with the given level.

    t*_b = (θ*_b − θ) / se*_b over resamples b; the interval's ends use the (1 − level) / 2
    quantiles of the minimum and maximum of t* over hypotheses. Each half of each set of documents
    is resampled on its own, by the same draw for all its hypotheses, since θ is estimated with
    the halves fixed and some hypotheses rest on one half alone.

    Args:
        samples: the hypotheses, by the documents they rest on.
        level: simultaneous coverage.
        resamples: number of bootstrap draws.
        seed: seed of the draws.

    Returns:
        The bounds, in the order of the samples.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal([0.0, 1.0], 1.0, (200, 2))
        >>> sample = Sample("natural", x.mean(0), x - x.mean(0), halves(200))
        >>> [bool(low > 0) for low in simultaneous_bounds([sample]).low]
        [False, True]

    Reference:
        Westfall and Young 1993 (max-T); Efron and Tibshirani 1993, ch. 12 (bootstrap-t), here
        stratified by half. The resample's standard error has a floor of a third of the whole
        sample's.
    """
    parts = [sample.parts for sample in samples]
    squares = [[part**2 for part in one] for one in parts]
    se = [
        np.maximum(np.sqrt(sum(sq.sum(0) / _freedom(sq) for sq in one)), _RESOLUTION)
        for one in squares
    ]
    estimate, every_se = np.concatenate([s.estimate for s in samples]), np.concatenate(se)
    observed = estimate / every_se
    draws = _Draws(resamples, seed)
    largest, smallest = np.empty(resamples), np.empty(resamples)
    exceed = np.zeros(len(estimate))
    for block in draws.blocks():
        t = np.concatenate(
            [
                _resample(one, sq, draws.of(sample.documents, sample.half), floor)
                for sample, one, sq, floor in zip(samples, parts, squares, se, strict=True)
            ],
            axis=1,
        )
        largest[block], smallest[block] = t.max(1), t.min(1)
        exceed += (t >= observed).sum(0)
    tail = (1 - level) / 2
    up, down = np.quantile(largest, 1 - tail), np.quantile(smallest, tail)
    return Bounds(
        every_se,
        estimate - up * every_se,
        estimate - down * every_se,
        (1 + exceed) / (1 + resamples),
        (1 + (largest[:, None] >= observed).sum(0)) / (1 + resamples),
    )


def _freedom(part: np.ndarray) -> int:
    """n (n − 1): the square of a mean's standard error is the sum of squares over it."""
    return len(part) * (len(part) - 1)


def _resample(
    parts: list[np.ndarray], squares: list[np.ndarray], draws: list[np.ndarray], se: np.ndarray
) -> Float[np.ndarray, "resample hypothesis"]:
    """t* of one block of resamples."""
    shift, variance = 0.0, 0.0
    for part, square, draw in zip(parts, squares, draws, strict=True):
        mean = draw @ part / len(part)
        shift = shift + mean
        spread = np.maximum(draw @ square / len(part) - mean**2, 0)
        variance = variance + spread / (len(part) - 1)
    return shift / np.maximum(np.sqrt(variance), _SE_FLOOR * se)


class _Draws:
    """How often each document is drawn, block by block: resamples × hypotheses can be large."""

    _BLOCK = 100

    def __init__(self, resamples: int, seed: int) -> None:
        self._resamples, self._seed = resamples, seed
        self._known: dict[str, list[np.ndarray]] = {}

    def blocks(self) -> Iterator[slice]:
        """The resamples of each block."""
        for start in range(0, self._resamples, self._BLOCK):
            self._block = slice(start, min(start + self._BLOCK, self._resamples))
            self._known.clear()
            yield self._block

    def of(self, name: str, half: np.ndarray) -> list[np.ndarray]:
        """The draws of a set's halves [resample, document], the same whoever asks."""
        if name not in self._known:
            size = self._block.stop - self._block.start
            label = zlib.crc32(name.encode())
            rng = np.random.default_rng((self._seed, 4, self._block.start, label))
            self._known[name] = [
                rng.multinomial(n, np.full(n, 1 / n), size=size)
                for n in (int(half.sum()), int((~half).sum()))
            ]
        return self._known[name]


def halves(n_documents: int, *, seed: int = 0) -> Bool[np.ndarray, " document"]:
    """Marks half A of the documents, at random.

    Example:
        >>> int(halves(9).sum())
        4
    """
    order = np.random.default_rng((seed, 5)).permutation(n_documents)
    return np.isin(np.arange(n_documents), order[: n_documents // 2])
