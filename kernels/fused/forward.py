"""The fused forward kernel: attention and row statistics in one sweep over the keys.

Each program holds BLOCK_M queries of one head and walks over the keys in blocks of BLOCK_N, with a
running maximum m and sums of exp(s − m) that are rescaled whenever m rises (Milakov and Gimelshein
2018; Dao 2023). Beside the sum l and the output they carry

    w = Σ exp(s − m) (s − m)                              entropy = log l − w / l
    mass[i] = Σ exp(s − m) [label of query = label of key]

and for the largest weight the block of keys in which m was met, which is searched at the end. With
a KNOWN lse there is no output, and exp(s − lse) is summed as it is.

Only the first and the last blocks of keys hold keys that some row does not see. They are masked in
a loop of their own, after the loop over the others: the order of the sums is no matter.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from .tiles import FLOOR, HIDDEN, LN2, LOG2E, head_tiles, log2_norm, reach, score_tile

_NONE = tl.constexpr(2**31 - 1)
_LIFT = tl.constexpr(4096.0)


@triton.jit
@no_type_check
def _walk(
    acc, l_sum, m, w, best, mass, norm, labels, own, q, K, V, Bias, at_row,
        KLabel, Columns,
    first, n_low, high, n_block, lo, hi, row_ok, n_key,
    k_n, k_d, v_n, v_d, b_k, n_label, scale, softcap,
    EDGE: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr, KNOWN: tl.constexpr,
    ENTROPY: tl.constexpr, TOP: tl.constexpr, MATCHES: tl.constexpr, STRICT: tl.constexpr,
    COLUMNS: tl.constexpr, D_KEY: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_D: tl.constexpr,
    COUNT_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_V: tl.constexpr, COUNT_V: tl.constexpr,
    REST_V: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Every sum moved on by n_block blocks of keys: n_low from `first`, the others from `high`."""
    PLAIN: tl.constexpr = not (CAPPED or BIASED)
    factor = scale * LOG2E
    keys = tl.arange(0, BLOCK_N)
    for i in tl.range(0, n_block):
        start = first + i * BLOCK_N
        if EDGE:
            start = tl.where(i < n_low, start, high + (i - n_low) * BLOCK_N)
        start = tl.multiple_of(start, BLOCK_N)
        start64 = tl.cast(start, tl.int64)
        cols = start + keys
        s = score_tile(
            q, K, Bias, at_row, start, row_ok, n_key, k_n, k_d, b_k, scale, softcap, lo, hi,
            EDGE, CAPPED, BIASED, D_KEY, BLOCK_D, COUNT_D, REST_D, BLOCK_N, PRECISION,
        )  # fmt: skip
        m_new = m
        if TOP or not KNOWN:
            highest = tl.max(s, 1)
            if PLAIN:
                highest = highest * factor
                if EDGE:
                    highest = tl.maximum(highest, HIDDEN)
            m_new = tl.maximum(m, highest)
            if TOP:  # blocks are not met in order: among equals the lowest
                better = (highest > m) | ((highest == m) & (start < best))
                best = tl.where(better, start, best)
        reference = norm if KNOWN else m_new
        t = s * factor - reference[:, None] if PLAIN else s - reference[:, None]
        p = tl.exp2(t)
        if ENTROPY:
            if PLAIN and EDGE:
                t = tl.where(t < HIDDEN, HIDDEN, t)  # 0 · −inf would be NaN
            gain = tl.sum(p * t, 1)
        if KNOWN:
            if ENTROPY:
                w = w + gain
        else:
            alpha = tl.exp2(m - m_new)
            if ENTROPY:
                w = alpha * (w + (m - m_new) * l_sum) + gain
            l_sum = l_sum * alpha + tl.sum(p, 1)
            V_here = V + start64 * v_n
            v = head_tiles(
                V_here, keys * v_n, cols < n_key, v_d, D_VALUE, BLOCK_V, COUNT_V, REST_V, EDGE
            )
            moved = ()
            for i_v in tl.static_range(COUNT_V + (REST_V > 0)):
                kept = acc[i_v] * alpha[:, None]
                sums = tl.dot(p.to(v[i_v].dtype), v[i_v], kept, input_precision=PRECISION)
                moved = moved + (sums,)
            if COLUMNS > 0:
                moved = moved + (acc[-1] * alpha[:, None],)
            acc = moved
        if COLUMNS > 0:  # labels that keys alone carry: further columns of the values
            pointer = Columns + start64 * COLUMNS + keys[:, None] * COLUMNS
            ones = tl.load(pointer + tl.arange(0, COLUMNS)[None, :])
            if ones.dtype == tl.float32:
                found = tl.dot(p, ones, acc[-1], input_precision=PRECISION)
            else:  # in two halves of 11 bits, lifted above what float16 loses: 22 bits down to 2⁻²⁶
                lifted = p * _LIFT
                upper = lifted.to(tl.float16)
                lower = ((lifted - upper.to(tl.float32)) * _LIFT).to(tl.float16)
                found = tl.dot(upper, ones, tl.dot(lower, ones) * (1 / _LIFT))
                found = acc[-1] + found * (1 / _LIFT)
            acc = acc[:-1] + (found,)
        # after the products with the values, whose wait they fill
        for j in tl.static_range(MATCHES):
            equal = labels[j][:, None] == tl.load(
                tl.multiple_of(KLabel + (j * n_label + start), 16) + keys
            )[None, :]  # fmt: skip
            if (STRICT >> j) & 1:
                equal = equal & (cols[None, :] != own[:, None])
            hit = tl.sum(tl.where(equal, p, 0.0), 1)
            hit += mass[j] if KNOWN else mass[j] * alpha
            mass = mass[:j] + (hit,) + mass[j + 1 :]
        m = m_new
    return acc, l_sum, m, w, best, mass


