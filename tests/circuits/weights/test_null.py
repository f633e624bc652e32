"""Moments of the rotation null against sampled rotations, and p-values against scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headatlas.circuits.weights.null import (
    P_RESOLUTION,
    false_discovery_q,
    gamma_p,
    random_frame,
    rotation_moments,
    student_p,
)

D, DRAWS = 12, 4000


def haar(rng, d=D):
    q, r = np.linalg.qr(rng.standard_normal((d, d)))
    return q * np.sign(np.diag(r))


def maps(rng, sort):
    a, b = rng.standard_normal((D, D)), rng.standard_normal((D, D))
    if sort == "rank 1":
        a, b = np.outer(a[0], a[1]), np.outer(b[0], b[1])
    if sort == "steep":
        a, b = a * 0.5 ** np.arange(D), b * 0.7 ** np.arange(D)[:, None]
    return a, b


def observed(a, b, rng, n=DRAWS):
    return np.array([np.square(a @ haar(rng) @ b).sum() for _ in range(n)])


def moments(a, b):
    p, q = torch.tensor(a.T @ a), torch.tensor(b @ b.T)
    sides = [(x.trace(), (x @ x).trace()) for x in (p, q)]
    return rotation_moments(*sides, D)


@pytest.mark.parametrize("sort", ["full", "rank 1", "steep"])
def test_moments_are_those_of_sampled_rotations(sort):
    rng = np.random.default_rng(1)
    a, b = maps(rng, sort)
    mean, variance = (float(x) for x in moments(a, b))
    sample = observed(a, b, rng)
    standard_error = sample.std() / DRAWS**0.5
    assert abs(sample.mean() - mean) < 4 * standard_error
    fourth = ((sample - sample.mean()) ** 4).mean()
    assert abs(sample.var() - variance) < 4 * ((fourth - sample.var() ** 2) / DRAWS) ** 0.5


@pytest.mark.parametrize("sort", ["full", "rank 1", "steep"])
def test_gamma_p_is_close_to_the_sampled_tail(sort):
    """Uniform within .02 at every level up to .1, where decisions fall."""
    rng = np.random.default_rng(2)
    a, b = maps(rng, sort)
    mean, variance = moments(a, b)
    p = gamma_p(torch.tensor(observed(a, b, rng)), mean, variance).numpy()
    for level in (0.01, 0.05, 0.1):
        assert abs((p <= level).mean() - level) < 0.02


@pytest.mark.parametrize(("fall", "rank"), [(1.0, 8), (0.6, 8), (0.6, 2)])
def test_p_is_a_number_down_to_its_resolution(fall, rank):
    """Frames of the rank's columns stand for rotations: the rest of both maps is zero."""
    generator, d = torch.Generator().manual_seed(0), 32
    spectrum = fall ** torch.arange(rank).double()
    frames, _ = torch.linalg.qr(torch.randn(40_000, d, rank, generator=generator))
    block = frames[:, :rank].double() * spectrum[:, None] * spectrum
    side = (spectrum**2).sum(), (spectrum**4).sum()
    p = gamma_p(block.square().sum((1, 2)), *rotation_moments(side, side, d)).numpy()
    assert (p <= P_RESOLUTION).mean() < 3 * P_RESOLUTION
    assert 0.5 < (p <= 0.01).mean() / 0.01 < 1.7


def test_nothing_random_gives_p_one():
    """An isotropic map looks the same from every side."""
    mean, variance = rotation_moments(
        (torch.tensor(12.0).double(), torch.tensor(12.0).double()),
        (torch.tensor(3.0).double(), torch.tensor(9.0).double()),
        12,
    )
    assert variance == 0
    assert gamma_p(mean, mean, variance) == 1


@given(st.floats(0.1, 1e4), st.floats(0.05, 50), st.floats(0, 3))
def test_gamma_tail_is_scipys(mean, cv, ratio):
    value, variance = mean * ratio, (mean * cv) ** 2
    got = gamma_p(*(torch.tensor(x, dtype=torch.float64) for x in (value, mean, variance)))
    wanted = stats.gamma.sf(value, mean**2 / variance, scale=variance / mean)
    assert float(got) == pytest.approx(wanted, rel=1e-6, abs=1e-12)


@given(st.floats(-8, 8), st.integers(29, 400))
def test_student_tail_is_scipys(t, freedom):
    got = float(student_p(torch.tensor(t, dtype=torch.float64), freedom))
    assert got == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=3e-2, abs=1e-12)


@given(st.lists(st.floats(0, 1) | st.just(float("nan")), max_size=30))
@settings(max_examples=60)
def test_q_is_scipys_benjamini_hochberg(values):
    p = np.array(values, dtype=np.float64)
    q, tested = false_discovery_q(p), ~np.isnan(p)
    assert np.array_equal(np.isnan(q), ~tested)
    if tested.any():
        assert np.allclose(q[tested], stats.false_discovery_control(p[tested]))


@pytest.mark.parametrize("centred", [False, True])
def test_frames_are_orthonormal_and_even(centred):
    rng = np.random.default_rng(0)
    frames = torch.stack([random_frame(rng, 3, 8, centred=centred) for _ in range(2000)])
    gram = frames @ frames.mT
    assert torch.allclose(gram, torch.eye(3).expand_as(gram), atol=1e-5)
    projector = (frames.mT @ frames).mean(0) * 8 / 3
    wanted = torch.eye(8)
    if centred:
        assert frames.sum(2).abs().max() < 1e-5
        wanted = (wanted - 1 / 8) * 8 / 7
    assert (projector - wanted).abs().max() < 0.1
    assert frames.mean(0).abs().max() < 0.05
