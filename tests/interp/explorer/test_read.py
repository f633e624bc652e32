import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headatlas as ha
from headatlas.interp.errors import InputError
from headatlas.interp.explorer.blocks import NO_KEY, cell_size, largest_by_cell
from headatlas.interp.explorer.read import read_patterns
from headatlas.kernels.api import attention_probe

from .unpacked import head_numbers


def ids_of(length, seed=0, vocab=97):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab, (1, length), generator=generator)


def numbers_of(patterns):
    n_tokens = len(patterns.tokens)
    return {
        data.head: head_numbers(
            data.blocks, [vars(window) for window in data.windows], n_tokens, patterns.cell
        )
        for data in patterns.heads
    }


def check(patterns, captured):
    """Everything that is kept against the captured patterns, by head."""
    for head, kept in numbers_of(patterns).items():
        true = captured["pattern", head.layer][0, head.head].numpy()
        pooled = largest_by_cell(torch.from_numpy(true)[None], patterns.cell)[0].numpy()
        assert np.abs(kept.cells**0.5 - pooled**0.5).max() <= 0.5 / 255 + 1e-6
        order = -np.sort(-true, axis=1)[:, :4]
        order = np.pad(order, ((0, 0), (0, 4 - order.shape[1])))
        assert np.abs(kept.weights - order).max() <= 0.5 / 65535 + 1e-6
        rows, places = np.nonzero(kept.keys != NO_KEY)
        named = true[rows, kept.keys[rows, places]]
        assert np.abs(named - kept.weights[rows, places]).max() <= 0.5 / 65535 + 1e-6
        assert (kept.weights[kept.keys == NO_KEY] == 0).all()


def check_masks(model, ids, patterns):
    """Keys that a query is said to see are those whose scores are finite."""
    scores = ha.capture(model, None, ids, names_filter="attn_scores")
    key = np.arange(ids.shape[1])
    for data in patterns.heads:
        low, high = (np.array(ends)[:, None] for ends in patterns.masks[data.mask])
        seen = np.isfinite(scores["attn_scores", data.head.layer][0, data.head.head].numpy())
        assert ((key >= low) & (key < high) == seen).all()


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "bert"])
def test_a_short_text_is_kept_whole(tiny, family):
    model, ids = tiny(family, attn="eager"), ids_of(40)
    patterns = read_patterns(model, None, ids)
    assert patterns.cell == 1
    check_masks(model, ids, patterns)
    check(patterns, ha.capture(model, None, ids, names_filter="pattern"))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_shortest_texts(tiny, length):
    model, ids = tiny("llama"), ids_of(length)
    check(read_patterns(model, None, ids), ha.capture(model, None, ids, names_filter="pattern"))


@pytest.mark.parametrize("length", [513, 640, 700])
def test_a_long_text_is_pooled_and_has_its_windows(tiny, length, monkeypatch):
    # rows come in several spans, of which the last ends inside a cell
    monkeypatch.setattr("headatlas.interp.explorer.read._MOST_NUMBERS", 300_000)
    model, ids = tiny("llama", max_position_embeddings=1024), ids_of(length)
    windows = ["L1H2@90:190,500:510", "all@0:20", "L1H2,L0H0@480:513,3:99"]
    patterns = read_patterns(model, None, ids, windows=windows)
    captured = ha.capture(model, None, ids, names_filter="pattern")
    assert patterns.cell == cell_size(length) > 1
    check(patterns, captured)
    by_head = numbers_of(patterns)
    assert {len(kept.windows) for kept in by_head.values()} == {1, 2, 3}
    for data in patterns.heads:
        true = captured["pattern", data.head.layer][0, data.head.head].numpy()
        for window, kept in zip(data.windows, by_head[data.head].windows, strict=True):
            part = true[slice(*window.rows), slice(*window.keys)]
            assert np.abs(kept**0.5 - part**0.5).max() <= 0.5 / 255 + 1e-6


def test_a_bidirectional_long_text(tiny):
    model, ids = tiny("bert", max_position_embeddings=600), ids_of(560)
    check(read_patterns(model, None, ids), ha.capture(model, None, ids, names_filter="pattern"))


def test_statistics_are_means_over_the_rows(tiny, monkeypatch):
    monkeypatch.setattr("headatlas.interp.explorer.read._MOST_NUMBERS", 500)
    model, ids = tiny("llama"), ids_of(37)
    captured = ha.capture(model, None, ids, names_filter="pattern")
    for data in read_patterns(model, None, ids).heads:
        true = captured["pattern", data.head.layer][0, data.head.head].double()
        entropy = -torch.special.xlogy(true, true).sum(-1).mean()
        expected = (entropy, true[:, 0].mean(), true.diagonal(-1).mean())
        np.testing.assert_allclose(data.statistics, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["gpt_oss", "mistral", "bert"])
