"""The hard-concrete distribution: a gate in [0, 1] that is exactly 0 or 1 much of the time."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

GAMMA, ZETA = -0.1, 1.1
"""The interval that the concrete variable is stretched to before it is cut to [0, 1]."""

BETA = 2 / 3
"""The usual temperature."""


def p_open(log_alpha: Float[Tensor, "*gates"], beta: float = BETA) -> Float[Tensor, "*gates"]:
    """Probability that a gate is not 0.

        P(z ≠ 0) = σ(log α − β ln(−γ / ζ))

    Args:
        log_alpha: location of each gate.
        beta: temperature.

    Example:
        >>> round(float(p_open(torch.tensor(0.0))), 3)
        0.832

    Reference:
        Louizos 2018, equation 12.
    """
    return torch.sigmoid(open_logit(log_alpha, beta))


def open_logit(log_alpha: Float[Tensor, "*gates"], beta: float = BETA) -> Float[Tensor, "*gates"]:
    """The logit of `p_open`, which keeps its precision where the probability is near 0 or 1."""
    return log_alpha - beta * math.log(-GAMMA / ZETA)


def sample_gate(
    log_alpha: Float[Tensor, "*#gates"], u: Float[Tensor, "*#gates"], beta: float = BETA
) -> Float[Tensor, "*#gates"]:
    """A gate drawn by way of uniform noise, differentiable in log α.

        s = σ((ln u − ln(1 − u) + log α) / β),   z = min(1, max(0, s (ζ − γ) + γ))

    Args:
        log_alpha: location of each gate.
        u: uniform on (0, 1), of a shape that broadcasts with it.
        beta: temperature.

    Example:
        >>> sample_gate(torch.zeros(3), torch.tensor([0.01, 0.5, 0.99])).tolist()
        [0.0, 0.5, 1.0]

    Reference:
        Louizos 2018, equations 10 and 11.
    """
    s = torch.sigmoid((torch.log(u) - torch.log1p(-u) + log_alpha) / beta)
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0.0, 1.0)


def test_gate(log_alpha: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
    """The gate without noise, as it is used after training.

        z = min(1, max(0, σ(log α) (ζ − γ) + γ)),

    exactly 0 for log α ≤ −2.398 and 1 for log α ≥ 2.398; the temperature plays no part.

    Args:
        log_alpha: location of each gate.

    Example:
        >>> test_gate(torch.tensor([-2.398, 0.0, 2.398])).tolist()
        [0.0, 0.5, 1.0]

    Reference:
        Louizos 2018, equation 13.
    """
    return (torch.sigmoid(log_alpha) * (ZETA - GAMMA) + GAMMA).clamp(0.0, 1.0)
