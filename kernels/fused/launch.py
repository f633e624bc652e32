"""From tensors to kernel launches: what all kernels need of strides, sizes and switches."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
import triton
from jaxtyping import Float, Int32
from torch import Tensor

from .configs import Blocks, Shape, architecture, choose


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with its arguments, to be run or only compiled.

    Args:
        kernel: The jitted function.
        grid: Programs.
        arguments: Tensors, strides, sizes and numbers, in order.
        constants: Compile-time switches by name.
        warps: Warps per program.
        stages: Steps in flight.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    warps: int
    stages: int

    def run(self) -> None:
        """Start the kernel on the device of its first tensor, if there is anything to do."""
        if 0 in self.grid:
            return
        device = self.arguments[0].device
        here = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with here:
            self.kernel[self.grid](
                *self.arguments,
                **self.constants,
                num_warps=self.warps,
                num_stages=self.stages,
                enable_fp_fusion=True,
            )


@dataclass(frozen=True, eq=False)
class Inputs:
    """What every kernel reads: the scores, and which keys a row sees.

    Args:
        q: Queries.
        k: Keys.
        lo: First visible key of each row.
        hi: One past the last.
        bias: Added to the scores, batch and head axes of size 1 or full.
        scale: Factor on the dot products, positive: the largest product is then the largest score.
        softcap: Bound on the scaled scores; None applies none.
    """

    q: Float[Tensor, "batch head query d_key"]
    k: Float[Tensor, "batch kv_head key d_key"]
    lo: Int32[Tensor, "batch query"]
    hi: Int32[Tensor, "batch query"]
    bias: Float[Tensor, "#batch #head #query key"] | None
    scale: float
    softcap: float | None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Sequences, heads, queries, keys."""
        batch, heads, n_query = self.q.shape[:3]
        return batch, heads, n_query, self.k.shape[2]

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def bias_or_any(self) -> tuple[Tensor, tuple[int, int, int, int]]:
        """The bias and its strides, 0 along axes that it is broadcast over."""
        if self.bias is None:
            return self.lo, (0, 0, 0, 0)
        strides = zip(self.bias.stride(), self.bias.shape, strict=True)
        return self.bias, tuple(0 if n == 1 else s for s, n in strides)  # type: ignore[return-value]

    @property
    def numbers(self) -> tuple[float, float]:
        """Scale and softcap as the kernels take them."""
        return self.scale, self.softcap or 1.0

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time switches that all kernels share."""
        d_key = self.q.shape[-1]
        block, count, rest = split(d_key, self.q.itemsize)
        return {
            "GROUP": self.group,
            "CAPPED": self.softcap is not None,
            "BIASED": self.bias is not None,
            "D_KEY": d_key,
            "BLOCK_D": block,
            "COUNT_D": count,
            "REST_D": rest,
            "PRECISION": "ieee" if self.q.dtype == torch.float32 else None,
        }

    def shape(self, d_value: int = 0, load: int = 0) -> Shape:
        """What the choice of blocks depends on."""
        return Shape(self.q.shape[-1], d_value, self.q.itemsize, load)

    def blocks(self, shape: Shape | None = None) -> Blocks:
        """Block sizes for this device; without a shape those of a kernel that reads no values."""
        return choose(architecture(self.q.device), shape or self.shape())


_WIDEST_IEEE = 64
"""Without tensor cores every thread holds whole rows of a product's tiles in registers."""


def split(width: int, itemsize: int) -> tuple[int, int, int]:
    """A head width as tiles of powers of two of at least 16 numbers.

    Args:
        width: Numbers per head.
        itemsize: Bytes per number; products of 4 bytes go in narrower tiles.

    Returns:
        Width of a tile, how many of them, and the width of one more for what is left (or 0).

    Example:
        >>> [split(d, 2) for d in (8, 64, 80, 192, 576)]
        [(16, 1, 0), (64, 1, 0), (64, 1, 16), (128, 1, 64), (512, 1, 64)]
        >>> [split(d, 4) for d in (64, 80, 192)]
        [(64, 1, 0), (64, 1, 16), (64, 3, 0)]
    """
    block = max(16, 1 << (width.bit_length() - 1))
    if itemsize == 4:
        block = min(block, _WIDEST_IEEE)
    count = max(width // block, 1)
    rest = width - count * block
    return block, count, 0 if rest <= 0 else max(16, triton.next_power_of_2(rest))
