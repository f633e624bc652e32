"""The Triton kernels, run by Triton's interpreter, against the float64 oracle.

One test for every trap that once cost somebody an afternoon.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headatlas.kernels.api import Mask, Match, Scores, Weights, attention_probe
from headatlas.kernels.fused.configs import Blocks, use_blocks
from headatlas.kernels.fused.launch import Inputs
from headatlas.kernels.fused.plan import plan_fused
from headatlas.kernels.fused.reads import ReadCall
from headatlas.kernels.fused.rows import RowCall

from .variants import VARIANTS, ask, check, poisoned_memory

BLOCKS = Blocks(32, 16, 4, 1)
"""Small: even short sequences have inner and outer blocks of keys."""
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy, on hidden keys


@pytest.fixture(autouse=True)
def small_blocks():
    with use_blocks(BLOCKS), poisoned_memory():
        yield


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


HALVES = ("mha", "gqa, bidirectional, Nq < Nk", "softcap, bias, sinks, window", "left padding",
          "d 80", "MLA 192/128", "MLA 576/512", "peaked", "scale below 0")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in VARIANTS] + [(name, torch.float16) for name in HALVES],
)
def test_every_variant_agrees_with_float64(name: str, dtype: torch.dtype) -> None:
    variant = VARIANTS[name]
    request, mask = variant.build(dtype), Mask(**variant.mask)
    check(request, mask, ask(request, mask, "triton"))


@pytest.mark.parametrize("name", ["left padding", "softcap, bias, sinks, window", "MLA 192/128"])
def test_a_known_lse_gives_the_same_statistics_without_v(name: str) -> None:
    variant = VARIANTS[name]
    request, mask = variant.build(torch.float32), Mask(**variant.mask)
    full = ask(request, mask, "triton")
    known = ask(replace(request, v=None, lse=full.lse), mask, "triton")
    assert known.out is None
    for field in ("mass", "entropy", "top_weight", "weights", "received", "sink_mass"):
        mine, same = getattr(known, field), getattr(full, field)
        assert (mine is None) == (same is None)
        if same is not None:
            torch.testing.assert_close(mine, same, rtol=2e-5, atol=2e-6, msg=field)
    assert torch.equal(known.top_key, full.top_key)  # type: ignore[arg-type]


def test_a_known_lse_of_more_keys_is_honoured() -> None:
    """The softmax of a sequence that is held in parts: the lse is not that of these keys alone."""
    q, k = draw(1, 2, 9, 16), draw(1, 2, 30, 16, seed=1)
    mask = Mask(causal=False)
    lse = attention_probe(q, k, k, mask=mask, backend="reference").lse
    part = k[:, :, :11]
    label = torch.arange(11)[None] % 2
    match = Match(torch.zeros(1, 9, dtype=torch.int64), label)
    options = {"mask": mask, "lse": lse, "matches": [match], "entropy": True, "weights": Weights()}
    got = attention_probe(q, part, None, backend="triton", **options)
    wanted = attention_probe(q, part, None, backend="reference", **options)
    torch.testing.assert_close(got.mass, wanted.mass, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.entropy, wanted.entropy, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.weights, wanted.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("cell", "reduce"),
    [((5, 9), "mean"), ((40, 17), "max"), ((64, 100), "mean"), ((16, 16), "max")],
)
@pytest.mark.parametrize("name", ["window", "left padding"])
def test_pooled_grids(name: str, cell: tuple[int, int], reduce: str) -> None:
    variant = VARIANTS[name]
    request, mask = variant.build(torch.float32), Mask(**variant.mask)
    wanted = Weights(heads=(1, 0), dtype=torch.float32, pool=cell, reduce=reduce)  # type: ignore[arg-type]
    request = replace(request, weights=wanted, matches=(), received=False, top=False)
    got, exact = (ask(request, mask, b).weights for b in ("triton", "reference"))
    torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-7)


def test_chosen_rows_of_chosen_heads() -> None:
    variant = VARIANTS["gqa, bidirectional, Nq < Nk"]
    request, mask = variant.build(torch.float16), Mask(causal=True)
    rows = torch.tensor([[3, -1, 20, 3], [-1, 0, 1, -1]])
    chosen = Weights(heads=(3, 0, 3), rows=rows, dtype=torch.float32)
    request = replace(request, weights=chosen, matches=())
    got, exact = (ask(request, mask, b).weights for b in ("triton", "reference"))
    assert got is not None
    torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-6)
    assert bool((got[0, :, 1] == 0).all())


def test_rows_of_weights_start_at_128_bits() -> None:
    """250 keys would turn every vector write into single ones: the row is padded."""
    q, k = draw(1, 1, 3, 16), draw(1, 1, 250, 16)
    got = attention_probe(q, k, k, weights=Weights(dtype=torch.float16), backend="triton").weights
    assert got is not None
    assert got.shape == (1, 1, 3, 250)
    assert got.stride(2) == 256


def test_whole_groups_add_up() -> None:
    """Query heads per key/value head, summed: an index off by the group shows here."""
    q, k, v = draw(1, 6, 33, 16), draw(1, 2, 33, 16, seed=1), draw(1, 2, 33, 16, seed=2)
    label = torch.arange(33)[None] % 4
    options = {"matches": [Match(label, label)], "received": True}
    got, exact = (attention_probe(q, k, v, backend=b, **options) for b in ("triton", "reference"))
    for name in ("out", "mass", "received"):
        mine, oracle = (getattr(x, name).unflatten(1, (2, 3)).sum(2) for x in (got, exact))
        torch.testing.assert_close(mine, oracle, rtol=1e-5, atol=1e-5, msg=name)


def test_among_equal_weights_the_lowest_key() -> None:
    """Blocks of keys are not met in order: the last, half hidden ones come after the others."""
    q, k = torch.zeros(1, 1, 70, 16), draw(1, 1, 70, 16)
    for mask in (Mask(), Mask(window=40), Mask(k_range=torch.tensor([[5, 70]]))):
        lo, hi = mask.intervals(1, 70, 70, q.device)
        got = attention_probe(q, k, k, mask=mask, top=True, backend="triton").top_key
        assert torch.equal(got[0], torch.where(hi > lo, lo, -1).long())  # type: ignore[index]


def test_the_largest_of_weights_below_every_float() -> None:
    q, k = torch.full((1, 1, 3, 1), 2.0), torch.tensor([[[[0.0], [3.0], [1.0]]]])
    scores = Scores(sinks=torch.tensor([500.0]))
    got = attention_probe(q, k, k, scores=scores, top=True, backend="triton")
    assert got.top_key is not None
    assert got.top_key.flatten().tolist() == [0, 1, 1]


def test_a_dead_row_is_no_uniform_row() -> None:
    """Hugging Face's eager attention spreads such a row over all keys, the future included."""
    bias = torch.zeros(1, 1, 20, 20)
    bias[..., 4, :] = torch.finfo(torch.float32).min
    x = draw(1, 1, 20, 16)
    everything = Match(torch.zeros(1, 20).long(), torch.zeros(1, 20).long())
    got = attention_probe(
        x, x, x, scores=Scores(bias=bias), matches=[everything], entropy=True, top=True,
        weights=Weights(), received=True, backend="triton",
    )  # fmt: skip
    dead = (0, 0, 4)
    assert got.lse[dead] == -math.inf
    for name in ("out", "mass", "entropy", "top_weight", "weights"):
        assert bool((getattr(got, name)[dead] == 0).all()), name
    assert got.top_key[dead] == -1  # type: ignore[index]
    torch.testing.assert_close(got.received.sum(), torch.tensor(19.0))  # type: ignore[union-attr]


