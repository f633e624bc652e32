"""The null of composition: the same two maps, one turned at random against the other."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

P_RESOLUTION = 1e-3
"""The smallest p worth a number: sampled rotations of maps of rank 1 to 8 in 32 and 64 dimensions
reach what `gamma_p` calls .001 up to 2.5 times as often (steep spectra; flat ones more seldom)."""

Moments = tuple[Float64[Tensor, "*#pair"], Float64[Tensor, "*#pair"]]


def rotation_moments(
    left: tuple[Float64[Tensor, "*#pair"], Float64[Tensor, "*#pair"]],
    right: tuple[Float64[Tensor, "*#pair"], Float64[Tensor, "*#pair"]],
    d_model: int,
) -> Moments:
    """Mean and variance of ‖A R B‖²_F over Haar-random orthogonal R, exactly.

    With P = AᵀA, Q = BBᵀ and d = d_model, both [d, d]:

        mean = tr P tr Q / d
        variance = 2 (tr P² − (tr P)²/d) (tr Q² − (tr Q)²/d) / ((d − 1)(d + 2))

    R keeps both spectra, so only how the two maps' directions fit together is random.

    Args:
        left: tr P and tr P².
        right: tr Q and tr Q².
        d_model: d, at least 2.

    Returns:
        Mean and variance, broadcast.

    Example:
        >>> one, ten = torch.ones((), dtype=torch.float64), torch.tensor(10.0).double()
        >>> [round(float(x), 4) for x in rotation_moments((one, one), (ten, ten * 10), 10)]
        [1.0, 1.5]

    Reference: Collins and Śniady 2006 (Weingarten calculus of the orthogonal group), second order.
    """
    (p, p2), (q, q2) = left, right
    mean = p * q / d_model
    spread = (p2 - p**2 / d_model).clamp(min=0) * (q2 - q**2 / d_model).clamp(min=0)
    return mean, 2 * spread / ((d_model - 1) * (d_model + 2))


def gamma_p(
    value: Float64[Tensor, "*#pair"],
    mean: Float64[Tensor, "*#pair"],
    variance: Float64[Tensor, "*#pair"],
) -> Float64[Tensor, "*#pair"]:
    """P(S ≥ value) of the gamma distribution with that mean and variance.

    ‖A R B‖² is close to one: a sum of many small terms, or, for maps of rank 1, the square of one
    number. Far out the gamma distribution is extrapolated: below `P_RESOLUTION` p still orders the
    pairs, but is no probability to quote. Values beyond float64 are 0.

    Args:
        value: observed ‖A B‖².
        mean: of the null.
        variance: of the null; where it is 0, nothing is random and p is 1.

    Example:
        >>> four = torch.tensor(4.0).double()
        >>> round(float(gamma_p(four, torch.ones_like(four), torch.ones_like(four))), 4)
        0.0183
    """
    fixed = variance <= 1e-12 * mean**2
    safe = torch.where(fixed, torch.ones_like(variance), variance)
    tail = torch.special.gammaincc(mean**2 / safe, (value * mean / safe).clamp(min=0))
    return torch.where(fixed & mean.isfinite(), torch.ones_like(tail), tail)


def false_discovery_q(p: Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """The smallest false-discovery rate that calls each test: min of p · n / rank from it on.

    Args:
        p: p-values; NaN where there was no test.

    Example:
        >>> false_discovery_q(np.array([0.01, 0.04, 0.03, np.nan])).round(3).tolist()
        [0.03, 0.04, 0.04, nan]

    Reference: Benjamini and Hochberg 1995.
    """
    q = np.full(len(p), np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    raw = p[order] * len(order) / np.arange(1, len(order) + 1)
    q[order] = np.minimum(1.0, np.minimum.accumulate(raw[::-1])[::-1])
    return q


def student_p(t: Float64[Tensor, "*#pair"], freedom: int) -> Float64[Tensor, "*#pair"]:
    """Two-sided p of Student's t, to 3 % from 29 degrees of freedom on, down to p = 1e-8.

    Args:
        t: the statistic.
        freedom: degrees of freedom.

    Example:
        >>> round(float(student_p(torch.tensor(2.0).double(), 30)), 4)
        0.0546

    Reference: Wallace 1959 (normal approximation of t).
    """
    z = (freedom * torch.log1p(t.square() / freedom)).sqrt() * (8 * freedom + 1) / (8 * freedom + 3)
    return 2 * torch.special.ndtr(-z)


def random_frame(
    rng: np.random.Generator, rows: int, d_model: int, *, centred: bool = False
) -> Float[Tensor, "rows d_model"]:
    """Orthonormal rows drawn evenly from all such frames, in float32.

    Args:
        rng: source of randomness.
        rows: how many.
        d_model: their width, at least `rows` (one more if centred).
        centred: draw among the directions orthogonal to (1, …, 1), where LayerNorm looks.

    Example:
        >>> frame = random_frame(np.random.default_rng(0), 2, 5)
        >>> (frame @ frame.T).round(decimals=3).abs()
        tensor([[1., 0.],
                [0., 1.]])
    """
    gaussian = torch.from_numpy(rng.standard_normal((rows, d_model)))
    if centred:
        gaussian = gaussian - gaussian.mean(1, keepdim=True)
    q, r = torch.linalg.qr(gaussian.T)
    return (q * r.diagonal().sign()).T.float().contiguous()
