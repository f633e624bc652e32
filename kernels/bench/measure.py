"""Timings of one case: medians over rotating inputs, within a budget of time."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch

from .cases import Case
from .check import one_line
from .problem import Problem, Setting

Status = Literal["timed", "out of memory", "unsupported", "failed", "not run"]
_TIMED = 5  # calls that a median is taken of, at least
_CALLS = _TIMED + 7  # do_bench makes one before all, five to estimate, one to warm up
_QUEUED = 5


@dataclass(frozen=True)
class Measurement:
    """What one case took on one setting.

    Args:
        case: Its name.
        setting: Sizes.
        status: "timed", or why there is no number.
        ms: Median time of a call on the device, milliseconds.
        host_ms: Median time until the host is free again, milliseconds: where it is the larger,
            the host is what was measured.
        peak_bytes: Most memory held during a call beyond its inputs, its outputs included.
        note: More about the status.

    Example:
        >>> Measurement("plain", Setting(d=64, n=2048), "timed", ms=1.5).place
        'd 64, N 2048'
    """

    case: str
    setting: Setting
    status: Status
    ms: float | None = None
    host_ms: float | None = None
    peak_bytes: int | None = None
    note: str = ""

    @property
    def place(self) -> str:
        """Head width and length, which tell the settings of a run apart."""
        return f"d {self.setting.d}, N {self.setting.n}"


@dataclass(frozen=True)
class Budget:
    """How much time there is.

    Args:
        total_s: For everything, seconds.
        case_s: For one case on one setting.
        started: When it began, by the clock.
        clock: Seconds.

    Example:
        >>> Budget(10.0, 2.0, started=5.0, clock=lambda: 9.0).left()
        6.0
    """

    total_s: float
    case_s: float
    started: float = field(default_factory=time.monotonic)
    clock: Callable[[], float] = time.monotonic

    def left(self) -> float:
        """Seconds."""
        return self.total_s - (self.clock() - self.started)


@runtime_checkable
class Stopwatch(Protocol):
    """Reads a device's time and memory."""

    def wait(self) -> None:
        """Until the device is idle."""
        ...

    def median_ms(self, call: Callable[[], object], about_ms: float = 0.0) -> float:
        """The median time of a call on the device that takes about as long as given."""
        ...

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Most memory held during a call beyond what is held before it."""
        ...


@dataclass(frozen=True)
class CudaStopwatch:
    """A Stopwatch of CUDA events; the cache is flushed before every call that counts.

    Args:
        repeat_ms: How long to repeat a call for.
    """

    repeat_ms: int = 100

    def wait(self) -> None:
        """Until the device is idle."""
        torch.cuda.synchronize()

    def median_ms(self, call: Callable[[], object], about_ms: float = 0.0) -> float:
        """By `triton.testing.do_bench`."""
        from triton.testing import do_bench

        repeat_ms = max(self.repeat_ms, math.ceil(_TIMED * about_ms))
        median = do_bench(call, warmup=25, rep=repeat_ms, return_mode="median")
        return float(median)  # type: ignore[arg-type]  # a list only where quantiles are asked for

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """By `torch.cuda.max_memory_allocated`."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = call()
        torch.cuda.synchronize()
        del kept
        return torch.cuda.max_memory_allocated() - before


def measure(
    case: Case, problems: Sequence[Problem], stopwatch: Stopwatch, budget: Budget
) -> Measurement:
    """Time a case that passed its checks.

    Args:
        case: The case.
        problems: Inputs to take in turns, of one setting.
        stopwatch: Of the device.
        budget: A case that would exceed it is not run.

    Returns:
        The measurement; out of memory and, for baselines, unsupported are results as well. An
        error of a case of ours is "failed".
    """
    setting = problems[0].setting
    try:
        return _measure(case, problems, stopwatch, budget)
    except torch.OutOfMemoryError as error:
        return Measurement(case.name, setting, "out of memory", note=one_line(error))
    except Exception as error:  # whatever it is: the other cases may still be measured
        return Measurement(
            case.name, setting, "failed" if case.own else "unsupported", note=one_line(error)
        )
    finally:
        problems[0].kept.clear()  # shared by all of them: the next case gets the memory
        with contextlib.suppress(Exception):  # a device that failed says so at the next case
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def _measure(
    case: Case, problems: Sequence[Problem], stopwatch: Stopwatch, budget: Budget
) -> Measurement:
    setting = problems[0].setting
    with case.context(), torch.no_grad():
        if budget.left() <= 0:
            return Measurement(case.name, setting, "not run", note="the time is used up")
        case.prepare(problems[0])()  # compiles, plans
        stopwatch.wait()
        began = budget.clock()
        case.prepare(problems[0])()
        stopwatch.wait()
        about_s = budget.clock() - began
        needed = _CALLS * about_s
        if needed > min(budget.case_s, budget.left()):
            return Measurement(case.name, setting, "not run", note=f"it needs about {needed:.0f} s")
        peak = stopwatch.peak_bytes(lambda: case.prepare(problems[0])())
        turns = itertools.cycle([case.prepare(problem) for problem in problems])
        host_ms = _host_ms(turns, stopwatch, budget.clock)
        ms = stopwatch.median_ms(lambda: next(turns)(), 1e3 * about_s)
    if not (math.isfinite(ms) and ms > 0):
        raise RuntimeError(f"a call cannot take {ms} ms.")
    return Measurement(case.name, setting, "timed", ms=ms, host_ms=host_ms, peak_bytes=peak)


def _host_ms(turns, stopwatch: Stopwatch, clock: Callable[[], float]) -> float:
    times = []
    for _ in range(_QUEUED):
        stopwatch.wait()
        began = clock()
        next(turns)()
        times.append(1e3 * (clock() - began))
    stopwatch.wait()
    return sorted(times)[_QUEUED // 2]


def n_problems(setting: Setting, cache_bytes: int) -> int:
    """How many inputs to rotate so that no call finds its own in the cache.

    Args:
        setting: Sizes.
        cache_bytes: Size of the device's last cache.

    Example:
        >>> n_problems(Setting(d=128, n=2048), 50 * 2**20)
        6
    """
    n_key = setting.heads + 2 * setting.kv_heads
    one = setting.batch * n_key * setting.n * setting.d * setting.dtype.itemsize
    return min(max(2, math.ceil(4 * cache_bytes / one) + 1), 16)
