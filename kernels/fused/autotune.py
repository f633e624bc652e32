"""A search for better block sizes than the table's, for who has the time: never by itself.

from headatlas.kernels.fused.autotune import autotune

with autotune():
    attention_probe(q, k, v, entropy=True)   # measures, then remembers for this process
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar

import torch
from triton.runtime.errors import OutOfResources

from ..held import held
from .configs import Blocks, architecture, remember_blocks, use_blocks
from .rows import VALUE_SLICE, RowCall

_CANDIDATES = tuple(
    Blocks(rows, keys, warps, stages)
    for rows, keys, warps, stages in itertools.product(
        (32, 64, 128), (16, 32, 64, 128), (4, 8), (1, 2, 3)
    )
)
Timer = Callable[[Callable[[], None]], float]
_timer: ContextVar[Timer | None] = ContextVar("timer", default=None)


def autotune(timer: Timer | None = None) -> AbstractContextManager[None]:
    """Measure block sizes on the first call of every head width and type inside, on a GPU.

    What is timed is that call's sweep over the keys, with its length, detectors and statistics; the
    fastest of 72 block sizes are used from then on in this process by every kernel of that width,
    under `attach` as well. A search compiles each of them: minutes. Blocks that do not fit the
    device are passed over; values that go in slices (wider than 256) keep the table's.
    `configs.choose` tells what is used.

    Args:
        timer: Milliseconds of a function; default `triton.testing.do_bench`.

    Raises:
        RuntimeError: There is no GPU to measure on.
    """
    if timer is None and not torch.cuda.is_available():
        raise RuntimeError("autotune measures kernels on a GPU; torch finds none.")
    if timer is None:
        from triton.testing import do_bench

        timer = do_bench  # type: ignore[assignment]
    return held(_timer, timer)


def search(call: RowCall) -> None:
    """Inside `autotune`, find the blocks of a call whose width was not searched before.

    Args:
        call: What to time; its outputs are written as often as it takes.
    """
    timer = _timer.get()
    if timer is None or call.shape.d_value > VALUE_SLICE:
        return
    arch = architecture(call.inputs.q.device)
    remember_blocks(arch, call.shape, lambda: min(_CANDIDATES, key=lambda b: _time(call, b, timer)))


def _time(call: RowCall, blocks: Blocks, timer: Timer) -> float:
    with use_blocks(blocks):
        launches = call.launches(call.outputs())

    def run() -> None:
        for launch in launches:
            launch.run()

    try:
        return timer(run)
    except OutOfResources:
        return float("inf")
