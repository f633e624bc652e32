"""Block sizes per architecture: a static table, so that a run never waits for a search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from ..held import held

# KiB of shared memory that one program may hold (CUDA C++ Programming Guide, compute capabilities)
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
LEAST_ARCHITECTURE = 80


@dataclass(frozen=True)
class Blocks:
    """How a kernel cuts its work.

    Args:
        rows: Queries per program, a power of two.
        keys: Keys per step, a power of two of at most 128 (labels are padded to 128).
        warps: Warps of 32 threads.
        stages: Steps of keys and values in flight.

    Example:
        >>> Blocks(128, 64, 8, 3).keys
        64
    """

    rows: int
    keys: int
    warps: int
    stages: int

    def __post_init__(self) -> None:
        if self.keys > 128:
            raise ValueError(f"labels are padded to 128 keys; got blocks of {self.keys}.")


@dataclass(frozen=True)
class Shape:
    """What the choice of blocks depends on.

    Args:
        d_key: Width of queries and keys.
        d_value: Width of values, of one slice where they are sliced; 0 where none are read.
        itemsize: Bytes per number, 2 or 4.
        load: What a row holds besides its output: 0 is little, 1 is strict or many matches, or
            statistics under a softcap or a bias, 2 is statistics under both.

    Example:
        >>> Shape(192, 128, 2).fit, Shape(256, 256, 2).fit, Shape(576, 256, 2).fit
        ('narrow', 'wide', 'widest')
        >>> Shape(64, 64, 2, load=1).fit
        'narrow, full'
    """

    d_key: int
    d_value: int
    itemsize: int
    load: int = 0

    @property
    def fit(self) -> str:
        """The row of the table."""
        if self.d_key <= 192 and self.d_value <= 128:
            return ("narrow", "narrow, full", "narrow, packed")[self.load * (self.itemsize == 2)]
        if self.d_key <= 256:
            return "wide, full" if self.load and self.itemsize == 2 else "wide"
        return "widest"


# Found by compiling the fullest kernels of each row for every class: the largest blocks whose loops
# keep all that they sum in registers and use the architecture's matrix instructions.
_CLASSES = {80: "ampere", 87: "ampere", 90: "hopper", 100: "blackwell", 103: "blackwell"}
_TABLE = {
    (2, "narrow"): {
        "ampere": Blocks(128, 32, 8, 2), "hopper": Blocks(128, 64, 8, 3),
        "blackwell": Blocks(128, 64, 8, 3), "small": Blocks(128, 16, 8, 2),
    },
    (2, "narrow, full"): {
        "ampere": Blocks(128, 32, 8, 2), "hopper": Blocks(128, 64, 8, 3),
        "blackwell": Blocks(128, 32, 8, 3), "small": Blocks(128, 16, 8, 2),
    },
    (2, "narrow, packed"): {
        "ampere": Blocks(128, 32, 8, 2), "hopper": Blocks(128, 32, 8, 3),
        "blackwell": Blocks(128, 32, 8, 3), "small": Blocks(64, 32, 8, 2),
    },
    (2, "wide"): {
        "ampere": Blocks(32, 32, 8, 2), "hopper": Blocks(64, 32, 8, 2),
        "blackwell": Blocks(64, 32, 8, 2), "small": Blocks(32, 32, 8, 2),
    },
    (2, "wide, full"): {
        "ampere": Blocks(32, 16, 8, 2), "hopper": Blocks(64, 32, 8, 2),
        "blackwell": Blocks(64, 32, 8, 2), "small": Blocks(32, 16, 8, 2),
    },
    (2, "widest"): {
        "ampere": Blocks(32, 16, 8, 2), "hopper": Blocks(64, 32, 8, 2),
        "blackwell": Blocks(64, 16, 8, 1), "small": Blocks(32, 16, 8, 2),
    },
    (4, "narrow"): {
        "ampere": Blocks(32, 32, 8, 2), "hopper": Blocks(32, 32, 8, 2),
        "blackwell": Blocks(32, 32, 8, 2), "small": Blocks(32, 32, 8, 2),
    },
    (4, "wide"): {
        "ampere": Blocks(32, 32, 8, 2), "hopper": Blocks(32, 32, 8, 2),
        "blackwell": Blocks(32, 32, 8, 2), "small": Blocks(32, 16, 8, 1),
    },
    (4, "widest"): {
        "ampere": Blocks(32, 16, 8, 1), "hopper": Blocks(32, 16, 8, 1),
        "blackwell": Blocks(32, 16, 8, 1), "small": Blocks(16, 16, 8, 1),
    },
}  # fmt: skip
_INTERPRETED = Blocks(64, 64, 4, 1)
_tuned: dict[tuple[int, Shape], Blocks] = {}

_forced: ContextVar[Blocks | None] = ContextVar("forced", default=None)
_target: ContextVar[int | None] = ContextVar("target", default=None)


def use_blocks(blocks: Blocks | None) -> AbstractContextManager[None]:
    """Every kernel started inside takes these blocks: for tests, and for a search of one's own.

    Args:
        blocks: What to use, without a check against the device's memory; None: the table again.

    Example:
        >>> with use_blocks(Blocks(16, 16, 4, 1)):
        ...     choose(None, Shape(64, 64, 2)).rows
        16
    """
    return held(_forced, blocks)


def use_architecture(arch: int) -> AbstractContextManager[None]:
    """Launches made inside are those of an architecture, wherever their tensors are.

    Args:
        arch: Compute capability, major · 10 + minor.

    Example:
        >>> with use_architecture(90):
        ...     architecture(torch.device("cpu"))
        90
    """
    return held(_target, arch)


def choose(arch: int | None, shape: Shape) -> Blocks:
    """The blocks of the table for an architecture and a shape.

    Args:
        arch: Compute capability, major · 10 + minor; None is Triton's interpreter, which has no
            memory to run out of.
        shape: Widths and item size.

    Returns:
        Blocks of its class; an architecture that is not listed gets those of the smallest memory.

    Raises:
        ValueError: An architecture without tensor cores for bfloat16 (before sm_80).

    Example:
        >>> choose(90, Shape(128, 128, 2))
        Blocks(rows=128, keys=64, warps=8, stages=3)
        >>> choose(89, Shape(576, 256, 2))
        Blocks(rows=32, keys=16, warps=8, stages=2)
    """
    forced = _forced.get()
    if forced is not None:
        return forced
    if arch is None:
        return _INTERPRETED
    if arch < LEAST_ARCHITECTURE:
        raise ValueError(f"the Triton probe needs compute capability 8.0 or higher; got {arch}.")
    table = _TABLE[shape.itemsize, shape.fit][_CLASSES.get(arch, "small")]
    return _tuned.get((arch, shape), table)


def remember_blocks(arch: int | None, shape: Shape, find: Callable[[], Blocks]) -> None:
    """Let `choose` give what a search found, in this process; it is made once.

    Args:
        arch: As for `choose`; for the interpreter nothing is searched.
        shape: As for `choose`.
        find: The search.

    Example:
        >>> remember_blocks(None, Shape(64, 64, 2), lambda: Blocks(16, 16, 4, 1))
        >>> choose(None, Shape(64, 64, 2)).rows
        64
    """
    if arch is not None and (arch, shape) not in _tuned:
        _tuned[arch, shape] = find()


def architecture(device: torch.device) -> int | None:
    """Compute capability of a device as one number; None for the interpreter's CPU.

    Args:
        device: Where the tensors are.

    Returns:
        90 for 9.0; None on a CPU.

    Example:
        >>> architecture(torch.device("cpu"))
    """
    target = _target.get()
    if target is not None or device.type != "cuda":
        return target
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
