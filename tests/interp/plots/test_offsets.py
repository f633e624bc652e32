import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
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