def test_scores_far_beyond_a_softcap() -> None:
    x = 1e3 * draw(1, 1, 20, 16)
    options = {"scores": Scores(softcap=30.0), "entropy": True}
    got, exact = (attention_probe(x, x, x, backend=b, **options) for b in ("triton", "reference"))
    torch.testing.assert_close(got.lse, exact.lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.entropy, exact.entropy, rtol=1e-4, atol=1e-4)


def test_float32_is_not_rounded_to_tf32() -> None:
    """The interpreter does not emulate tf32, so the switch itself is looked at."""
    x = draw(1, 1, 4, 16)
    lo = torch.zeros(1, 4, dtype=torch.int32)
    call = RowCall(Inputs(x, x, lo, lo + 4, None, 0.25, None), v=x)
    assert call.launches(call.outputs())[0].constants["PRECISION"] == "ieee"


def test_offsets_beyond_31_bits() -> None:
    """Strides of 2³¹ numbers between sequences; the pages in between are never touched."""
    far = 2**31 + 64
    storage = torch.zeros(1)
    try:
        torch.utils.deterministic.fill_uninitialized_memory = False
        storage = torch.empty(far + 4096, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("this machine does not promise 4 GiB of address space")
    k = storage.as_strided((2, 1, 20, 16), (far, 320, 16, 1))
    small = draw(2, 1, 20, 16).half()
    k.copy_(small)
    options = {"received": True, "weights": Weights(), "top": True}
    got = attention_probe(k, k, k, backend="triton", **options)
    same = attention_probe(small, small, small, backend="triton", **options)
    for name in ("out", "lse", "top_key", "received", "weights"):
        assert torch.equal(getattr(got, name), getattr(same, name)), name


def test_received_is_the_same_every_time_and_exact() -> None:
    """Thousands of rows add up: the sum itself is kept in float64, in one order."""
    q, k = 0.1 * draw(1, 1, 2000, 16), 0.1 * draw(1, 1, 3, 16, seed=1)
    mask = Mask(causal=False)
    with use_blocks(Blocks(128, 16, 4, 1)):
        got, again = (
            attention_probe(q, k, k, mask=mask, received=True, backend="triton").received
            for _ in range(2)
        )
    exact = attention_probe(q, k, k, mask=mask, received=True, backend="reference").received
    assert torch.equal(got, again)  # type: ignore[arg-type]
    torch.testing.assert_close(got, exact, rtol=2**-21, atol=0.0)


@pytest.mark.parametrize(
    ("mask", "where", "reduce"),
    [
        (Mask(), "query", "max"),
        (Mask(), "lse", "mean"),
        (Mask(causal=False), "query", "mean"),
        (Mask(window=5), "key", "max"),
        (Mask(window=5), "lse", "max"),
    ],
)
def test_nan_spoils_what_sees_it_and_nothing_else(mask: Mask, where: str, reduce: str) -> None:
    q, k = draw(1, 2, 40, 16), draw(1, 1, 40, 16, seed=1)
    label = torch.arange(40)[None]
    nothing, dense = Match(torch.full_like(label, -1), label), Match(label % 2, label % 2)
    lse = None
    if where == "lse":
        lse = attention_probe(q, k, k, mask=mask).lse
        lse[0, 1, 7] = math.nan
    else:
        (q if where == "query" else k)[0, 0, 20, 3] = math.nan
    options = {
        "mask": mask, "matches": [nothing, dense], "entropy": True, "top": True, "lse": lse,
        "received": True, "weights": Weights(pool=(3, 7), reduce=reduce),
    }  # fmt: skip
    got, oracle = (attention_probe(q, k, k, backend=b, **options) for b in ("triton", "reference"))
    assert oracle.lse.isnan().any()
    for name in ("lse", "mass", "entropy", "top_weight", "received", "weights"):
        mine, wanted = getattr(got, name), getattr(oracle, name)
        assert torch.equal(mine.isnan(), wanted.isnan()), name
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)
    spoilt = got.lse.isnan()
    assert bool((got.top_key[spoilt] == -1).all())  # type: ignore[index]
    if got.out is not None:
        assert bool(got.out[spoilt].isnan().any(-1).all())


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_inputs_are_not_plausible_either(value: float) -> None:
    q, k = draw(1, 2, 40, 16), draw(1, 1, 40, 16, seed=1)
    q[0, 0, 9, 0] = value
    got = attention_probe(q, k, k, mask=Mask(causal=False), backend="triton")
    assert got.out is not None
    assert got.out[0, 0, 9].isnan().all()
    assert (~got.lse.isfinite()).nonzero().tolist() == [[0, 0, 9]]


