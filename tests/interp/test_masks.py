import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    eager_mask,
    packed_sequence_mask_function,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from headatlas.interp import masks
from headatlas.interp.errors import InputError
from headatlas.interp.masks import NAME, read_mask, row_intervals, visible_keys
from headatlas.kernels.api import Mask


def dense(result, batch, n_query, n_key):
    """The boolean mask [batch, query, key] that a result of `visible_keys` stands for."""
    if not isinstance(result, Mask):
        assert result.dtype == torch.bool
        return result[:, 0]
    lo, hi = result.intervals(batch, n_query, n_key, torch.device("cpu"))
    key = torch.arange(n_key)
    return (key >= lo[..., None]) & (key < hi[..., None])


def check_against_eager(arguments):
    result = visible_keys(**arguments)
    own = eager_mask(**arguments, dtype=torch.float32)[:, 0] == 0
    batch, n_query, n_key = (arguments[k] for k in ("batch_size", "q_length", "kv_length"))
    assert torch.equal(dense(result, batch, n_query, n_key), own.expand(batch, n_query, n_key))
    one_interval = row_intervals(own[:, None]) is not None
    assert isinstance(result, Mask) == one_interval or arguments["mask_function"] in (
        causal_mask_function,  # the closed form may give up on a gap that no row sees
        bidirectional_mask_function,
    )
    return result


@st.composite
def mask_arguments(draw):
    batch = draw(st.integers(1, 3))
    n_query = draw(st.integers(1, 9))
    cached = draw(st.integers(0, 6))
    dropped = draw(st.integers(0, cached))
    n_key = max(1, cached - dropped + n_query + draw(st.integers(-2, 3)))
    window = draw(st.integers(1, 6))
    functions = [
        causal_mask_function,
        bidirectional_mask_function,
        sliding_window_causal_mask_function(window),
        sliding_window_bidirectional_mask_function(window),
        chunked_causal_mask_function(window, torch.zeros(batch, dtype=torch.int64)),
    ]
    arguments = {
        "batch_size": batch,
        "q_length": n_query,
        "kv_length": n_key,
        "q_offset": cached,
        "kv_offset": dropped,
        "mask_function": draw(st.sampled_from(functions)),
        "use_vmap": draw(st.booleans()),
    }
    if draw(st.booleans()):
        arguments["q_offset"] = torch.tensor(cached)  # as a static cache gives it
    if draw(st.booleans()):
        length = max(1, n_key + dropped + draw(st.integers(-3, 2)))
        bits = draw(st.lists(st.booleans(), min_size=batch * length, max_size=batch * length))
        arguments["attention_mask"] = torch.tensor(bits).reshape(batch, length)
    return arguments


@settings(max_examples=150, deadline=None)
@given(mask_arguments(), st.sampled_from([1, 20, 1 << 20]))
def test_equals_eager_mask(arguments, chunk):
    before = masks.CHUNK_ELEMENTS
    masks.CHUNK_ELEMENTS = chunk
    try:
        check_against_eager(arguments)
    finally:
        masks.CHUNK_ELEMENTS = before


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize(
    "function",
    [
        causal_mask_function,
        bidirectional_mask_function,
        sliding_window_causal_mask_function(3),
        sliding_window_bidirectional_mask_function(2),
    ],
)
def test_padding_gives_intervals(function, side):
    padding = torch.ones(2, 10, dtype=torch.bool)
    if side in ("left", "both"):
        padding[0, :3] = False
    if side in ("right", "both"):
        padding[0, 8:] = False
    result = check_against_eager(
        {
            "batch_size": 2,
            "q_length": 10,
            "kv_length": 10,
            "mask_function": function,
            "attention_mask": padding,
        }
    )
    assert isinstance(result, Mask)
    assert result.k_range.shape == (2, 10, 2)


def test_query_positions_include_the_cache():
    plain = visible_keys(2, 3, 8, q_offset=5)
    assert plain.q_pos.tolist() == [[5, 6, 7]] * 2
    sliding = visible_keys(1, 1, 4, q_offset=9, kv_offset=6)
    assert sliding.q_pos.tolist() == [[3]]
    assert sliding.k_range.tolist() == [[[0, 4]]]


