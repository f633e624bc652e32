"""What is promised of the kernels, and what the measurements say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .baselines import DETECTORS, EAGER, FLASH
from .measure import Measurement

FEW_STATISTICS = ("entropy", "entropy+top", "M1", "M2", "entropy+top+M2")
FOUR_STATISTICS = ("M4", "entropy+top+M4")
_LENGTH = 8192  # of the promise about memory
_Figure = tuple[float, str]


@dataclass(frozen=True)
class Verdict:
    """One promise and how it fares.

    Args:
        promise: In words, with its bound.
        verdict: "kept", "missed" or "not measured".
        worst: The figure that is closest to breaking it, or breaks it furthest.
        where: The case and sizes of that figure.
        n_figures: How many figures were compared with the bound.

    Example:
        >>> Verdict("it is fast", "not measured").worst is None
        True
    """

    promise: str
    verdict: str
    worst: float | None = None
    where: str = ""
    n_figures: int = 0


def verdicts(measurements: Sequence[Measurement]) -> list[Verdict]:
    """Every promise against all measurements that bear on it.

    A promise is kept if all of them are within its bound, and not measured if there are none.

    Args:
        measurements: Of a run.

    Example:
        >>> from .problem import Setting
        >>> here = Setting(d=64, n=2048)
        >>> plain = Measurement("plain", here, "timed", ms=1.0)
        >>> found = verdicts([plain, Measurement("M2", here, "timed", ms=1.2)])[0]
        >>> found.verdict, found.worst, found.where
        ('kept', 1.2, 'M2, d 64, N 2048')
    """
    timed = {(m.case, m.setting): m for m in measurements if m.status == "timed"}
    settings = dict.fromkeys(m.setting for m in measurements)

    def ratios(cases: Iterable[str], to: str, turned: bool = False) -> list[_Figure]:
        made = []
        for case in cases:
            for setting in settings:
                ours, theirs = timed.get((case, setting)), timed.get((to, setting))
                if ours is not None and theirs is not None and ours.ms and theirs.ms:
                    ratio = theirs.ms / ours.ms if turned else ours.ms / theirs.ms
                    made.append((ratio, f"{case}, {ours.place}"))
        return made

    return [
        _at_most(1.3, "statistics with at most 2 matches take ≤ 1.3 × plain's time",
                 ratios(FEW_STATISTICS, "plain")),
        _at_most(1.5, "statistics with 4 matches take ≤ 1.5 × plain's time",
                 ratios(FOUR_STATISTICS, "plain")),
        _at_least(5.0, "export of bf16 weights is ≥ 5 × faster than eager attention's",
                  ratios(["export bf16"], EAGER, turned=True)),
        _at_least(10.0, "statistics with 4 matches are ≥ 10 × faster than eager with detectors",
                  ratios(["entropy+top+M4"], DETECTORS, turned=True)),
        _at_most(1.2, "plain takes ≤ 1.2 × SDPA-FA2's time (expected .85 to 1.2)",
                 ratios(["plain"], FLASH)),
        _at_least(500.0, "statistics at N 8192 take ≥ 500 × less memory than a layer's weights",
                  _memory(timed.values())),
    ]  # fmt: skip


def _memory(measurements: Iterable[Measurement]) -> list[_Figure]:
    """One layer's weights over all that a call with every statistic holds besides its output."""
    made = []
    for m in measurements:
        setting = m.setting
        if m.case != "entropy+top+M4" or setting.n != _LENGTH or m.peak_bytes is None:
            continue
        numbers = setting.batch * setting.heads * setting.n * setting.dtype.itemsize
        statistics = m.peak_bytes - numbers * setting.d
        if statistics > 0:
            made.append((numbers * setting.n / statistics, f"{m.case}, {m.place}"))
    return made


def _at_most(bound: float, promise: str, figures: Sequence[_Figure]) -> Verdict:
    return _judge(promise, figures, max, lambda worst: worst <= bound)


def _at_least(bound: float, promise: str, figures: Sequence[_Figure]) -> Verdict:
    return _judge(promise, figures, min, lambda worst: worst >= bound)


def _judge(
    promise: str,
    figures: Sequence[_Figure],
    furthest: Callable[[Sequence[_Figure]], _Figure],
    holds: Callable[[float], bool],
) -> Verdict:
    if not figures:
        return Verdict(promise, "not measured")
    worst, where = furthest(figures)
    return Verdict(promise, "kept" if holds(worst) else "missed", worst, where, len(figures))
