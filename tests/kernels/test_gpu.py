"""The compiled kernels on a CUDA GPU: `python -m pytest -m gpu tests/kernels`.

The interpreter's tests reach every branch; here is what only a GPU can show: matrix instructions,
bfloat16, blocks as they ship, races, 64-bit addresses, torch.compile and aten's backward. Every new
kernel costs seconds to compile, so not all variants are run with all types and outputs: what shares
no code with one another is not multiplied.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headatlas.kernels.api import Mask, Match, ProbeOut, Scores, Weights, attention_probe
from headatlas.kernels.bench.check import poisoned
from headatlas.kernels.fused.configs import architecture
from headatlas.kernels.reference import probe as reference
from headatlas.kernels.values import Request

from .variants import HIDDEN, Variant, ask, check

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LIMIT_S = 240
STATISTICS = ("mass", "entropy", "top_weight", "sink_mass", "weights", "received")
_started = time.monotonic()


@pytest.fixture(scope="module", autouse=True)
def clock():
    global _started
    _started = time.monotonic()


@pytest.fixture(autouse=True)
def full_float32():
    """The oracle's companions multiply in float32, not in tf32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def poisoned_ask(request: Request, mask: Mask) -> ProbeOut:
    with poisoned(GPU):
        got = ask(request, mask, "triton")
        torch.cuda.synchronize()
    return got


