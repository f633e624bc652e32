"""Small cases whose results can be written down, and the wide shapes of real models."""

import math

import pytest
import torch

from headatlas.kernels.api import Mask, Match, Scores, Weights, attention_probe

BACKENDS = ["cpu", "reference"]
HERE = torch.arange(4)[None]


def flat(n: int = 4, heads: int = 1) -> torch.Tensor:
    """Zero queries and keys: every visible key gets the same weight."""
    return torch.zeros(1, heads, n, 8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_uniform_causal_attention(backend: str) -> None:
    v = torch.arange(4.0)[None, None, :, None]
    x = flat()
    got = attention_probe(
        x, x, v, matches=[Match(HERE - 1, HERE), Match(0 * HERE, HERE, strict=True)],
        entropy=True, top=True, weights=Weights(rows=torch.tensor([[2, -1]])), backend=backend,
    )  # fmt: skip
    assert got.out is not None
    assert got.out.flatten().tolist() == pytest.approx([0, 0.5, 1, 1.5])
    assert got.lse.flatten().exp().tolist() == pytest.approx([1, 2, 3, 4])
    assert got.mass is not None
    assert got.mass[0, 0, :, 0].tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 4])
    assert got.mass[0, 0, :, 1].tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 4])
    assert got.entropy is not None
    assert got.entropy.flatten().tolist() == pytest.approx([math.log(n) for n in (1, 2, 3, 4)])
    assert got.top_key is not None
    assert got.top_key.flatten().tolist() == [0, 0, 0, 0]  # ties go to the lowest key
    assert got.weights is not None
    third = 1 / 3
    assert got.weights[0, 0].flatten().tolist() == pytest.approx([third] * 3 + [0] * 5)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_keys_receive_from_uniform_attention(backend: str, known: bool) -> None:
    x = flat()
    lse = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]).log() if known else None
    got = attention_probe(x, x, None if known else x, received=True, lse=lse, backend=backend)
    assert got.received is not None
    wanted = [1 + 1 / 2 + 1 / 3 + 1 / 4, 1 / 2 + 1 / 3 + 1 / 4, 1 / 3 + 1 / 4, 1 / 4]
    assert got.received.flatten().tolist() == pytest.approx(wanted)


