"""The kernels that read A once the log-sum-exp is known: whole rows, or cells of a coarse grid.

    A[i, j] = exp(s[i, j] − lse[i])

The scores are computed again: with the write of A to hide behind, that is cheaper than any way to
keep them.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from .tiles import LOG2E, head_tiles, log2_norm, reach, score_tile


@triton.jit
@no_type_check
def _row_facts(Lo, Hi, Lse, rows, row_ok, b_q):
    """First and last visible key of some rows of a head, their norm, and where their bias lies."""
    lo = tl.load(Lo + rows, mask=row_ok, other=0)
    hi = tl.load(Hi + rows, mask=row_ok, other=0)
    return lo, hi, log2_norm(Lse, rows, row_ok), rows.to(tl.int64) * b_q


@triton.jit
@no_type_check
def weigh_tile(
    q, K, Bias, at_row, start, end, row_ok, lo, hi, norm, n_key, k_n, k_d, b_k,
    scale, softcap,
    CAPPED: tl.constexpr, BIASED: tl.constexpr, D_KEY: tl.constexpr, BLOCK_D: tl.constexpr,
    COUNT_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A of a block of rows over keys start to min(end, start + BLOCK_N), [row, key]; 0 beyond."""
    cols = start + tl.arange(0, BLOCK_N)
    s = score_tile(
        q, K, Bias, at_row, start, row_ok, n_key, k_n, k_d, b_k, scale, softcap, lo, hi,
        True, CAPPED, BIASED, D_KEY, BLOCK_D, COUNT_D, REST_D, BLOCK_N, PRECISION,
    )  # fmt: skip
    factor = 1.0 if (CAPPED or BIASED) else scale * LOG2E
    seen = (cols[None, :] >= lo[:, None]) & (cols[None, :] < hi[:, None]) & (cols < end)[None, :]
    return tl.where(seen, tl.exp2(s * factor - norm[:, None]), 0.0)