@triton.jit
@no_type_check
def _search(
    best, q, K, Bias, at_row, first, last, lo, hi, row_ok, n_key, k_n, k_d, b_k, scale, softcap,
    CAPPED: tl.constexpr, BIASED: tl.constexpr, D_KEY: tl.constexpr, BLOCK_D: tl.constexpr,
    COUNT_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The key of each row's largest score, the lowest among equals, in the block `best`."""
    keys = tl.arange(0, BLOCK_N)
    found = best
    for start in tl.range(first, last, BLOCK_N, num_stages=1):
        if tl.max((best == start).to(tl.int32), 0) > 0:
            s = score_tile(
                q, K, Bias, at_row, start, row_ok, n_key, k_n, k_d, b_k, scale, softcap, lo, hi,
                True, CAPPED, BIASED, D_KEY, BLOCK_D, COUNT_D, REST_D, BLOCK_N, PRECISION,
            )  # fmt: skip
            top = tl.max(s, 1)
            key = tl.min(tl.where(s == top[:, None], start + keys[None, :], _NONE), 1)
            found = tl.where(best == start, key, found)
    return found


@triton.jit
@no_type_check
def forward_kernel(
    Q, K, V, Bias, Sinks, Lo, Hi, Own, QLabel, KLabel, Columns, Known,
    Out, Lse, Entropy, TopWeight, TopKey, Mass, ColumnMass,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d, b_b, b_h, b_q, b_k,
    heads, n_query, n_key, n_label, scale, softcap,
    GROUP: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr, SINK: tl.constexpr,
    KNOWN: tl.constexpr, ENTROPY: tl.constexpr, TOP: tl.constexpr, MATCHES: tl.constexpr,
    STRICT: tl.constexpr, COLUMNS: tl.constexpr, D_KEY: tl.constexpr, D_VALUE: tl.constexpr,
    BLOCK_D: tl.constexpr, COUNT_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_V: tl.constexpr,
    COUNT_V: tl.constexpr, REST_V: tl.constexpr, OUT_WIDTH: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M rows of one head of one sequence.

    Outputs are contiguous; Out may be a slice of D_VALUE of its OUT_WIDTH columns.
    """
    n_block = tl.cdiv(n_query, BLOCK_M)
    pid = tl.program_id(0)
    block = n_block - 1 - pid % n_block  # under a causal mask the longest rows first
    head = pid // n_block % heads
    b = (pid // n_block // heads).to(tl.int64)
    h = head.to(tl.int64)
    kv = (head // GROUP).to(tl.int64)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = rows < n_query
    lo = tl.load(Lo + b * n_query + rows, mask=row_ok, other=0)
    hi = tl.load(Hi + b * n_query + rows, mask=row_ok, other=0)
    Q += b * q_b + h * q_h
    K += b * k_b + kv * k_h
    V += b * v_b + kv * v_h
    Bias += b * b_b + h * b_h
    KLabel += b * MATCHES * n_label
    Columns += b * n_label * COLUMNS
    at_row = rows.to(tl.int64) * b_q
    at_q = rows.to(tl.int64) * q_n
    q = head_tiles(Q, at_q, row_ok, q_d, D_KEY, BLOCK_D, COUNT_D, REST_D, True)

    m = tl.full([BLOCK_M], FLOOR, tl.float32)
    l_sum = tl.zeros([BLOCK_M], tl.float32)
    w = tl.zeros([BLOCK_M], tl.float32)
    best = tl.full([BLOCK_M], _NONE, tl.int32)
    row = (b * heads + h) * n_query + rows
    norm = m
    acc = ()
    if KNOWN:
        norm = log2_norm(Known, row, row_ok)
    else:
        for _i in tl.static_range(COUNT_V):
            acc = acc + (tl.zeros([BLOCK_M, BLOCK_V], tl.float32),)
        if REST_V > 0:
            acc = acc + (tl.zeros([BLOCK_M, REST_V], tl.float32),)
    if COLUMNS > 0:
        acc = acc + (tl.zeros([BLOCK_M, COLUMNS], tl.float32),)
    mass = ()
    labels = ()
    own = lo
    if STRICT > 0:
        own = tl.load(Own + b * n_query + rows, mask=row_ok, other=-1)
    for j in tl.static_range(MATCHES):
        mass = mass + (tl.zeros([BLOCK_M], tl.float32),)
        pointer = QLabel + (b * MATCHES + j) * n_query + rows
        labels = labels + (tl.load(pointer, mask=row_ok, other=-1),)

    first, low, high, last = reach(lo, hi, row_ok, BLOCK_N)
    acc, l_sum, m, w, best, mass = _walk(
        acc, l_sum, m, w, best, mass, norm, labels, own, q, K, V, Bias, at_row,
        KLabel, Columns,
        low, 0, high, (high - low) // BLOCK_N, lo, hi, row_ok, n_key,
        k_n, k_d, v_n, v_d, b_k, n_label, scale, softcap,
        False, CAPPED, BIASED, KNOWN, ENTROPY, TOP, MATCHES, STRICT, COLUMNS, D_KEY, D_VALUE,
        BLOCK_D, COUNT_D, REST_D, BLOCK_V, COUNT_V, REST_V, BLOCK_N, PRECISION,
    )  # fmt: skip
    n_low = (low - first) // BLOCK_N
    n_high = tl.maximum(tl.cdiv(last - high, BLOCK_N), 0)
    acc, l_sum, m, w, best, mass = _walk(
        acc, l_sum, m, w, best, mass, norm, labels, own, q, K, V, Bias, at_row,
        KLabel, Columns,
        first, n_low, high, n_low + n_high, lo, hi, row_ok, n_key,
        k_n, k_d, v_n, v_d, b_k, n_label, scale, softcap,
        True, CAPPED, BIASED, KNOWN, ENTROPY, TOP, MATCHES, STRICT, COLUMNS, D_KEY, D_VALUE,
        BLOCK_D, COUNT_D, REST_D, BLOCK_V, COUNT_V, REST_V, BLOCK_N, PRECISION,
    )  # fmt: skip

    share = norm * 0.0 + 1.0  # 1, or NaN where lse is
    if KNOWN:
        lse2 = norm
        entropy = -w
    else:
        m_all = m
        total = l_sum
        risen = 1.0 + m * 0.0
        if SINK:
            sink = tl.load(Sinks + h).to(tl.float32) * LOG2E
            m_all = tl.maximum(m, sink)
            risen = tl.exp2(m - m_all)
            total = l_sum * risen + tl.exp2(sink - m_all)
        dead = total == 0.0
        total = tl.where(dead, 1.0, total)
        share = risen / total  # turns sums of exp(s − m) into sums of weights
        lse2 = m_all + tl.log2(total)
        tl.store(Lse + row, tl.where(dead, float("-inf"), lse2 * LN2), mask=row_ok)
        # −Σ A ln A, A = exp(s − lse): of the keys alone, a sink's share is added by the host
        entropy = share * (l_sum * (lse2 - m) - w)
        out = Out + row * OUT_WIDTH
        for i in tl.static_range(COUNT_V):
            _store_rows(out, acc[i], share, row_ok, i * BLOCK_V, D_VALUE, BLOCK_V)
        if REST_V > 0:
            _store_rows(out, acc[COUNT_V], share, row_ok, COUNT_V * BLOCK_V, D_VALUE, REST_V)
    if ENTROPY:
        entropy = tl.where(entropy < 0.0, 0.0, entropy * LN2)
        tl.store(Entropy + row, entropy * (share * 0.0 + 1.0), mask=row_ok)
    if TOP:
        key = _search(
            best, q, K, Bias, at_row, first, last, lo, hi, row_ok, n_key, k_n, k_d, b_k,
            scale, softcap, CAPPED, BIASED, D_KEY, BLOCK_D, COUNT_D, REST_D, BLOCK_N, PRECISION,
        )  # fmt: skip
        is_number = share == share
        weight = tl.where(best == _NONE, 0.0, tl.exp2(m - lse2))
        tl.store(TopWeight + row, weight * (share * 0.0 + 1.0), mask=row_ok)
        tl.store(TopKey + row, tl.where(is_number & (best != _NONE), key, -1), mask=row_ok)
    for j in tl.static_range(MATCHES):
        at = Mass + ((b * MATCHES + j) * heads + h) * n_query + rows
        tl.store(at, mass[j] * share, mask=row_ok)
    if COLUMNS > 0:
        _store_rows(ColumnMass + row * COLUMNS, acc[-1], share, row_ok, 0, COLUMNS, COLUMNS)


@triton.jit
@no_type_check
def _store_rows(
    row, sums, share, row_ok, FIRST: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Sums of exp(s − m) as sums of weights, into features FIRST to FIRST + BLOCK of WIDTH."""
    feature = FIRST + tl.arange(0, BLOCK)
    inside = row_ok[:, None] & (feature[None, :] < WIDTH)
    at = row[:, None] + feature[None, :]
    tl.store(at, (sums * share[:, None]).to(row.dtype.element_ty), mask=inside)
