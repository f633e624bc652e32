"""The bootstrap: coverage, family-wise error and the pitfalls it guards against."""

import numpy as np
import pytest
from scipy import stats

from headatlas.circuits.bootstrap import halves, simultaneous_bounds


@pytest.mark.parametrize("draw", ["normal", "skewed"])
def test_family_wise_error_and_uniform_p_values(draw):
    rng = np.random.default_rng(0)
    false, p_values = 0, []
    for repeat in range(200):
        shape = (48, 100)
        x = rng.normal(size=shape) if draw == "normal" else rng.exponential(size=shape) - 1
        bounds = simultaneous_bounds(x.mean(0), x - x.mean(0), resamples=400, seed=repeat)
        false += bool((bounds.low > 0).any())
        p_values.append(bounds.p[:1])
    # 200 runs at a true rate of 5 %: 20 or more have probability 0.003
    assert false < 20
    assert stats.kstest(np.concatenate(p_values), "uniform").pvalue > 0.001


def test_simultaneous_interval_covers():
    rng = np.random.default_rng(1)
    truth = np.linspace(-1, 1, 50)
    covered = 0
    for repeat in range(100):
        x = rng.normal(truth, 1.0, (60, 50))
        bounds = simultaneous_bounds(x.mean(0), x - x.mean(0), resamples=400, seed=repeat)
        covered += bool(((bounds.low <= truth) & (truth <= bounds.high)).all())
    assert covered >= 87  # binomial(100, .95): below 87 has probability 0.001


def test_a_single_document_cannot_make_a_label():
    """A statistic carried by one document of many is not significant, nor ruins the others."""
    rng = np.random.default_rng(2)
    x = rng.normal(0, 0.01, (64, 20))
    x[:, 0] = 0
    x[5, 0] = 1.0  # mean 1/64 with a standard error as large
    x[:, 1] += 0.05
    bounds = simultaneous_bounds(x.mean(0), x - x.mean(0))
    assert bounds.low[0] <= 0
    assert bounds.low[1] > 0
    assert bounds.p_family[1] < 0.05 < bounds.p_family[0]


def test_constant_statistics_have_a_numerical_resolution():
    x = np.full((16, 2), 0.5)
    x[:, 1] = 0
    bounds = simultaneous_bounds(x.mean(0), x - x.mean(0))
    assert np.isfinite(bounds.low).all()
    assert bounds.low[0] > 0.499
    assert bounds.low[1] <= 0 <= bounds.high[1]


def test_seed_decides():
    x = np.random.default_rng(3).normal(size=(20, 5))
    one, two, other = (
        simultaneous_bounds(x.mean(0), x - x.mean(0), seed=seed).low for seed in (7, 7, 8)
    )
    assert (one == two).all()
    assert (one != other).any()


def test_halves_split_evenly():
    half = halves(64, seed=3)
    assert half.sum() == 32
    assert (halves(64, seed=3) == half).all()
    assert (halves(64, seed=4) != half).any()