@triton.jit
@no_type_check
def weights_kernel(
    Q, K, Bias, Lo, Hi, Lse, Heads, Rows, W,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, b_b, b_h, b_q, b_k, w_b, w_h, w_n,
    heads, n_query, n_key, n_chosen, n_row, n_padded, scale, softcap,
    GROUP: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr, CHOSEN_ROWS: tl.constexpr,
    D_KEY: tl.constexpr, BLOCK_D: tl.constexpr, COUNT_D: tl.constexpr, REST_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of a chosen head, hidden keys and the padding of the row included."""
    n_block = tl.cdiv(n_row, BLOCK_M)
    pid = tl.program_id(0)
    slot = (pid // n_block % n_chosen).to(tl.int64)
    b = (pid // n_block // n_chosen).to(tl.int64)
    h = tl.load(Heads + slot).to(tl.int64)
    place = pid % n_block * BLOCK_M + tl.arange(0, BLOCK_M)
    in_place = place < n_row
    rows = place
    row_ok = in_place
    if CHOSEN_ROWS:  # −1 marks an unused slot, whose row of A is 0
        rows = tl.load(Rows + b * n_row + place, mask=in_place, other=-1)
        row_ok = rows >= 0
    Q += b * q_b + h * q_h
    K += b * k_b + h // GROUP * k_h
    Bias += b * b_b + h * b_h
    W += b * w_b + slot * w_h
    Lse += (b * heads + h) * n_query
    lo, hi, norm, at_row = _row_facts(Lo + b * n_query, Hi + b * n_query, Lse, rows, row_ok, b_q)
    q = head_tiles(Q, rows.to(tl.int64) * q_n, row_ok, q_d, D_KEY, BLOCK_D, COUNT_D, REST_D, True)
    keys = tl.arange(0, BLOCK_N)
    at_w = W + place.to(tl.int64)[:, None] * w_n + keys[None, :]
    nothing = tl.zeros([BLOCK_M, BLOCK_N], W.dtype.element_ty)
    first, _, _, last = reach(lo, hi, row_ok, BLOCK_N)
    end = tl.cdiv(last, BLOCK_N) * BLOCK_N
    for start in tl.range(0, first, BLOCK_N):
        tl.store(at_w + start, nothing, mask=in_place[:, None])
    for start in tl.range(first, end, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        A = weigh_tile(
            q, K, Bias, at_row, start, n_key, row_ok, lo, hi, norm, n_key, k_n, k_d, b_k,
            scale, softcap, CAPPED, BIASED, D_KEY, BLOCK_D, COUNT_D, REST_D, BLOCK_N, PRECISION,
        )  # fmt: skip
        fits = in_place[:, None] & (start + keys < n_padded)[None, :]
        tl.store(at_w + start, A.to(W.dtype.element_ty), mask=fits)
    for start in tl.range(end, n_padded, BLOCK_N):
        fits = in_place[:, None] & (start + keys < n_padded)[None, :]
        tl.store(at_w + start, nothing, mask=fits)


@triton.jit
@no_type_check
def pooled_kernel(
    Q, K, Bias, Lo, Hi, Lse, Heads, Grid,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, b_b, b_h, b_q, b_k,
    heads, n_query, n_key, n_chosen, n_band, n_column, band, column, scale, softcap,
    GROUP: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr, LARGEST: tl.constexpr,
    D_KEY: tl.constexpr, BLOCK_D: tl.constexpr, COUNT_D: tl.constexpr, REST_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A band of `band` queries: the sum, or the largest, of A over every `column` keys.

    Writes [sequence, chosen head, band, column].
    """
    pid = tl.program_id(0)
    which = pid % n_band
    slot = (pid // n_band % n_chosen).to(tl.int64)
    b = (pid // n_band // n_chosen).to(tl.int64)
    h = tl.load(Heads + slot).to(tl.int64)
    Q += b * q_b + h * q_h
    K += b * k_b + h // GROUP * k_h
    Bias += b * b_b + h * b_h
    Lo += b * n_query
    Hi += b * n_query
    Lse += (b * heads + h) * n_query
    Grid += ((b * n_chosen + slot) * n_band + which) * n_column
    last_row = tl.minimum((which + 1) * band, n_query)
    for cell in tl.range(0, n_column):
        begin = cell * column
        end = tl.minimum(begin + column, n_key)
        value = tl.zeros([BLOCK_M], tl.float32)
        for row in tl.range(which * band, last_row, BLOCK_M):
            rows = row + tl.arange(0, BLOCK_M)
            row_ok = rows < last_row
            lo, hi, norm, at_row = _row_facts(Lo, Hi, Lse, rows, row_ok, b_q)
            q = head_tiles(
                Q, rows.to(tl.int64) * q_n, row_ok, q_d, D_KEY, BLOCK_D, COUNT_D, REST_D, True
            )
            first, _, _, last = reach(lo, hi, row_ok, BLOCK_N)
            from_here = tl.maximum(begin, begin + (first - begin) // BLOCK_N * BLOCK_N)
            for start in tl.range(from_here, tl.minimum(end, last), BLOCK_N):
                A = weigh_tile(
                    q, K, Bias, at_row, start, end, row_ok, lo, hi, norm, n_key, k_n, k_d, b_k,
                    scale, softcap, CAPPED, BIASED, D_KEY, BLOCK_D, COUNT_D, REST_D, BLOCK_N,
                    PRECISION,
                )  # fmt: skip
                if LARGEST:
                    value = _larger(value, _largest(A, 1))
                else:
                    value += tl.sum(A, 1)
        tl.store(Grid + cell, _largest(value, 0) if LARGEST else tl.sum(value, 0))


@triton.jit
@no_type_check
def _largest(A, AXIS: tl.constexpr):
    """The maximum along an axis, or NaN where there is one: dropped, it would hide a spoilt row."""
    spoilt = tl.sum(A, AXIS)
    return tl.where(spoilt == spoilt, tl.max(A, AXIS), spoilt)


@triton.jit
@no_type_check
def _larger(a, b):
    """The larger of two, or NaN if one is."""
    spoilt = a + b
    return tl.where(spoilt == spoilt, tl.maximum(a, b), spoilt)


@triton.jit
@no_type_check
def received_kernel(
    Q, K, Bias, Lo, Hi, Lse, Received,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, b_b, b_h, b_q, b_k,
    heads, n_query, n_key, scale, softcap,
    GROUP: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr, D_KEY: tl.constexpr,
    BLOCK_D: tl.constexpr, COUNT_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The weight that BLOCK_N keys of one head receive from all rows, which it walks over.

    One program owns its keys, so that the order of the sum never changes.
    """
    n_block = tl.cdiv(n_key, BLOCK_N)
    pid = tl.program_id(0)
    start = pid % n_block * BLOCK_N
    head = pid // n_block % heads
    b = (pid // n_block // heads).to(tl.int64)
    h = head.to(tl.int64)
    Q += b * q_b + h * q_h
    K += b * k_b + h // GROUP * k_h
    Bias += b * b_b + h * b_h
    Lo += b * n_query
    Hi += b * n_query
    Lse += (b * heads + h) * n_query
    within = tl.arange(0, BLOCK_M)
    begin = n_query
    end = 0
    for row in tl.range(0, n_query, BLOCK_M):  # which rows see these keys at all
        ok = row + within < n_query
        lo = tl.load(Lo + row + within, mask=ok, other=0)
        hi = tl.load(Hi + row + within, mask=ok, other=0)
        some = tl.max(((lo < start + BLOCK_N) & (hi > start)).to(tl.int32), 0)
        begin = tl.where(some > 0, tl.minimum(begin, row), begin)
        end = tl.where(some > 0, row + BLOCK_M, end)
    sums = tl.zeros([BLOCK_N], tl.float64)  # many rows, few additions
    for row in tl.range(begin, tl.minimum(end, n_query), BLOCK_M):
        rows = row + within
        row_ok = rows < n_query
        lo, hi, norm, at_row = _row_facts(Lo, Hi, Lse, rows, row_ok, b_q)
        q = head_tiles(
            Q, rows.to(tl.int64) * q_n, row_ok, q_d, D_KEY, BLOCK_D, COUNT_D, REST_D, True
        )
        A = weigh_tile(
            q, K, Bias, at_row, start, n_key, row_ok, lo, hi, norm, n_key, k_n, k_d, b_k,
            scale, softcap, CAPPED, BIASED, D_KEY, BLOCK_D, COUNT_D, REST_D, BLOCK_N, PRECISION,
        )  # fmt: skip
        sums += tl.sum(A, 0).to(tl.float64)
    cols = start + tl.arange(0, BLOCK_N)
    tl.store(Received + (b * heads + h) * n_key + cols, sums.to(tl.float32), mask=cols < n_key)
