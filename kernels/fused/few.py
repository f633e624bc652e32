"""Masses of matches with few keys per row: one dot product for each, from the known lse.

    mass[i] = Σ over the listed keys j of exp(s[i, j] − lse[i])

A row of q is read once for all matches. Next to the N dot products of the row's attention, the few
that are made here again cost next to nothing, and no label is compared with the other keys.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from .tiles import LOG2E, capped, head_tiles, log2_norm


@triton.jit
@no_type_check
def few_kernel(
    Q, K, Bias, Lo, Hi, Lse, Keys, Mass,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, b_b, b_h, b_q, b_k,
    heads, n_query, n_match, scale, softcap,
    GROUP: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr, D_KEY: tl.constexpr,
    BLOCK_D: tl.constexpr, COUNT_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of one head, against up to BLOCK_N keys of each match (−1: none)."""
    n_block = tl.cdiv(n_query, BLOCK_M)
    pid = tl.program_id(0)
    head = pid // n_block % heads
    b = (pid // n_block // heads).to(tl.int64)
    h = head.to(tl.int64)
    rows = pid % n_block * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = rows < n_query
    norm = log2_norm(Lse, (b * heads + h) * n_query + rows, row_ok)
    Q += b * q_b + h * q_h
    K += b * k_b + h // GROUP * k_h
    Bias += b * b_b + h * b_h
    at_q = rows.to(tl.int64) * q_n
    q = head_tiles(Q, at_q, row_ok, q_d, D_KEY, BLOCK_D, COUNT_D, REST_D, True)
    for j in tl.range(0, n_match):
        mass = norm * 0.0  # NaN where the row is
        listed = Keys + ((b * n_match + j) * n_query + rows) * BLOCK_N
        for c in tl.static_range(BLOCK_N):
            key = tl.load(listed + c, mask=row_ok, other=-1)
            ok = key >= 0
            at_k = key.to(tl.int64) * k_n
            k = head_tiles(K, at_k, ok, k_d, D_KEY, BLOCK_D, COUNT_D, REST_D, True)
            s = norm * 0.0
            for i in tl.static_range(COUNT_D + (REST_D > 0)):
                s += tl.sum(q[i].to(tl.float32) * k[i].to(tl.float32), 1)
            s = capped(s, scale, softcap) if CAPPED else s * (scale * LOG2E)
            if BIASED:
                pointer = Bias + rows.to(tl.int64) * b_q + key.to(tl.int64) * b_k
                s = s + tl.load(pointer, mask=ok, other=0.0).to(tl.float32) * LOG2E
            mass += tl.where(ok, tl.exp2(s - norm), 0.0)
        at = Mass + ((b * n_match + j) * heads + h) * n_query + rows
        tl.store(at, mass, mask=row_ok)
