"""The whole benchmark: check every case, time those that pass, judge the promises."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from .baselines import baselines
from .cases import Case, own_cases
from .check import Check, check_case, one_line, settings
from .floor import Ceilings
from .measure import Budget, Measurement, Stopwatch, measure, n_problems
from .problem import Problem, Setting, build, rotate

_BASELINES_FIRST = 1  # "plain" leads: everything is compared with it


@dataclass(frozen=True, eq=False)
class Schedule:
    """What to check and to measure.

    Args:
        cases: In the order of the table.
        widths: Head widths, the most important first.
        lengths: Queries and keys per sequence, the most important first.
        heads: Of what is timed.
        dtype: Of q, k and v.
        checks: Where to check a case, by its head width.
    """

    cases: Sequence[Case]
    widths: Sequence[int] = (128, 64)
    lengths: Sequence[int] = (8192, 2048, 32768)
    heads: int = 32
    dtype: torch.dtype = torch.bfloat16
    checks: Callable[[Case, int], Iterable[Setting]] = settings

    def setting(self, d: int, n: int) -> Setting:
        """Of one group of timings."""
        return Setting(d, n, heads=self.heads, kv_heads=self.heads, dtype=self.dtype)


@dataclass(eq=False)
class Report:
    """What a run found, as far as it has come.

    Args:
        machine: See `machine.machine`.
        ceilings: Of the device; None before they are measured.
        seed: Of all inputs.
        cases: Every case that was asked for.
        checks: One per case and setting.
        measurements: One per case and setting, also of what was not timed.
        seconds: How long it took so far.
        complete: Whether it came to its end.
    """

    machine: dict[str, str | int | None]
    ceilings: Ceilings | None
    seed: int
    cases: Sequence[Case]
    checks: list[Check] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    seconds: float = 0.0
    complete: bool = False

    @property
    def failures(self) -> list[str]:
        """Every case that failed a check or broke down, with the reason."""
        checks = [
            f"{check.case} ({check.setting}): {check.reason}"
            for check in self.checks
            if not check.passed and not check.skipped
        ]
        return checks + [
            f"{m.case} ({m.place}): {m.note}"
            for m in self.measurements
            if m.status == "failed" and m.note != FAILED
        ]


FAILED = "its check failed"


def all_cases() -> list[Case]:
    """Ours and the baselines, the plain kernel first.

    Example:
        >>> [case.name for case in all_cases()][:3]
        ['plain', 'SDPA-FA2', 'SDPA-cuDNN']
    """
    own = own_cases()
    return [*own[:_BASELINES_FIRST], *baselines(), *own[_BASELINES_FIRST:]]


def run(
    report: Report,
    schedule: Schedule,
    *,
    stopwatch: Stopwatch,
    budget: Budget,
    device: torch.device,
    cache_bytes: int,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Fill a report. A case is timed only where all of its checks at that width passed.

    Args:
        report: Filled in place, so that what was measured survives an interruption.
        schedule: What to do.
        stopwatch: Of the device.
        budget: What does not fit is listed as not run.
        device: Where to run.
        cache_bytes: Size of the device's last cache.
        progress: Told of every result as it comes; the report then holds it.
    """
    for d in schedule.widths:
        passed = {case.name: _checks(case, d, report, schedule, budget, device, progress)
                  for case in schedule.cases}  # fmt: skip
        for n in schedule.lengths:
            setting = schedule.setting(d, n)
            problems: list[Problem] = []
            for case in schedule.cases:
                reason = next((c.note for c in report.checks[::-1] if c.case == case.name), "")
                found = _refusal(case, setting, passed[case.name], budget, reason)
                if found is None and not problems:
                    problems, found = _inputs(case, setting, report.seed, device, cache_bytes)
                if found is None:
                    found = measure(case, problems, stopwatch, budget)
                report.measurements.append(found)
                report.seconds = budget.total_s - budget.left()
                progress(_line(found))
            del problems
            gc.collect()
            _forget_compiled()
    report.complete = True


def _checks(
    case: Case, d: int, report: Report, schedule: Schedule, budget: Budget, device: torch.device,
    progress: Callable[[str], None],
) -> bool | None:  # fmt: skip
    """Whether a case may be timed; None where there was no time, or it is unsupported here."""
    verdict: bool | None = True
    for index, setting in enumerate(schedule.checks(case, d)):
        if budget.left() <= 0:
            return None if verdict else verdict
        check = check_case(case, setting, device, report.seed + 1 + index)
        report.checks.append(check)
        report.seconds = budget.total_s - budget.left()
        told = "passed" if check.passed else f"{'skipped' if check.skipped else 'FAILED'}: "
        progress(f"check {case.name} ({check.setting}): {told}{check.reason}")
        if check.skipped:
            verdict = None if verdict else verdict
        elif not check.passed:
            verdict = False
    return verdict


def _refusal(
    case: Case, setting: Setting, passed: bool | None, budget: Budget, reason: str
) -> Measurement | None:
    """Why a case is not to be timed at all; None where it is."""
    if passed is False:
        return Measurement(case.name, setting, "failed", note=FAILED)
    if passed is None and budget.left() > 0:
        status = "not run" if case.own else "unsupported"
        return Measurement(case.name, setting, status, note=reason)
    if passed is None or budget.left() <= 0:
        return Measurement(case.name, setting, "not run", note="the time is used up")
    return None


def _inputs(
    case: Case, setting: Setting, seed: int, device: torch.device, cache_bytes: int
) -> tuple[list[Problem], Measurement | None]:
    """Inputs to rotate, or why there are none: a device too small, or broken by a kernel."""
    more = range(seed + 101, seed + 100 + n_problems(setting, cache_bytes))
    try:
        return rotate(build(setting, device, seed + 100), list(more)), None
    except torch.OutOfMemoryError as error:
        return [], Measurement(case.name, setting, "out of memory", note=one_line(error))
    except Exception as error:  # whatever it is: what was measured so far is to be kept
        return [], Measurement(case.name, setting, "failed", note=f"no inputs: {one_line(error)}")


def _forget_compiled() -> None:
    """Compiled baselines of one setting; their number per function is limited."""
    with contextlib.suppress(Exception):
        torch.compiler.reset()


def _line(found: Measurement) -> str:
    told = found.status if found.ms is None else f"{found.ms:.4g} ms"
    return f"{found.case} ({found.place}): {told}" + f", {found.note}" * bool(found.note)
