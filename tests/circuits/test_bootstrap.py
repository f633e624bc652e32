"""The bootstrap: coverage, family-wise error and the pitfalls it guards against."""

import numpy as np
import pytest
from scipy import stats

from headatlas.circuits.bootstrap import Sample, halves, simultaneous_bounds


def bound(x, **options):
    """Bounds of the column means of one set of documents."""
    return simultaneous_bounds([sample(x)], **options)


def sample(x, name="documents"):
    return Sample(name, x.mean(0), centred(x), halves(len(x)))


def centred(x):
    """Influence on the mean as far as each half alone decides it."""
    half = halves(len(x))
    out = x.astype(float).copy()
    for part in (half, ~half):
        out[part] -= x[part].mean(0)
    return out


@pytest.mark.parametrize("draw", ["normal", "skewed"])
def test_family_wise_error_and_uniform_p_values(draw):
    rng = np.random.default_rng(0)
    false, p_values = 0, []
    for repeat in range(200):
        shape = (48, 100)
        x = rng.normal(size=shape) if draw == "normal" else rng.exponential(size=shape) - 1
        bounds = bound(x, resamples=400, seed=repeat)
        false += bool((bounds.low > 0).any())
        p_values.append(bounds.p[:1])
    # 200 runs at a true rate of 5 %: 20 or more have probability 0.003
    assert false < 20
    assert stats.kstest(np.concatenate(p_values), "uniform").pvalue > 0.001


@pytest.mark.parametrize("draw", ["normal", "skewed"])
@pytest.mark.parametrize(("few", "many"), [(2, 100), (100, 100)])
def test_sets_of_unequal_size_keep_the_family_wise_error(draw, few, many):
    """16 documents beside 64: the small set's heavier tails belong to its own hypotheses."""
    rng = np.random.default_rng(4)
    false = 0
    for repeat in range(150):
        make = rng.standard_normal if draw == "normal" else rng.standard_exponential
        sets = [sample(make((16, few)), "text"), sample(make((64, many)), "random")]
        truth = 0.0 if draw == "normal" else 1.0
        bounds = simultaneous_bounds(sets, resamples=300, seed=repeat)
        false += bool((bounds.low > truth).any())
    assert false < 19  # 150 runs at 5 %: 19 or more have probability 0.0002


@pytest.mark.parametrize("n", [16, 64])
def test_hypotheses_on_half_the_documents_keep_the_family_wise_error(n):
    """A variant chosen on half A is judged on half B alone: n / 2 documents, not n."""
    rng = np.random.default_rng(5)
    false = 0
    for repeat in range(150):
        x = rng.normal(size=(n, 40))
        half = halves(n)
        judged = np.where(half[:, None], 0.0, x - x[~half].mean(0)) * (n / (~half).sum())
        one = Sample("documents", x[~half].mean(0), judged, half)
        bounds = simultaneous_bounds([one], resamples=300, seed=repeat)
        false += bool((bounds.low > 0).any())
    assert false < 19


def test_a_half_that_does_not_bear_on_a_hypothesis_adds_nothing():
    x = np.random.default_rng(6).normal(size=(32, 3))
    half = halves(32)
    judged = np.where(half[:, None], 0.0, x - x[~half].mean(0)) * 2
    bounds = simultaneous_bounds([Sample("documents", x[~half].mean(0), judged, half)])
    assert np.allclose(bounds.se, x[~half].std(0, ddof=1) / 4)


def test_simultaneous_interval_covers():
    rng = np.random.default_rng(1)
    truth = np.linspace(-1, 1, 50)
    covered = 0
    for repeat in range(100):
        x = rng.normal(truth, 1.0, (60, 50))
        bounds = bound(x, resamples=400, seed=repeat)
        covered += bool(((bounds.low <= truth) & (truth <= bounds.high)).all())
    assert covered >= 87  # binomial(100, .95): below 87 has probability 0.001


def test_a_single_document_cannot_make_a_label():
    """A statistic carried by one document of many is not significant, nor ruins the others."""
    rng = np.random.default_rng(2)
    x = rng.normal(0, 0.01, (64, 20))
    x[:, 0] = 0
    x[5, 0] = 1.0  # mean 1/64 with a standard error as large
    x[:, 1] += 0.05
    bounds = bound(x)
    assert bounds.low[0] <= 0
    assert bounds.low[1] > 0
    assert bounds.p_family[1] < 0.05 < bounds.p_family[0]


def test_constant_statistics_have_a_numerical_resolution():
    x = np.full((16, 2), 0.5)
    x[:, 1] = 0
    bounds = bound(x)
    assert np.isfinite(bounds.low).all()
    assert bounds.low[0] > 0.499
    assert bounds.low[1] <= 0 <= bounds.high[1]


def test_seed_decides():
    x = np.random.default_rng(3).normal(size=(20, 5))
    one, two, other = (bound(x, seed=seed).low for seed in (7, 7, 8))
    assert (one == two).all()
    assert (one != other).any()


def test_halves_split_evenly():
    half = halves(64, seed=3)
    assert half.sum() == 32
    assert (halves(64, seed=3) == half).all()
    assert (halves(64, seed=4) != half).any()
