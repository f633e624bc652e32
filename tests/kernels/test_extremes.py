"""Inputs at the edge of the numbers: weights too small for exp, and NaN that must not vanish."""

import math

import pytest
import torch

from headatlas.kernels.api import Mask, Match, ProbeOut, Scores, Weights, attention_probe

N = 40
HERE = torch.arange(N)[None]
NOTHING = Match(torch.full_like(HERE, -1), HERE)  # no listed pair in any row
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
MASKS = {
    "causal": Mask(),
    "full": Mask(causal=False),
    "window": Mask(window=5),
    "padded": Mask(k_range=torch.tensor([[3, N - 2]])),
}


def draw(dtype: torch.dtype = torch.float32, n_head: int = 2) -> torch.Tensor:
    return torch.randn(1, n_head, N, 8, generator=torch.Generator().manual_seed(n_head)).to(dtype)


def measure(q: torch.Tensor, k: torch.Tensor, backend: str, mask: Mask) -> ProbeOut:
    label = HERE % 4
    return attention_probe(
        q, k, k, mask=mask, backend=backend, matches=[Match(label, label), NOTHING],
        weights=Weights(), entropy=True, top=True,
    )  # fmt: skip


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("sink", [100.0, 500.0])
def test_top_key_of_weights_below_every_float(sink: float, entropy: bool) -> None:
    """The order of the keys is that of the scores, however little weight a sink leaves them."""
    q, k = torch.full((1, 1, 3, 1), 2.0), torch.tensor([[[[0.0], [3.0], [1.0]]]])
    options = {"scores": Scores(sinks=torch.tensor([sink])), "top": True, "entropy": entropy}
    got = attention_probe(q, k, k, **options)
    wanted = attention_probe(q, k, k, backend="reference", **options)
    assert got.top_key is not None
    assert got.top_key.flatten().tolist() == [0, 1, 1]
    assert torch.equal(got.top_key, wanted.top_key)
    torch.testing.assert_close(got.top_weight, wanted.top_weight, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_spoils_what_sees_it_and_nothing_else(
    dtype: torch.dtype, where: str, mask: Mask
) -> None:
    q, k = draw(dtype), draw(dtype, 1)
    (q if where == "query" else k)[0, 0, N // 2, 3] = math.nan
    got, wanted = (measure(q, k, backend, mask) for backend in ("cpu", "reference"))
    assert wanted.lse.isnan().any()
    everyone = where == "key" and not mask.causal and mask.k_range is None
    assert bool(wanted.lse.isnan().all()) == everyone
    for name in ("lse", "mass", "entropy", "top_weight"):
        mine, oracle = getattr(got, name), getattr(wanted, name)
        assert torch.equal(mine.isnan(), oracle.isnan()), name
    assert got.out is not None
    assert got.weights is not None
    spoilt = got.lse.isnan()
    assert got.out[spoilt].isnan().any(-1).all()
    assert got.weights[spoilt].isnan().any(-1).all()
    assert torch.equal(got.top_key[spoilt], torch.full_like(got.top_key[spoilt], -1))
    torch.testing.assert_close(got.entropy, wanted.entropy, rtol=2e-3, atol=2e-3, equal_nan=True)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_nan_reaches_the_keys_and_cells_that_its_rows_see(
    backend: str, where: str, mask: Mask
) -> None:
    q, k = draw(), draw(n_head=1)
    (q if where == "query" else k)[0, 0, N // 2, 3] = math.nan
    options = {"mask": mask, "received": True, "backend": backend}
    grids = [Weights(pool=(3, 4), reduce=how) for how in ("mean", "max")]
    mean, largest = (attention_probe(q, k, k, weights=grid, **options) for grid in grids)
    lo, hi = mask.intervals(1, N, N, q.device)
    visible = (lo[0, :, None] <= HERE) & (hi[0, :, None] > HERE)
    spoilt = mean.lse.isnan()[0, :, :, None] & visible
    assert spoilt.any()
    assert mean.received is not None
    assert torch.equal(mean.received[0].isnan(), spoilt.any(1))
    cells = torch.nn.functional.max_pool2d(spoilt.float(), (3, 4), ceil_mode=True) > 0
    for got in (mean, largest):
        assert got.weights is not None
        assert torch.equal(got.weights[0].isnan(), cells)


@pytest.mark.parametrize("causal", [True, False])
def test_pairs_alone_carry_nan_too(causal: bool) -> None:
    """No tiles here: rows without a listed pair must not come out as a mass of 0."""
    q, k = draw(), draw(n_head=1)
    q[0, 1, 7, 0] = math.nan
    mask = Mask(causal=causal)
    lse = attention_probe(q, k, k, mask=mask).lse
    for known in (None, lse):
        got = attention_probe(q, k, k, mask=mask, matches=[NOTHING], lse=known)
        assert got.mass is not None
        assert got.mass.isnan().nonzero().tolist() == [[0, 1, 7, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_inputs_are_not_plausible_either(value: float, dtype: torch.dtype) -> None:
    q, k = draw(dtype), draw(dtype, 1)
    q[0, 0, 9, 0] = value
    got = measure(q, k, "cpu", Mask(causal=False))
    assert got.out is not None
    assert not got.lse[0, 0, 9].isfinite()
    assert got.out[0, 0, 9].isnan().all()
    assert got.lse.isnan().sum() + got.lse.isinf().sum() == 1


@pytest.mark.parametrize("part", [slice(None), slice(1, 2)])
def test_queries_of_nothing_but_nan_are_no_zeros(part: slice) -> None:
    """The fused operator gives out = lse = 0 for them, which looks like a result."""
    q = draw()
    q[:, part] = math.nan
    got, wanted = (attention_probe(q, draw(), draw(), backend=b) for b in ("cpu", "reference"))
    assert torch.equal(got.out.isnan(), wanted.out.isnan())
    assert torch.equal(got.lse.isnan(), wanted.lse.isnan())
    assert got.out[:, part].isnan().all()


def test_nan_in_the_values_stays_out_of_the_statistics() -> None:
    q, k = draw(), draw(n_head=1)
    v = k.clone()
    v[0, 0, 0, 0] = math.nan
    got = attention_probe(q, k, v, entropy=True)
    clean = attention_probe(q, k, k, entropy=True)
    assert got.out is not None
    assert got.out.isnan().any()
    assert torch.equal(got.lse, clean.lse)
    assert got.entropy is not None
    assert clean.entropy is not None
    assert torch.equal(got.entropy, clean.entropy)


def test_nan_in_keys_that_nobody_sees_changes_nothing() -> None:
    q, k = draw(), draw(n_head=1)
    spoilt = k.clone()
    spoilt[:, :, :3] = math.nan
    options = {
        "mask": MASKS["padded"], "entropy": True, "top": True, "received": True,
        "weights": Weights(pool=(6, 6)),
    }  # fmt: skip
    got = attention_probe(q, spoilt, k, **options)
    clean = attention_probe(q, k, k, **options)
    for name in ("lse", "out", "entropy", "top_weight", "received", "weights"):
        torch.testing.assert_close(getattr(got, name), getattr(clean, name), rtol=1e-5, atol=1e-5)
    assert torch.equal(got.top_key, clean.top_key)  # type: ignore[arg-type]