GRIDS = {  # of the causal rows 1 | 1/2 1/2 | 1/3 1/3 1/3 | 1/4 1/4 1/4 1/4
    ((2, 2), "mean"): [[2 / 4, 0], [(2 / 3 + 2 / 4) / 4, (1 / 3 + 2 / 4) / 4]],
    ((2, 2), "max"): [[1, 0], [1 / 3, 1 / 3]],
    ((3, 3), "mean"): [[3 / 9, 0], [1 / 4, 1 / 4]],  # edges: 3 × 1, 1 × 3 and 1 × 1 entries
    ((1, 3), "max"): [[1, 0], [1 / 2, 0], [1 / 3, 0], [1 / 4, 1 / 4]],
    ((9, 1), "mean"): [[25 / 48, 13 / 48, 7 / 48, 3 / 48]],
    ((4, 100), "mean"): [[1 / 4]],
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("pool", "reduce"), GRIDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_grids_of_uniform_attention(backend: str, pool: tuple, reduce: str, known: bool) -> None:
    x = flat(heads=2)
    lse = torch.tensor([1.0, 2.0, 3.0, 4.0]).log().expand(1, 2, 4) if known else None
    wanted = Weights(heads=(1,), pool=pool, reduce=reduce)  # type: ignore[arg-type]
    got = attention_probe(x, x, None if known else x, weights=wanted, lse=lse, backend=backend)
    assert got.weights is not None
    assert got.weights.shape[:2] == (1, 1)
    torch.testing.assert_close(got.weights[0, 0], torch.tensor(GRIDS[pool, reduce]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_scores_by_hand(backend: str) -> None:
    q = torch.tensor([[[[1.0]]]])
    k = torch.tensor([[[[0.0], [math.log(3)]]]])
    got = attention_probe(
        q, k, k, mask=Mask(causal=False), top=True, entropy=True, backend=backend,
        matches=[Match(torch.tensor([[7]]), torch.tensor([[7, -2]]))],
    )  # fmt: skip
    assert got.mass is not None
    assert got.top_weight is not None
    assert got.entropy is not None
    assert got.mass.item() == pytest.approx(0.25)
    assert got.top_weight.item() == pytest.approx(0.75)
    assert got.entropy.item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sink_takes_its_share(backend: str) -> None:
    x, v = flat(1), torch.ones(1, 1, 1, 2)
    scores = Scores(sinks=torch.tensor([math.log(3)]))
    got = attention_probe(x, x, v, scores=scores, entropy=True, backend=backend)
    assert got.out is not None
    assert got.sink_mass is not None
    assert got.entropy is not None
    assert got.out.flatten().tolist() == pytest.approx([0.25, 0.25])
    assert got.sink_mass.item() == pytest.approx(0.75)
    assert got.entropy.item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [False, True])
def test_dead_rows_are_zero_not_nan(backend: str, bias: bool) -> None:
    x = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    mask, scores = Mask(k_range=torch.tensor([[2, 4]])), Scores()
    if bias:
        hidden = torch.zeros(1, 1, 4, 4)
        hidden[:, :, :2] = -math.inf
        mask, scores = Mask(), Scores(bias=hidden)
    got = attention_probe(
        x, x, x, mask=mask, scores=scores, matches=[Match(HERE, HERE)],
        weights=Weights(), entropy=True, top=True, received=True, backend=backend,
    )  # fmt: skip
    assert got.received is not None
    assert got.received.sum(-1).flatten().tolist() == pytest.approx([2, 2])  # two live rows
    pooled = Weights(pool=(2, 4))
    grid = attention_probe(x, x, x, mask=mask, scores=scores, weights=pooled, backend=backend)
    assert grid.weights is not None
    assert grid.weights.flatten().tolist() == pytest.approx([0, 1 / 4] * 2)
    assert torch.all(got.lse[:, :, :2] == -math.inf)
    for part in (got.out, got.mass, got.entropy, got.top_weight, got.weights):
        assert part is not None
        assert torch.all(part[:, :, :2] == 0)
    assert got.top_key is not None
    assert torch.all(got.top_key[:, :, :2] == -1)
    assert torch.all(got.top_key[:, :, 2:] >= 0)


@pytest.mark.parametrize(("d_key", "d_value", "heads"), [(192, 128, 4), (576, 512, 4), (64, 64, 9)])
def test_wide_and_grouped_heads(d_key: int, d_value: int, heads: int) -> None:
    random = torch.Generator().manual_seed(1)
    q = torch.randn(1, heads, 33, d_key, generator=random)
    k = torch.randn(1, 1, 33, d_key, generator=random)
    v = torch.randn(1, 1, 33, d_value, generator=random)
    here = torch.arange(33)[None]
    options = {"matches": [Match(here - 1, here)], "entropy": True}
    got = attention_probe(q, k, v, **options)
    wanted = attention_probe(q, k, v, backend="reference", **options)
    for name in ("out", "lse", "mass", "entropy"):
        torch.testing.assert_close(getattr(got, name), getattr(wanted, name), rtol=1e-5, atol=1e-5)


def test_sharp_heads_lose_nothing() -> None:
    """Scores hundreds apart: weights below the smallest float must not slow down or spoil sums."""
    x = torch.randn(1, 1, 65, 16, generator=torch.Generator().manual_seed(2))
    label = torch.arange(65)[None] % 5
    options = {
        "scores": Scores(scale=30.0), "matches": [Match(label, label)], "entropy": True,
    }  # fmt: skip
    got = attention_probe(x, x, x, **options)
    wanted = attention_probe(x, x, x, backend="reference", **options)
    for name in ("mass", "entropy"):
        # float32 rounds scores of about 500 by 3e-5
        torch.testing.assert_close(getattr(got, name), getattr(wanted, name), rtol=0, atol=1e-3)


def test_decoding_one_query_sees_all_keys() -> None:
    random = torch.Generator().manual_seed(3)
    k = torch.randn(2, 1, 9, 4, generator=random)
    q = torch.randn(2, 3, 1, 4, generator=random)
    got = attention_probe(q, k, k)
    weights = torch.softmax(q @ k.mT / 2, -1)
    assert got.out is not None
    torch.testing.assert_close(got.out, weights @ k)
