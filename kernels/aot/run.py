"""Many kernels compiled and judged, each in a worker process."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .compile import CannotCompileError, CompilableLaunch, check_compiler, compile_launch
from .gate import Reading, judge, read_kernel


@runtime_checkable
class Case(Protocol):
    """One kernel configuration; it travels to worker processes.

    Args:
        name: Unique among the cases.
        ieee: Whether it must multiply in full float32.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def ieee(self) -> bool: ...  # noqa: D102

    def launch(self, arch: int) -> CompilableLaunch:
        """The launch that ships for an architecture, on CPU tensors."""
        ...


@dataclass(frozen=True)
class Result:
    """How a case fared on an architecture.

    Args:
        case: Its name.
        arch: Compute capability, major · 10 + minor.
        reading: What it takes; None where it did not compile or could not be read.
        failures: Why it may not ship; empty where it may.
        seconds: Wall time of compiling and reading it.

    Example:
        >>> Result("forward 64 bf16", 90, None, ("it does not compile",), 2.0).failed
        True
    """

    case: str
    arch: int
    reading: Reading | None
    failures: tuple[str, ...]
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether it may not ship."""
        return bool(self.failures)


def check_cases(
    cases: Sequence[Case],
    archs: Sequence[int],
    *,
    jobs: int,
    cache: str,
    progress: Callable[[Result, int, int], None] = lambda result, done, total: None,
) -> list[Result]:
    """Compile every case for every architecture and judge it.

    A compiler that crashes takes its worker with it, and that fails the case alone.

    Args:
        cases: What to compile.
        archs: Keys of `gate.TARGETS`.
        jobs: Worker processes.
        cache: Folder of compiled kernels; those in it are not compiled again.
        progress: Told of each result as it comes, how many there are so far, and of how many.

    Returns:
        The results, case by case, each in the order of the architectures.

    Raises:
        CannotCompileError: Nothing can be compiled here.
    """
    check_compiler()
    tasks = [(case, arch) for case in cases for arch in archs]
    results: dict[int, Result] = {}
    for index, result in _all(tasks, jobs, cache):
        results[index] = result
        progress(result, len(results), len(tasks))
    return [results[index] for index in range(len(tasks))]


def _all(tasks: Sequence[tuple[Case, int]], jobs: int, cache: str) -> Iterator[tuple[int, Result]]:
    left = set(range(len(tasks)))
    while left:
        for index, result in _pooled(tasks, sorted(left), jobs, cache):
            left.discard(index)
            yield index, result
        # a worker died: on which of the first unfinished tasks shows when each has its own worker
        for index in sorted(left)[: 2 * jobs + 1]:
            case, arch = tasks[index]
            died = Result(case.name, arch, None, ("the compiler crashed: its process died",), 0.0)
            left.discard(index)
            yield index, dict(_pooled(tasks, [index], 1, cache)).get(index, died)


def _pooled(
    tasks: Sequence[tuple[Case, int]], indices: Sequence[int], jobs: int, cache: str
) -> Iterator[tuple[int, Result]]:
    """Results as they come; those that a dead worker leaves unfinished do not come."""
    context = multiprocessing.get_context("spawn")
    workers = min(jobs, len(indices))
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(cache,)
    ) as pool:
        waiting: dict[Future[Result], int] = {}
        try:
            waiting = {pool.submit(check_one, *tasks[index]): index for index in indices}
            for done in as_completed(waiting):
                if not isinstance(done.exception(), BrokenProcessPool):
                    yield waiting[done], done.result()
        except BrokenProcessPool:  # raised by submit
            return
        finally:
            for future in waiting:
                future.cancel()


def _begin(cache: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache
    import torch

    torch.set_num_threads(1)


def check_one(case: Case, arch: int) -> Result:
    """Compile a case in this process and judge it.

    Args:
        case: What to compile.
        arch: A key of `gate.TARGETS`.

    Raises:
        CannotCompileError: Nothing can be compiled here.
    """
    started = time.monotonic()
    reading, failures = None, ()
    try:
        launch = case.launch(arch)
        compiled = compile_launch(launch, arch)
        reading = read_kernel(compiled, launch, arch, ieee=case.ieee)
        failures = judge(reading, arch, ieee=case.ieee)
    except CannotCompileError:
        raise
    except Exception as error:  # whatever it is: this kernel cannot ship, the others may
        lines = str(error).strip().splitlines() or [""]
        failures = (f"{type(error).__name__}: {lines[0][:300]}",)
    return Result(case.name, arch, reading, failures, time.monotonic() - started)