def test_statistics_are_those_of_head_statistics(tiny, family):
    model, ids = tiny(family, attn="eager"), ids_of(30)
    table = ha.head_statistics(model, None, ids)
    for data, row in zip(
        read_patterns(model, None, ids).heads, table.to_dict("records"), strict=True
    ):
        expected = (row["entropy_nats"], row["sink"])
        np.testing.assert_allclose(data.statistics[:2], expected, rtol=1e-4, atol=1e-5)


def test_edits_of_blocks_around_show(tiny, monkeypatch):
    monkeypatch.setattr("headatlas.interp.explorer.read._MOST_NUMBERS", 200)  # several spans
    model, ids = tiny("llama"), ids_of(30)
    uniform = ha.Edit("pattern", lambda call, pattern: torch.full_like(pattern, 1 / 30))
    with ha.attach(model, edits=[uniform]):
        patterns = read_patterns(model, None, ids)
    for numbers in numbers_of(patterns).values():
        assert np.abs(numbers.cells - 1 / 30).max() <= 2 / 255 / 30**0.5
    assert patterns.masks == (((0,) * 30, (30,) * 30),)
    for data in patterns.heads:
        assert data.statistics[0] == pytest.approx(np.log(30), rel=1e-5)


def test_some_heads_and_progress(tiny):
    told = []
    patterns = read_patterns(
        tiny("llama"), None, ids_of(9), heads=["L1H3", "L0H1"],
        progress=lambda *step: told.append(step),
    )  # fmt: skip
    assert [str(data.head) for data in patterns.heads] == ["L0H1", "L1H3"]
    assert told == [("reading", 1, 2), ("reading", 2, 2)]


def test_no_pattern_of_a_long_text_is_ever_written(tiny, monkeypatch):
    model, largest = tiny("llama", max_position_embeddings=1024), []

    def watched(*args, **options):
        out = attention_probe(*args, **options)
        if out.weights is not None:
            largest.append(out.weights.numel())
        return out

    monkeypatch.setattr("headatlas.interp.attention_call.attention_probe", watched)
    monkeypatch.setattr("headatlas.interp.explorer.read._MOST_NUMBERS", 10_000)
    read_patterns(model, None, ids_of(900))
    assert largest
    assert max(largest) <= 10_000  # one row of cells, 8 x 900, for one head at a time


@pytest.mark.parametrize(
    ("given_ids", "options", "part"),
    [
        (torch.ones(2, 5, dtype=torch.long), {}, "a page shows one text; got 2"),
        ({"input_ids": torch.ones(1, 3, dtype=torch.long),
          "attention_mask": torch.tensor([[0, 1, 1]])}, {}, "has padding"),
        (torch.ones(1, 5, dtype=torch.long), {"heads": ["L9H9"]}, "L9H9"),
        (torch.ones(1, 5, dtype=torch.long), {"windows": ["L0H0@0:6"]}, "has 5 tokens"),
        (torch.ones(1, 5, dtype=torch.long), {"max_bytes": 10}, "raise max_mib"),
        ("a text", {}, "needs a tokenizer"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused(tiny, given_ids, options, part):
    model = tiny("llama")
    before = model.config._attn_implementation
    with pytest.raises(InputError, match=part):
        read_patterns(model, None, given_ids, **options)
    assert model.config._attn_implementation == before


def test_several_stacks_are_refused(tiny):
    with pytest.raises(InputError, match="get_encoder"):
        read_patterns(tiny("t5"), None, ids_of(5))
    model = tiny("t5").get_encoder()
    check(
        read_patterns(model, None, ids_of(5)),
        ha.capture(model, None, ids_of(5), names_filter="pattern"),
    )


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 9), st.integers(1, 60), st.integers(1, 60))
def test_cells_hold_the_largest(cell, n_rows, n_keys):
    weights = torch.rand(2, n_rows, n_keys)
    cells = largest_by_cell(weights, cell)
    assert cells.shape == (2, -(-n_rows // cell), -(-n_keys // cell))
    for row in range(cells.shape[1]):
        for key in range(cells.shape[2]):
            part = weights[:, row * cell : (row + 1) * cell, key * cell : (key + 1) * cell]
            assert torch.equal(cells[:, row, key], part.amax(dim=(1, 2)))


def test_a_grid_has_at_most_128_cells_a_side():
    for n_tokens in (513, 640, 641, 4096, 4097, 65534):
        assert -(-n_tokens // cell_size(n_tokens)) <= 128
