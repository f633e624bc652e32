"""The roofline: the least time that a call could take on a device, from measured ceilings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .problem import Ask, Setting

_STATISTIC = 4  # bytes of a float32 or int32


@dataclass(frozen=True)
class Ceilings:
    """What the device reaches at its best, as measured.

    Args:
        copy_bytes_per_s: Bytes read plus bytes written per second of a large copy.
        matmul_flops_per_s: Operations per second of a large bfloat16 matrix product.

    Example:
        >>> Ceilings(4e12, 8e14).copy_bytes_per_s
        4000000000000.0
    """

    copy_bytes_per_s: float
    matmul_flops_per_s: float


@dataclass(frozen=True)
class Work:
    """What no implementation of a call can avoid.

    Args:
        flops: Multiplications and additions of the two matrix products.
        n_bytes: Bytes of inputs, read once, and of outputs, written once.

    Example:
        >>> Work(2.0, 8).n_bytes
        8
    """

    flops: float
    n_bytes: int


def work(setting: Setting, ask: Ask) -> Work:
    """The work of causal attention with what is asked for beside it.

        flops = 2 · batch · heads · N (N + 1) / 2 · (d_key + d_value)

    Labels and key intervals, O(N) per sequence and not per head, are left out, and so is what an
    implementation computes twice: the floor is below all of them.

    Args:
        setting: Sizes.
        ask: What is asked for.

    Example:
        >>> from .problem import Ask, Setting
        >>> work(Setting(d=64, n=4, heads=2, kv_heads=2), Ask())
        Work(flops=5120.0, n_bytes=4128)
    """
    rows = setting.batch * setting.heads * setting.n
    flops = 2.0 * rows * (setting.n + 1) / 2 * (2 * setting.d)
    inputs = rows * setting.d + 2 * setting.batch * setting.kv_heads * setting.n * setting.d
    n_bytes = (inputs + rows * setting.d) * setting.dtype.itemsize
    per_row = 1 + ask.entropy + 2 * ask.top + ask.n_match + ask.received  # 1: lse
    n_bytes += rows * per_row * _STATISTIC
    wanted = ask.weights
    if wanted is not None:
        high, wide = wanted.pool or (1, 1)
        entries = -(-setting.n // high) * -(-setting.n // wide)
        n_bytes += (
            setting.batch * setting.heads * entries * (wanted.dtype or setting.dtype).itemsize
        )
    return Work(flops, n_bytes)


def floor_ms(needed: Work, ceilings: Ceilings) -> float:
    """The least time for some work: whichever ceiling it meets first.

        floor = max(flops / matmul_flops_per_s, bytes / copy_bytes_per_s)

    Args:
        needed: The work.
        ceilings: Of the device.

    Example:
        >>> floor_ms(Work(flops=2e12, n_bytes=10**9), Ceilings(1e12, 1e15))
        2.0
    """
    by_products = needed.flops / ceilings.matmul_flops_per_s
    return 1e3 * max(by_products, needed.n_bytes / ceilings.copy_bytes_per_s)