def normal(*shape: int, dtype: torch.dtype = FP32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(GPU, dtype)


# every variant

N = 509
_HERE = torch.arange(N)


def _biased(normal: Callable[..., Tensor], variant: Variant) -> Tensor:
    bias = normal(1, variant.heads, variant.n_query, variant.n_key)
    bias[:, :, :, 5:70] = -torch.inf
    bias[:, 0, 170] = -torch.inf  # a dead row
    bias[:, 0, 311, 3:] = HIDDEN  # as Hugging Face's masks hide
    return bias


def _row_bias(normal: Callable[..., Tensor], variant: Variant) -> Tensor:
    return normal(variant.batch, 1, 1, variant.n_key)


def _sinks(normal: Callable[..., Tensor], variant: Variant) -> Tensor:
    return 9 * normal(variant.heads)


def wide(**options) -> Variant:
    return Variant(**{"n_query": N, "n_key": N, "d_key": 64, "d_value": 64, **options})


VARIANTS = {
    "mha": wide(n_query=997, n_key=997),
    "gqa, bidirectional, Nq < Nk": wide(
        heads=4, n_query=333, n_key=701, batch=2, mask={"causal": False}
    ),
    "gqa, Nq < Nk": wide(heads=4, n_query=131, n_key=901),
    "mqa": wide(heads=3, kv_heads=1),
    "window": wide(n_query=997, n_key=997, mask={"window": 100}),
    "window of one": wide(mask={"window": 1}),
    "softcap": wide(scores={"softcap": 2.0}),
    "bias": wide(scores={"bias": _biased}),
    "bias of keys": wide(batch=2, scores={"bias": _row_bias}, mask={"causal": False}),
    "softcap, bias, sinks, window": wide(
        scores={"softcap": 3.0, "bias": _biased, "sinks": _sinks}, mask={"window": 200}
    ),
    "sinks": wide(scores={"sinks": _sinks}),
    "left padding": wide(batch=2, mask={"k_range": torch.tensor([[219, N], [0, N]])}),
    "right padding": wide(
        batch=2, mask={"causal": False, "k_range": torch.tensor([[0, 223], [0, N]])}
    ),
    "nothing visible, with sinks": wide(
        mask={"k_range": torch.tensor([[0, 0]])}, scores={"sinks": _sinks}
    ),
    "a range per row": wide(
        mask={"causal": False, "k_range": torch.stack([_HERE % 90, _HERE], 1)[None]}
    ),
    "q_pos": wide(
        n_query=9,
        mask={"q_pos": torch.tensor([[508, 3, -2, 600, 77, 77, 0, 507, 320]]), "window": 90},
    ),
    "peaked": wide(spread=40.0),
    "scale below 0": wide(scores={"scale": -0.2}),
    "scale 0": wide(scores={"scale": 0.0}),
}
WIDTHS = {
    "64": (64, 64), "80": (80, 80), "96": (96, 96), "128": (128, 128), "256": (256, 256),
    "192/128": (192, 128), "576/512": (576, 512),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_agrees_with_float64(name: str) -> None:
    variant = VARIANTS[name]
    request, mask = variant.build(BF16, "cuda"), Mask(**variant.mask)
    check(request, mask, poisoned_ask(request, mask))


def of_width(width: str, dtype: torch.dtype) -> Request:
    d_key, d_value = WIDTHS[width]
    variant = wide(heads=4, kv_heads=1, d_key=d_key, d_value=d_value, n_query=301, n_key=333)
    return variant.build(dtype, "cuda")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_head_width(width: str) -> None:
    """All outputs in bfloat16; of the matches a few-key, a compared, a strict and a key-only."""
    request = of_width(width, BF16)
    request = replace(request, matches=request.matches[:5])
    check(request, Mask(), poisoned_ask(request, Mask()))


@pytest.mark.parametrize("dtype", [FP16, FP32], ids=["fp16", "fp32"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_head_width_in_other_types(width: str, dtype: torch.dtype) -> None:
    """The forward kernel alone, with a compared match: its weights are taken from the oracle."""
    request = of_width(width, dtype)
    request = replace(request, matches=request.matches[1:2], received=False)
    got = poisoned_ask(replace(request, weights=None), Mask())
    check(request, Mask(), replace(got, weights=reference(request, Mask()).weights))


@pytest.mark.parametrize("dtype", [FP16, FP32], ids=["fp16", "fp32"])
def test_every_output_in_other_types(dtype: torch.dtype) -> None:
    request = VARIANTS["gqa, Nq < Nk"].build(dtype, "cuda")
    check(request, Mask(), poisoned_ask(request, Mask()))


def test_a_known_lse_gives_the_same_statistics_without_v() -> None:
    variant = VARIANTS["gqa, Nq < Nk"]
    request, mask = variant.build(BF16, "cuda"), Mask(**variant.mask)
    full = poisoned_ask(request, mask)
    known = poisoned_ask(replace(request, v=None, lse=full.lse), mask)
    assert known.out is None
    for name in STATISTICS:
        mine, same = getattr(known, name), getattr(full, name)
        assert (mine is None) == (same is None), name
        if same is not None:
            torch.testing.assert_close(mine, same, rtol=2e-5, atol=5e-6, msg=name)


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("cell", [(64, 64), (5, 9), (300, 130)])
def test_pooled_grids(cell: tuple[int, int], reduce: str) -> None:
    variant = VARIANTS["left padding"]
    request, mask = variant.build(BF16, "cuda"), Mask(**variant.mask)
    wanted = Weights(heads=(1, 0), dtype=FP32, pool=cell, reduce=reduce)  # type: ignore[arg-type]
    request = replace(request, weights=wanted, matches=(), received=False, top=False)
    got, exact = poisoned_ask(request, mask).weights, reference(request, mask).weights
    torch.testing.assert_close(got, exact, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=["bf16", "fp32"])
def test_chosen_rows_of_chosen_heads(dtype: torch.dtype) -> None:
    variant = VARIANTS["gqa, bidirectional, Nq < Nk"]
    request, mask = variant.build(BF16, "cuda"), Mask()
    rows = torch.tensor([[3, -1, 332, 3], [-1, 0, 101, -1]])
    request = replace(request, weights=Weights(heads=(3, 0, 3), rows=rows, dtype=dtype))
    request = replace(request, matches=(), received=False, top=False, entropy=False)
    got, exact = poisoned_ask(request, mask).weights, reference(request, mask).weights
    assert got is not None
    # bfloat16 may round to the other side of the middle between two numbers
    tolerance = 2**-7 if dtype == BF16 else 2e-5
    torch.testing.assert_close(got, exact, rtol=tolerance, atol=1e-6)
    assert bool((got[0, :, 1] == 0).all())


def test_auto_takes_the_kernels_on_a_gpu() -> None:
    assert (architecture(GPU) or 0) >= 80
    x = normal(1, 2, 77, 64, dtype=BF16)
    auto, named = (attention_probe(x, x, x, backend=b) for b in ("auto", "triton"))
    assert torch.equal(auto.out, named.out)  # type: ignore[arg-type]
    assert torch.equal(auto.lse, named.lse)


# determinism, addresses


def test_received_is_the_same_every_time() -> None:
    q, k = normal(2, 8, 4097, 64, dtype=BF16), normal(2, 2, 4097, 64, dtype=BF16, seed=1)
    with poisoned(GPU):
        runs = [attention_probe(q, k, k, received=True, backend="triton") for _ in range(10)]
    first = runs[0]
    for again in runs[1:]:
        assert torch.equal(again.received, first.received)  # type: ignore[arg-type]
        assert torch.equal(again.out, first.out)  # type: ignore[arg-type]
        assert torch.equal(again.lse, first.lse)
    total = first.received.double().sum(-1)  # type: ignore[union-attr]
    torch.testing.assert_close(total, torch.full_like(total, 4097.0), rtol=1e-5, atol=0.0)


def need(gib: float) -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < gib * 2**30:
        pytest.skip(f"needs {gib:.0f} GiB of GPU memory; {free / 2**30:.0f} are free")


@pytest.fixture
def room():
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


def test_weights_of_more_than_2_31_numbers(room: None) -> None:
    """Three heads of 32,001 keys: the last head begins near 2³¹ and ends beyond it."""
    need(12)
    n = 32_001
    q, k = normal(1, 3, n, 64, dtype=BF16), normal(1, 3, n, 64, dtype=BF16, seed=1)
    got = attention_probe(q, k, k, weights=Weights(), backend="triton")
    assert got.weights is not None
    assert got.weights.numel() > 2**31
    for head in range(3):
        for first in (0, 16_000, n - 50):
            rows = torch.arange(first, min(first + 50, n), device=GPU)
            s = q[0, head, rows].double() @ k[0, head].double().T / 8
            s = s.masked_fill(torch.arange(n, device=GPU) > rows[:, None], -torch.inf)
            exact = s.softmax(-1)
            mine = got.weights[0, head, rows].double()
            # bfloat16 keeps eight bits
            torch.testing.assert_close(mine, exact, rtol=2**-8, atol=1e-7)
            assert bool((mine[exact == 0] == 0).all())


@pytest.mark.parametrize("axis", ["sequences", "positions"])
def test_inputs_further_apart_than_2_31_numbers(room: None, axis: str) -> None:
    need(12)
    batch, n, d = (2, 301, 64) if axis == "sequences" else (1, 601, 64)
    strides = (2**31 + 64, n * d, d, 1) if axis == "sequences" else (0, 0, 2**22, 1)
    far = sum((size - 1) * stride for size, stride in zip((batch, 1, n, d), strides, strict=True))
    assert far > 2**31
    storage = torch.empty(far + 1, dtype=FP16, device=GPU)
    k = storage.as_strided((batch, 1, n, d), strides)
    small = normal(batch, 1, n, d, dtype=FP16)
    k.copy_(small)
    options = {"received": True, "weights": Weights(), "top": True, "entropy": True}
    got = attention_probe(k, k, k, backend="triton", **options)
    same = attention_probe(small, small, small, backend="triton", **options)
    for name in ("out", "lse", "entropy", "top_key", "received", "weights"):
        assert torch.equal(getattr(got, name), getattr(same, name)), name


def test_a_match_of_many_rows_and_heads(room: None) -> None:
    """Masses of 2³¹ numbers and more: 16 matches, 64 heads, 2.1 million rows."""
    need(64)
    n_query, heads, n_match = 2**21 + 7, 64, 16
    q = normal(1, 1, 1, 16, dtype=BF16).expand(1, heads, n_query, 16)
    k = normal(1, heads, 3, 16, dtype=BF16, seed=1)
    label = torch.arange(n_query)[None] % 3
    matches = [Match((label + i) % 3, torch.arange(3)[None]) for i in range(n_match)]
    lse = attention_probe(q, k, k, mask=Mask(causal=False), backend="triton").lse
    got = attention_probe(
        q, k, None, mask=Mask(causal=False), matches=matches, lse=lse, backend="triton"
    ).mass
    assert got is not None
    assert got.numel() > 2**31
    A = (q[0, :, 0].double()[:, None] @ k[0].double().mT / 4).softmax(-1)[:, 0]  # [head, key]
    for at in (0, 2**20 + 3, n_query - 1):
        for i in (0, 7, 15):
            exact = A[:, (at + i) % 3].float()
            torch.testing.assert_close(got[0, :, at, i], exact, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("scores", [Scores(), Scores(softcap=20.0)], ids=["plain", "softcap"])
def test_long_odd_sequences_race_nowhere(scores: Scores) -> None:
    """Many programs at once, ten times: the interpreter runs them one after the other."""
    q, k = normal(1, 8, 2047, 128, dtype=BF16), normal(1, 2, 2047, 128, dtype=BF16, seed=1)
    label = torch.arange(2047)[None] % 31
    options = {"scores": scores, "matches": [Match(label, label)] * 6, "entropy": True,
               "top": True, "weights": Weights(), "backend": "triton"}  # fmt: skip
    with poisoned(GPU):
        runs = [attention_probe(q, k, k, **options) for _ in range(10)]
    for name in ("out", "lse", "mass", "entropy", "top_weight", "top_key", "weights"):
        first = getattr(runs[0], name)
        assert not first.isnan().any(), name
        assert all(torch.equal(getattr(again, name), first) for again in runs[1:]), name


def test_all_of_this_took_less_than_four_minutes() -> None:
    assert time.monotonic() - _started < LIMIT_S
