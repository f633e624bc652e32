"""What all kernels share: tiles of q, k and v, tiles of scores, and which keys a block reaches."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
FLOOR = tl.constexpr(-1.0e30)
"""Where a running maximum starts: finite, so that no difference of two is NaN."""
HIDDEN = tl.constexpr(-2.0e30)
"""The score of a hidden key: below the floor, so that its weight is exactly 0."""
_FAR = tl.constexpr(2**31 - 1)


@triton.jit
@no_type_check  # jaxtyping's import hook cannot wrap a kernel
def head_tile(
    base, at, ok, stride_d,
    FIRST: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """Features FIRST to FIRST + BLOCK of the rows at offsets `at`, [row, feature].

    Zero beyond WIDTH, and, under CHECK, in rows that are not `ok`.
    """
    feature = FIRST + tl.arange(0, BLOCK)
    pointer = base + at[:, None] + feature[None, :] * stride_d
    if FIRST + BLOCK > WIDTH:
        inside = feature[None, :] < WIDTH
        if CHECK:
            inside = inside & ok[:, None]
        return tl.load(pointer, mask=inside, other=0.0)
    if CHECK:
        return tl.load(pointer, mask=ok[:, None], other=0.0)
    return tl.load(pointer)


@triton.jit
@no_type_check
def head_tiles(
    base, at, ok, stride_d,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr, REST: tl.constexpr,
    CHECK: tl.constexpr,
):  # fmt: skip
    """All features of the rows at offsets `at`: COUNT tiles of BLOCK and, if REST, one of REST."""
    tiles = ()
    for i in tl.static_range(COUNT):
        tiles = tiles + (head_tile(base, at, ok, stride_d, i * BLOCK, WIDTH, BLOCK, CHECK),)
    if REST > 0:
        tiles = tiles + (head_tile(base, at, ok, stride_d, COUNT * BLOCK, WIDTH, REST, CHECK),)
    return tiles


@triton.jit
@no_type_check
def capped(dots, scale, softcap):
    """softcap · tanh(scale · dots / softcap), in units of log 2.

    By exp2, and by the series where that would cancel: 10⁻⁷ of the score, for caps of any size.
    """
    x = dots * (scale / softcap)
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    far = (1.0 - e) / (1.0 + e)
    xx = x * x
    near = 1.0 + xx * (-1 / 3 + xx * (2 / 15 + xx * (-17 / 315 + xx * (62 / 2835))))
    return (softcap * LOG2E) * tl.where(xx < 0.0625, x * near, tl.where(x < 0.0, -far, far))


@triton.jit
@no_type_check
def score_tile(
    q, K, Bias, at_row, start, row_ok, n_key, k_n, k_d, b_k, scale, softcap, lo, hi,
    EDGE: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr, D_KEY: tl.constexpr,
    BLOCK_D: tl.constexpr, COUNT_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of a block of rows and BLOCK_N keys from `start` on, [row, key].

    Plain scores are the dot products as they are: scale and log₂ e are folded into the multiply-add
    that follows, and hidden keys are minus infinity, which alone survives any scale. Capped or
    biased ones are in units of log 2, with hidden keys at HIDDEN. NaN stays NaN.
    """
    keys = tl.arange(0, BLOCK_N)
    cols = start + keys
    ok, at, K_here = cols < n_key, keys * k_n, K + tl.cast(start, tl.int64) * k_n
    k = head_tiles(K_here, at, ok, k_d, D_KEY, BLOCK_D, COUNT_D, REST_D, EDGE)
    s = tl.dot(q[0], k[0].T, input_precision=PRECISION)
    for i in tl.static_range(1, COUNT_D + (REST_D > 0)):
        s = tl.dot(q[i], k[i].T, s, input_precision=PRECISION)
    if CAPPED:
        s = capped(s, scale, softcap)
    elif BIASED:
        s = s * (scale * LOG2E)
    if BIASED:
        inside = row_ok[:, None] & (cols[None, :] < n_key)
        pointer = Bias + at_row[:, None] + cols[None, :].to(tl.int64) * b_k
        s = s + tl.load(pointer, mask=inside, other=0.0).to(tl.float32) * LOG2E
        s = tl.where(s < HIDDEN, HIDDEN, s)  # −inf and finfo.min; a maximum would swallow NaN
    if EDGE:
        seen = (cols[None, :] >= lo[:, None]) & (cols[None, :] < hi[:, None])
        s = tl.where(seen, s, HIDDEN if (CAPPED or BIASED) else float("-inf"))
    return s


@triton.jit
@no_type_check
def reach(lo, hi, row_ok, BLOCK_N: tl.constexpr):
    """Keys of a block of rows: (first, low, high, last), the inner three multiples of BLOCK_N.

    Some row sees keys of [first, last); every row sees all keys of [low, high), which may be empty.
    """
    first = tl.min(tl.where(hi > lo, lo, _FAR), 0)
    last = tl.max(hi, 0)
    first = tl.minimum(first, last) // BLOCK_N * BLOCK_N
    low = tl.cdiv(tl.max(tl.where(row_ok, lo, 0), 0), BLOCK_N) * BLOCK_N
    high = tl.min(tl.where(row_ok, hi, _FAR), 0) // BLOCK_N * BLOCK_N
    if high <= low:
        low = tl.cdiv(last, BLOCK_N) * BLOCK_N
        high = low
    return first, low, high, last


@triton.jit
@no_type_check
def log2_norm(Lse, at, ok):
    """lse in units of log 2; dead rows get a number that leaves every weight 0."""
    lse = tl.load(Lse + at, mask=ok, other=float("-inf"))
    return tl.where(lse == float("-inf"), -FLOOR, lse * LOG2E)
