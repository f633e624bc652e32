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
    assert np.abs(z / 10_000 - (one - two).clamp(-0.5, 0.5).numpy()).max() <= 0.501e-4
    assert figure.layout.coloraxis.cmin == -5000
    assert len(figure.layout.shapes) == 1  # the future


def test_other_shapes_are_refused():
    with pytest.raises(InputError, match=r"one shape; got \(1, 3, 3\) and \(1, 2, 2\)"):
        plot_difference(causal(3, 3), causal(2, 2))
    with pytest.raises(InputError, match=r"the other is \(2, 1, 3, 3\)"):
        plot_difference(causal(1, 3, 3), causal(2, 1, 3, 3))


@pytest.mark.parametrize(("n", "least"), [(300, 4e-5), (1500, 0.0012)])
def test_a_long_difference_is_as_fine_as_its_colours(n, least):
    """However small the largest difference is, the whole numbers fill the range that is drawn."""
    one = torch.zeros(n, n, dtype=torch.float64)
    one[:, :2] = 0.5
    two = one.clone()
    two[:, 0] += least * torch.linspace(0, 1, n)
    two[:, 1] -= least * torch.linspace(0, 1, n)
    figure = plot_difference(two, one)
    z, scale = figure.data[0].z.astype(float), figure.layout.coloraxis
    assert scale.cmax >= 125
    drawn = z / scale.cmax * least
    assert np.abs(drawn - (two - one).numpy()).max() <= least / 240
    assert scale.colorbar.ticktext[-1] == f"{least:.3g}"
    step = {300: " × 10⁻⁸", 1500: f"/{125 / least:.6g} (±{0.5 * least / 125:.2g})"}[n]
    assert f"difference %{{z}}{step}<extra>" in figure.data[0].hovertemplate


def test_what_is_beyond_the_last_colour_is_said():
    one, two = causal(300, 300), causal(300, 300, seed=1)
    figure = plot_difference(one, two, max_weight=0.1)
    z, most = figure.data[0].z, figure.layout.coloraxis.cmax
    assert (z.min(), z.max()) == (-most, most)
    said = f"{most:g} stands for 0.1 and more, −{most:g} for −0.1 and less"
    assert said in figure.data[0].hovertemplate
    assert "stands for" not in plot_difference(one, two).data[0].hovertemplate


def test_differences_that_are_none_have_the_middle_colour():
    one = torch.eye(3, dtype=torch.float64)
    two = one.clone()
    two[1, 0] = 5e-324
    figure = plot_difference(one, two)
    assert figure.layout.coloraxis.cmax == 1


def test_short_differences_are_told_however_small():
    assert "%{z:.4~g}" in plot_difference(causal(3, 3), causal(3, 3)).data[0].hovertemplate


def test_rows_of_both_are_blank_after_their_own_keys():
    one, two = causal(6, 6)[[1, 4]], causal(6, 6, seed=1)[[1, 4]]
    z = plot_difference(one, two, rows=[1, 4]).data[0].z
    assert np.isnan(z).sum(axis=1).tolist() == [4, 1]