def test_each_match_goes_its_own_way() -> None:
    """Few keys are gathered, key-only labels are columns, the others are compared in fours."""
    request = VARIANTS["mha"].build(torch.float32)
    mask = Mask()
    plan = plan_fused(request, mask)
    assert plan.few == (0, 2)
    assert [sweep.compared for sweep in plan.sweeps] == [(1, 5, 6, 7), (4, 8), ()]
    assert [sweep.columns for sweep in plan.sweeps] == [(), (), (3,)]
    assert plan_fused(request, mask) is plan
    bent = replace(request, scores=Scores(softcap=2.0))
    assert [s.compared for s in plan_fused(bent, mask).sweeps] == [(1, 5), (6, 7), (4,), (8,), ()]
    changed = replace(request, matches=(*request.matches[1:],))
    assert plan_fused(changed, mask).few == (1,)


def test_labels_of_keys_need_no_mask() -> None:
    """Padded to a multiple of every block of keys, so that the load is aligned and unmasked."""
    first, _, last = plan_fused(VARIANTS["mha"].build(torch.float32), Mask()).sweeps
    assert first.labels.k_code is not None
    assert last.labels.columns is not None
    assert first.labels.k_code.shape[2] == last.labels.columns.shape[1] == 128


def test_labels_of_whole_blocks_in_several_sequences() -> None:
    """Nothing to pad at 128 keys: the labels must lie match by match all the same."""
    q, tokens = draw(2, 1, 128, 16), torch.randint(0, 3, (3, 2, 128))
    matches = [Match(x, x.flip(0)) for x in tokens]
    with use_blocks(Blocks(128, 128, 4, 1)):
        got = attention_probe(q, q, q, matches=matches, backend="triton").mass
    exact = attention_probe(q, q, q, matches=matches, backend="reference").mass
    torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-6)