def test_packed_sequences_are_intervals():
    sequence = torch.tensor([[0, 0, 1, 1, 1]])
    function = and_masks(causal_mask_function, packed_sequence_mask_function(sequence))
    result = check_against_eager(
        {"batch_size": 1, "q_length": 5, "kv_length": 5, "mask_function": function}
    )
    assert result.k_range.tolist() == [[[0, 1], [0, 2], [2, 3], [2, 4], [2, 5]]]


def test_a_gap_is_kept_dense():
    padding = torch.tensor([[True, False, True]])
    result = check_against_eager(
        {
            "batch_size": 1,
            "q_length": 3,
            "kv_length": 3,
            "mask_function": causal_mask_function,
            "attention_mask": padding,
        }
    )
    assert result.shape == (1, 1, 3, 3)


def test_heads_that_differ_are_kept_dense():
    table = torch.tensor([[True, True], [True, False]])

    def function(batch, head, query, key):
        return table[torch.arange(2)[None, :, None, None], key]

    result = visible_keys(1, 2, 2, mask_function=function)
    assert result.shape == (1, 2, 2, 2)
    assert not result[0, 1, 0, 1]
    assert row_intervals(result) is None


def test_memory_stays_linear():
    """At 4096 × 4096 the mask itself would be 16 MiB; only chunks of it may be alive."""
    n, window = 4096, 100
    sizes = []

    def function(batch, head, query, key):
        sizes.append(query.numel() * key.numel())
        return (key <= query) & (key > query - window)

    result = visible_keys(1, n, n, mask_function=function)
    assert max(sizes) <= masks.CHUNK_ELEMENTS
    assert sum(sizes) == n * n
    assert (result.k_range[0, :, 1] - result.k_range[0, :, 0]).max() == window


def test_the_registered_name_is_inert():
    assert not any(word in NAME for word in ("eager", "sdpa", "flash", "flex", "paged"))


class TestReadMask:
    q = torch.zeros(2, 4, 3, 8)
    k = torch.zeros(2, 2, 5, 8)

    def test_none_is_upper_left_causal_as_in_sdpa(self):
        mask, bias = read_mask(None, self.q, self.k, causal=True)
        assert bias is None
        assert dense(mask, 1, 3, 5)[0].tolist() == torch.ones(3, 5).tril().bool().tolist()

    def test_none_for_one_query_or_without_causality_shows_everything(self):
        for q, causal in ((self.q[:, :, :1], True), (self.q, False)):
            mask, _ = read_mask(None, q, self.k, causal=causal)
            assert dense(mask, 2, q.shape[2], 5).all()

    def test_boolean_and_float_tensors_agree(self):
        allowed = torch.rand(2, 1, 3, 5) > 0.5
        lowest = torch.zeros(2, 1, 3, 5).masked_fill(~allowed, torch.finfo(torch.float32).min)
        _, from_bool = read_mask(allowed, self.q, self.k, causal=True)
        mask, from_float = read_mask(lowest, self.q, self.k, causal=True)
        assert torch.equal(from_bool, from_float)
        assert set(from_bool.unique().tolist()) == {0.0, float("-inf")}
        assert not mask.causal

    def test_finite_values_are_added_as_they_are(self):
        _, bias = read_mask(torch.full((1, 1, 3, 5), -10000.0), self.q, self.k, causal=False)
        assert bias.unique().tolist() == [-10000.0]

    @pytest.mark.parametrize(
        ("mask", "text"),
        [
            (torch.ones(2, 5), "must be 4-D"),
            ("causal", "must be 4-D"),
            (torch.ones(2, 1, 3, 7), "3 queries and 5 keys"),
            (torch.ones(2, 1, 3, 5, dtype=torch.int64), "boolean or additive"),
        ],
    )
    def test_refuses_other_masks(self, mask, text):
        with pytest.raises(InputError, match=text):
            read_mask(mask, self.q, self.k, causal=True)
