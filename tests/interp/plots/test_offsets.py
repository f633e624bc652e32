import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.load import load
from headatlas.interp.plots import plot_offsets
from tests.interp.plots.made import causal


def test_the_mean_of_each_diagonal():
    pattern = causal(2, 6, 6)
    figure = plot_offsets(pattern, heads=["L0H0", "L0H1"], max_offset=4)
    for trace, weights in zip(figure.data, pattern.double(), strict=True):
        assert trace.x.tolist() == [0, 1, 2, 3, 4]
        means = [weights.diagonal(-offset).mean().item() for offset in range(5)]
        assert trace.y.tolist() == pytest.approx(means)
        assert trace.customdata[:, 0].tolist() == [6, 5, 4, 3, 2]
    assert [trace.name for trace in figure.data] == ["L0H0", "L0H1"]


def test_patterns_that_look_ahead_have_negative_offsets():
    ahead = torch.eye(4).roll(1, 1)  # every token looks at the next
    (trace,) = plot_offsets(ahead, max_offset=2).data
    assert trace.x.tolist() == [-2, -1, 0, 1, 2]
    assert trace.y.tolist() == [0, 1, 0, 0, 0]


def test_the_last_query_stands_on_the_last_key():
    pattern = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    (trace,) = plot_offsets(pattern).data
    assert trace.y.tolist() == [0, 1, 0, 0]


def test_dead_rows_do_not_count():
    pattern = torch.eye(3)
    pattern[1] = 0
    (trace,) = plot_offsets(pattern).data
    assert trace.y.tolist() == [1, 0, 0]
    assert trace.customdata[:, 0].tolist() == [2, 1, 1]


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 12), most=st.integers(0, 20), seed=st.integers(0, 99))
def test_the_weights_by_offset_add_up(n, most, seed):
    (trace,) = plot_offsets(causal(n, n, seed=seed), max_offset=most).data
    total = float(np.nansum(trace.y * trace.customdata[:, 0]))
    assert total <= n + 1e-4
    if most >= n - 1:
        assert total == pytest.approx(n, abs=1e-4)


@pytest.mark.parametrize("most", [-1, 1.5, "4", True])
def test_other_offsets_are_refused(most, as_users_call):
    with pytest.raises(InputError, match="max_offset is a whole number"):
        plot_offsets(causal(3, 3), max_offset=most)


def test_rows_stand_where_they_say():
    whole = causal(1, 8, 8)
    means = plot_offsets(whole).data[0].y
    rows = [6, 2, 7]
    figure = plot_offsets(whole[:, rows], rows=rows)
    own = [[whole[0, row, row - offset].item() for row in rows if row >= offset]
           for offset in range(8)]  # fmt: skip
    assert figure.data[0].y.tolist() == pytest.approx([np.mean(part) for part in own])
    every = plot_offsets(whole, rows=range(8)).data[0].y
    np.testing.assert_array_equal(every, means)


def test_rows_of_a_capture_have_their_offsets():
    model, tokenizer = load("tiny")
    text = "the cat sat on the mat and the dog ran."
    options = {"names_filter": "pattern", "heads": ["L1H1"]}
    whole = capture(model, tokenizer, text, **options)["pattern", 1]
    cache = capture(model, tokenizer, text, **options, rows=[5, 6, 7])
    figure = plot_offsets(cache["pattern", 1], rows=cache.rows, max_offset=3)
    weights = whole[0, 0]
    expected = [np.mean([weights[i, i - d].item() for i in (5, 6, 7)]) for d in range(4)]
    assert figure.data[0].y.tolist() == pytest.approx(expected, abs=1e-5)
    assert sum(expected) > 0.1


def test_rows_that_look_ahead():
    ahead = torch.eye(6).roll(1, 1)[[1, 3]]
    (trace,) = plot_offsets(ahead, rows=[1, 3], max_offset=9).data
    assert trace.x.tolist() == [-4, -3, -2, -1, 0, 1, 2, 3]
    assert trace.y[3] == 1
