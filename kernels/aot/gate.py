"""What a kernel's machine code must look like, and whether it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..fused.configs import SHARED_KIB
from .compile import CompilableLaunch, Compiled
from .sass import Loop, count, is_spill

_REGISTER_FILE = 65536  # per block and per multiprocessor, of 32 bits
_REGISTER_STEP = 8  # per thread, in which they are handed out
_MMA = re.compile(r"[BDHIOQ]G?MMA|UTC\w*MMA", re.ASCII)
_NEARLY = 0.9


@dataclass(frozen=True)
class Target:
    """What the gate asks of an architecture.

    Args:
        mma: Name of the instructions that must multiply its matrices.
        is_mma: Whether an instruction's kind is one of them.
        shared_limit: Bytes of shared memory that a block may ask for.

    Example:
        >>> TARGETS[90].mma, TARGETS[90].shared_limit
        ('HGMMA', 232448)
    """

    mma: str
    is_mma: Callable[[str], bool]
    shared_limit: int


def _named(mma: str, kib: int) -> Target:
    wanted = re.compile(mma.replace("*", r"\w*"), re.ASCII)
    return Target(mma, lambda kind: wanted.fullmatch(kind) is not None, kib * 1024)


TARGETS = {
    arch: _named(mma, SHARED_KIB[arch])
    for arch, mma in {
        80: "HMMA", 86: "HMMA", 89: "HMMA", 90: "HGMMA", 100: "UTC*MMA", 120: "HMMA",
    }.items()
}  # fmt: skip
SHIPPED = (80, 90, 100, 120)
"""What is compiled for where nothing is said: one of each generation."""


@dataclass(frozen=True)
class Reading:
    """What one kernel takes on one architecture.

    Args:
        blocks: Queries and keys per step (BLOCK_M, BLOCK_N).
        warps: Warps per program.
        stages: Steps in flight.
        registers: Per thread.
        shared: Bytes that a launch asks for.
        stack: Bytes per thread.
        spills: Instructions that load or store the stack, anywhere.
        hot_spills: The most of them in one loop that multiplies.
        mma: Matrix instructions of the architecture's class, in all.
        other_mma: Matrix instructions of another class.
        hot_loops: Loops that multiply.
        slots: Issue slots per score in the main loop; None without one.

    Example:
        >>> Reading((128, 64), 8, 3, 168, 131072, 0, 0, 0, 24, 0, 2, 11.5).slots
        11.5
    """

    blocks: tuple[int, int]
    warps: int
    stages: int
    registers: int
    shared: int
    stack: int
    spills: int
    hot_spills: int
    mma: int
    other_mma: int
    hot_loops: int
    slots: float | None


def read_kernel(compiled: Compiled, launch: CompilableLaunch, arch: int, *, ieee: bool) -> Reading:
    """Read a kernel's figures out of its machine code.

        slots = instructions of the main loop / (BLOCK_M · BLOCK_N / threads)

    The main loop is the shortest among the innermost loops that multiply most: that of unmasked
    blocks. Each of its instructions counts once, also those that a branch skips.

    Args:
        compiled: The machine code.
        launch: Its block sizes and warps.
        arch: A key of `TARGETS`.
        ieee: Whether the kernel multiplies in full float32, which no matrix instruction does; then
            its FFMA are looked at.

    Raises:
        SassError: the control flow cannot be followed.
    """
    is_class = TARGETS[arch].is_mma
    multiplies = _is_ffma if ieee else _is_mma
    hot = [
        loop
        for code in compiled.codes
        for outer in code.loops()
        for loop in outer.nest()
        if loop.count(multiplies)
    ]
    everything = [instruction for code in compiled.codes for instruction in code.instructions]
    mma = count(everything, is_class)
    blocks = launch.constants["BLOCK_M"], launch.constants["BLOCK_N"]
    main = _main_loop(hot, multiplies)
    scores = blocks[0] * blocks[1] / (32 * launch.warps)
    return Reading(
        blocks=blocks,
        warps=launch.warps,
        stages=launch.stages,
        registers=compiled.resources.registers,
        shared=compiled.shared,
        stack=compiled.resources.stack,
        spills=count(everything, is_spill),
        hot_spills=max((loop.count(is_spill) for loop in hot), default=0),
        mma=mma,
        other_mma=count(everything, _is_mma) - mma,
        hot_loops=len(hot),
        slots=None if main is None else len(main.instructions) / scores,
    )


def judge(reading: Reading, arch: int, *, ieee: bool) -> tuple[str, ...]:
    """Why a kernel may not ship; nothing where it may.

    Args:
        reading: What it takes.
        arch: A key of `TARGETS`.
        ieee: Whether it must multiply in full float32.

    Example:
        >>> fine = Reading((128, 64), 8, 3, 168, 131072, 0, 0, 0, 24, 0, 2, 11.5)
        >>> judge(fine, 90, ieee=False)
        ()
        >>> judge(fine, 120, ieee=False)
        ('131072 bytes of shared memory, over the limit of 101376',)
    """
    return tuple(_failures(reading, TARGETS[arch], ieee))


def _failures(reading: Reading, target: Target, ieee: bool) -> Iterator[str]:
    matrix = reading.mma + reading.other_mma
    if ieee and matrix:
        yield f"{matrix} matrix instructions in a kernel of full float32: its products are rounded"
    if not ieee and not reading.mma:
        instead = f", {reading.other_mma} of another class" * bool(reading.other_mma)
        yield f"no {target.mma} in it{instead}"
    if not reading.hot_loops:
        yield f"no loop with {'FFMA' if ieee else 'matrix instructions'}"
    if reading.shared > target.shared_limit:
        yield f"{reading.shared} bytes of shared memory, over the limit of {target.shared_limit}"
    if reading.hot_spills:
        yield f"{reading.hot_spills} spills (LDL, STL) in a loop that multiplies"
    threads = 32 * reading.warps
    taken = -(-reading.registers // _REGISTER_STEP) * _REGISTER_STEP * threads
    if taken > _REGISTER_FILE:
        yield f"{taken} registers in {threads} threads, over the limit of {_REGISTER_FILE}"


def _is_mma(kind: str) -> bool:
    return _MMA.fullmatch(kind) is not None


def _is_ffma(kind: str) -> bool:
    return kind in ("FFMA", "FFMA2")


def _is_exp(kind: str) -> bool:
    return kind == "MUFU"


def _main_loop(hot: Sequence[Loop], multiplies: Callable[[str], bool]) -> Loop | None:
    innermost = [loop for loop in hot if not any(inner.count(multiplies) for inner in loop.inner)]
    # not that which only looks for the largest score again: it makes no weights
    innermost = [loop for loop in innermost if loop.count(_is_exp)] or innermost
    most = max((loop.count(multiplies) for loop in innermost), default=0)
    busy = [loop for loop in innermost if loop.count(multiplies) >= _NEARLY * most]
    return min(busy, key=lambda loop: len(loop.instructions), default=None)


def as_dict(reading: Reading) -> dict[str, Any]:
    """A reading as plain values for JSON.

    Example:
        >>> as_dict(Reading((16, 16), 4, 1, 32, 0, 0, 0, 0, 0, 0, 0, None))["blocks"]
        [16, 16]
    """
    return {**vars(reading), "blocks": list(reading.blocks)}