def test_small_weights_of_key_only_labels_in_float16() -> None:
    """A column is a product in float16, which loses weights below 6e-8 as they are."""
    q, k = torch.ones(1, 1, 4, 16).half(), torch.zeros(1, 1, 300, 16).half()
    k[0, 0, 7] = 4.5  # a weight of 1 - 5e-6, and the others of 1.5e-8
    label = (torch.arange(300)[None] != 7).long()
    match = Match(torch.ones(1, 4, dtype=torch.int64), label)
    options = {"matches": [match], "mask": Mask(causal=False)}
    got, exact = (attention_probe(q, k, k, backend=b, **options) for b in ("triton", "reference"))
    torch.testing.assert_close(got.mass, exact.mass, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("q_pos", [2**32 + 3, -(2**40)])
def test_positions_far_outside_the_keys_are_no_key(q_pos: int) -> None:
    q, label = draw(1, 1, 20, 16), torch.arange(20)[None] % 2
    mask = Mask(causal=False, q_pos=torch.full((1, 20), q_pos))
    match = [Match(label, label, strict=True)]
    got, exact = (
        attention_probe(q, q, q, mask=mask, matches=match, backend=b).mass
        for b in ("triton", "reference")
    )
    torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cap", [1e-3, 1.0, 1e5, 1e8])
def test_caps_of_any_size(cap: float) -> None:
    x, here = draw(1, 1, 20, 16), torch.arange(20)[None]
    options = {"scores": Scores(softcap=cap), "entropy": True, "matches": [Match(here - 1, here)]}
    got, exact = (attention_probe(x, x, x, backend=b, **options) for b in ("triton", "reference"))
    for name in ("out", "lse", "entropy", "mass"):
        mine, oracle = getattr(got, name), getattr(exact, name)
        torch.testing.assert_close(mine, oracle, rtol=1e-5, atol=1e-5, msg=name)


def test_a_known_lse_of_nothing_leaves_no_weight() -> None:
    x = draw(1, 1, 5, 16)
    lse = torch.full((1, 1, 5), -math.inf)
    got = attention_probe(
        x, x, None, lse=lse, weights=Weights(), received=True, top=True, backend="triton"
    )
    for name in ("weights", "received", "top_weight"):
        assert bool((getattr(got, name) == 0).all()), name


def test_what_the_kernels_cannot_take_is_said() -> None:
    wide, x = torch.zeros(1, 1, 2, 640), torch.zeros(1, 1, 2, 16)
    with pytest.raises(RuntimeError, match=r"heads of up to 576 \(keys\) and 512 \(values\)"):
        attention_probe(wide, wide, x, backend="triton")
    with pytest.raises(RuntimeError, match="a scale of 1e\\+30 leaves its range"):
        attention_probe(x, x, x, scores=Scores(scale=1e30), backend="triton")
    with pytest.raises(ValueError, match="padded to 128 keys; got blocks of 256"):
        Blocks(64, 256, 4, 1)


def test_nothing_to_do_starts_no_kernel() -> None:
    x = draw(1, 2, 4, 16)
    for q, k in ((x[:, :, :0], x), (x, x[:, :, :0])):
        got = attention_probe(q, k, k, entropy=True, received=True, backend="triton")
        exact = attention_probe(q, k, k, entropy=True, received=True, backend="reference")
        assert torch.equal(got.lse, exact.lse)
        assert torch.equal(got.received, exact.received)  # type: ignore[arg-type]
    none = Weights(heads=(), rows=torch.zeros(1, 0, dtype=torch.int64))
    got = attention_probe(x, x, x, weights=none, backend="triton").weights
    assert got is not None
    assert got.shape == (1, 0, 0, 4)


def test_the_padding_of_a_row_is_written_too() -> None:
    x = draw(1, 1, 5, 16)
    lo = torch.zeros(1, 5, dtype=torch.int32)
    inputs = Inputs(x, x, lo, lo + 5, None, 0.25, None)
    call = ReadCall(inputs, torch.zeros(1, 1, 5))
    into = call.empty_weights(1, 5, torch.float32)
    call.weights(torch.zeros(1, dtype=torch.int32), None, into).run()
    assert into.shape[-1] == 16
    assert bool((into[..., 5:] == 0).all())
    assert bool((into[..., :5] > 0).all())
