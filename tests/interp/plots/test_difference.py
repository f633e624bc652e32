import numpy as np
import pytest
import torch

from headatlas.interp.errors import InputError
from headatlas.interp.plots import plot_difference
from tests.interp.plots.made import causal


def test_cells_are_the_difference_and_colours_meet_at_zero():
    one, two = causal(5, 5), causal(5, 5, seed=1)
    figure = plot_difference(one, two, tokens=list("aabba"))
    z = torch.tensor(figure.data[0].z)
    lower = torch.ones(5, 5).tril().bool()
    torch.testing.assert_close(z[lower], (one - two)[lower].double(), atol=1e-6, rtol=0)
    assert z[~lower].isnan().all()
    scale = figure.layout.coloraxis
    assert scale.cmin == -scale.cmax == -float(np.nanmax(np.abs(z.numpy())))
    assert scale.colorscale[len(scale.colorscale) // 2][0] == 0.5


def test_only_what_is_blank_in_both_is_blank():
    one, two = torch.full((3, 3), 1 / 3), causal(3, 3)
    assert not np.isnan(plot_difference(one, two).data[0].z).any()
    dead = causal(3, 3)
    dead[1] = 0
    z = plot_difference(two, dead).data[0].z
    assert np.isnan(z[0, 1:]).all()
    assert z[1, :2].tolist() == pytest.approx(two[1, :2].tolist())  # dead in one of them alone
    assert np.isnan(plot_difference(dead, dead).data[0].z[1]).all()


def test_equal_patterns_have_a_scale():
    scale = plot_difference(causal(3, 3), causal(3, 3)).layout.coloraxis
    assert (scale.cmin, scale.cmax) == (-1, 1)


def test_a_long_difference_is_kept_in_signed_integers():
    one, two = causal(300, 300), causal(300, 300, seed=1)
    figure = plot_difference(one, two, max_weight=0.5)
    z = figure.data[0].z
    assert z.dtype == np.int16
    assert np.abs(z / 10_000 - (one - two).numpy()).max() <= 0.501e-4
    assert figure.layout.coloraxis.cmin == -5000
    assert len(figure.layout.shapes) == 1  # the future


def test_other_shapes_are_refused():
    with pytest.raises(InputError, match=r"one shape; got \(1, 3, 3\) and \(1, 2, 2\)"):
        plot_difference(causal(3, 3), causal(2, 2))
    with pytest.raises(InputError, match=r"the other is \(2, 1, 3, 3\)"):
        plot_difference(causal(1, 3, 3), causal(2, 1, 3, 3))
