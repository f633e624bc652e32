"""Plans: the right way of summing, remembered as long as it is true and no longer."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.kernels.api import Mask, Match, Scores, attention_probe
from headatlas.kernels.pairs import _gathered, _sampled
from headatlas.kernels.planning import _enumerate, plan_matches
from headatlas.kernels.spans import pieces
from headatlas.kernels.values import Request

from .cases import CPU, Sizes, masks

# beartype samples containers with `random` while a strategy builds its values
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

N = 64
HERE = torch.arange(N)[None]


def call(*matches: Match, seed: int = 0) -> Request:
    random = torch.Generator().manual_seed(seed)
    q, k = torch.randn(1, 4, N, 8, generator=random), torch.randn(1, 2, N, 8, generator=random)
    return Request(q=q, k=k, v=k, scores=Scores(), matches=matches)


def test_few_keys_per_row_are_listed_one_by_one() -> None:
    offsets = [Match(HERE - o, HERE) for o in range(3)]
    plan = plan_matches(call(*offsets, Match(0 * HERE, HERE)), Mask())
    assert len(plan.pairs) == N + (N - 1) + (N - 2) + N
    assert not plan.needs_tiles


def test_one_label_for_all_rows_becomes_a_column() -> None:
    plan = plan_matches(call(Match(0 * HERE + 1, HERE % 3)), Mask())
    assert plan.columns is not None
    assert plan.columns.match == (0,)
    assert plan.columns.keys[0, :, 0].tolist() == (HERE[0] % 3 == 1).tolist()


def test_dense_labels_are_compared() -> None:
    n = 300
    here = torch.arange(n)[None]
    x = torch.zeros(1, 1, n, 2)
    match = Match(here % 2, here % 2)
    plan = plan_matches(Request(q=x, k=x, v=x, scores=Scores(), matches=(match,)), Mask())
    assert plan.compared == (0,)


def test_a_plan_is_built_once_per_mask_and_matches() -> None:
    mask, match = Mask(), Match(HERE, HERE)
    first = plan_matches(call(match), mask)
    assert plan_matches(call(match, seed=1), mask) is first
    assert plan_matches(call(match), Mask()) is not first
    assert plan_matches(call(Match(HERE, HERE)), mask) is not first


def test_labels_changed_in_place_are_noticed() -> None:
    mask, match = Mask(), Match(HERE.clone(), HERE.clone())
    request = call(match)
    before = attention_probe(request.q, request.k, request.v, mask=mask, matches=[match]).mass
    match.q_label.sub_(1)
    after = attention_probe(request.q, request.k, request.v, mask=mask, matches=[match]).mass
    fresh = attention_probe(request.q, request.k, request.v, matches=[Match(HERE - 1, HERE)]).mass
    assert after is not None
    assert fresh is not None
    assert before is not None
    assert torch.equal(after, fresh)
    assert not torch.equal(after, before)


def test_labels_shared_with_numpy_are_copied() -> None:
    """torch counts no version when numpy writes, so a remembered plan would go stale."""
    array = HERE.numpy().copy()
    mask, match = Mask(), Match(torch.from_numpy(array), HERE)
    request = call(match)
    before = attention_probe(request.q, request.k, request.v, mask=mask, matches=[match]).mass
    array -= 1
    assert torch.equal(match.q_label, HERE)
    after = attention_probe(request.q, request.k, request.v, mask=mask, matches=[match]).mass
    fresh = attention_probe(request.q, request.k, request.v, matches=[match]).mass
    assert before is not None
    assert after is not None
    assert fresh is not None
    assert torch.equal(after, before)
    assert torch.equal(after, fresh)


def test_a_range_shared_with_numpy_is_copied() -> None:
    bounds = torch.tensor([[0, 4]]).numpy()
    mask = Mask(k_range=torch.from_numpy(bounds))
    bounds[0, 0] = 3
    assert mask.intervals(1, 4, 4, CPU)[0].tolist() == [[0, 0, 0, 0]]


def test_labels_built_in_inference_mode_count_their_versions() -> None:
    with torch.inference_mode():
        match = Match(torch.arange(N)[None], HERE)
    mask = Mask()
    first = plan_matches(call(match), mask)
    match.q_label.sub_(1)
    assert plan_matches(call(match), mask) is not first


def test_pairs_are_listed_in_half_the_size_and_once() -> None:
    """Pairs that are read off tiles are kept once: three Int32 indices, nothing per tile."""
    label = HERE % 3
    match = Match(label, label, strict=True)
    request, mask = call(match), Mask()
    attention_probe(request.q, request.k, request.v, mask=mask, matches=[match], entropy=True)
    plan = plan_matches(request, mask)
    listed = (plan.pairs.row, plan.pairs.key, plan.pairs.cell)
    assert {x.dtype for x in listed} == {torch.int32}
    assert plan.dense
    kept = [x for tiles in plan.memory.values() for tile in tiles for x in vars(tile).values()]
    assert kept
    assert not any(isinstance(x, torch.Tensor) for x in kept)


def test_indices_beyond_int32_stay_wide() -> None:
    order, zero = torch.zeros(1, 1, 1, dtype=torch.int64).expand(1, 1, 2**24), torch.zeros(1, 1, 1)
    one = torch.ones(1, 1, 1, dtype=torch.int64)
    narrow = _enumerate([0], order[..., : 2**20], zero.long(), one, None, None)
    wide = _enumerate([0], order, zero.long(), one, None, None)
    assert narrow.key.dtype == torch.int32
    assert wide.key.dtype == torch.int64
    assert wide.key.tolist() == [0]


def test_a_range_changed_in_place_is_noticed() -> None:
    mask = Mask(k_range=torch.tensor([[0, 4]]))
    assert mask.intervals(1, 4, 4, CPU)[0].tolist() == [[0, 0, 0, 0]]
    assert mask.k_range is not None
    mask.k_range[0, 0] = 3
    assert mask.intervals(1, 4, 4, CPU)[0].tolist() == [[0, 0, 0, 3]]


def test_inference_tensors_are_copied() -> None:
    with torch.inference_mode():
        label = torch.arange(N)[None]
        match = Match(label, label)
        label.add_(1)
        assert match.q_label.tolist() == HERE.tolist()
        request = call(match)
        got = attention_probe(request.q, request.k, request.v, matches=[match]).mass
    assert got is not None
    assert torch.all(got > 0)


def test_nothing_outlives_its_matches_or_mask() -> None:
    mask, match = Mask(), Match(HERE, HERE)
    plan = weakref.ref(plan_matches(call(match), mask))
    assert plan() is not None
    del match
    gc.collect()
    assert plan() is None

    match = Match(HERE, HERE)
    plan = weakref.ref(plan_matches(call(match), mask))
    del mask
    gc.collect()
    assert plan() is None


def test_a_shared_mask_keeps_few_results() -> None:
    mask = Mask()
    for n in range(1, 40):
        mask.intervals(1, n, n, CPU)
    assert len(mask._memory) <= 8


@pytest.mark.parametrize("limit", [1, 7, 1 << 17])
def test_sampled_and_gathered_products_agree(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headatlas.kernels.pairs._PIECE", limit)
    monkeypatch.setattr("headatlas.kernels.pairs._GATHER", 100 * limit)
    request = call(Match(HERE % 9, HERE % 7), Match(HERE - 2, HERE))
    plan = plan_matches(request, Mask())
    sampled = torch.cat([s for _, _, s in _sampled(request, plan)], 1)
    gathered = torch.cat([s for _, _, s in _gathered(request, plan.pairs)], 1)
    torch.testing.assert_close(sampled, gathered, rtol=1e-5, atol=1e-5)


@given(st.data(), st.integers(0, 2**31), st.sampled_from([1, 5, 40]), st.sampled_from([1, 5, 40]))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_pieces_cover_exactly_what_is_visible(data, seed: int, n_query: int, n_key: int) -> None:
    sizes = Sizes(2, 1, n_query, n_key, torch.float32, torch.Generator().manual_seed(seed))
    lo, hi = data.draw(masks(sizes)).intervals(2, n_query, n_key, CPU)
    j = torch.arange(n_key)
    visible = (j >= lo[..., None]) & (j < hi[..., None])
    seen = torch.zeros(2, n_query, n_key, dtype=torch.int64)
    for piece in pieces(lo, hi):
        batch, rows, keys = slice(*piece.batch), slice(*piece.rows), slice(*piece.keys)
        block = torch.ones(seen[batch, rows, keys].shape, dtype=torch.int64)
        if piece.kind == "causal":
            block = block.tril()
        elif piece.kind == "masked":
            assert not visible[batch, rows, : keys.start].any()
            assert not visible[batch, rows, keys.stop :].any()
            block = visible[batch, rows, keys].long()
        seen[batch, rows, keys] += block
    assert torch.equal(seen, visible.long())


def test_common_masks_need_one_call_per_shape() -> None:
    def kinds(mask: Mask, batch: int = 2) -> list[str]:
        return [p.kind for p in pieces(*mask.intervals(batch, N, N, CPU))]

    assert kinds(Mask()) == ["causal"]
    assert kinds(Mask(causal=False)) == ["full"]
    left = torch.tensor([[3, N], [9, N]])
    assert kinds(Mask(k_range=left)) == ["causal", "causal"]
    right = torch.tensor([[0, N - 3], [0, N - 9]])
    assert kinds(Mask(k_range=right)) == ["causal", "full"] * 2
    assert kinds(Mask(causal=False, k_range=right)) == ["full", "full"]
    assert kinds(Mask(window=8)) == ["causal", "masked"]
