"""What open heads cost during training: a fixed price each, or whatever price meets a target."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Penalty(nn.Module):
    """A fixed price per open head, in nats per token.

        L = loss + λ Σ_h P(z_h ≠ 0)

    A head stays open where it saves more than about λ nats per token.

    Args:
        lam: λ.

    Example:
        >>> float(Penalty(0.5).term(torch.tensor(4.0), share=1.0))
        2.0

    Reference:
        Louizos 2018, equation 12; Voita 2019, equation 7.
    """

    def __init__(self, lam: float) -> None:
        super().__init__()
        self.lam = lam

    def term(self, expected_open: Float[Tensor, ""], share: float) -> Float[Tensor, ""]:
        """What is added to the loss.

        Args:
            expected_open: expected number of open heads.
            share: of the warm-up that is done, 0 to 1; λ grows with it.
        """
        return self.price(expected_open, share) * expected_open

    def price(self, expected_open: Float[Tensor, ""], share: float) -> float:
        """The term's derivative in the expected number of open heads, in nats per token."""
        return self.lam * share


class Constraint(nn.Module):
    """A price that rises until the expected share of closed heads meets a target.

        L = loss + λ₁ (ŝ − t) + λ₂ (ŝ − t)²,   ŝ = 1 − Σ_h P(z_h ≠ 0) / n

    The gates descend, the multipliers ascend: λ₁ from 0, λ₂ from a positive number. Were both to
    begin at 0, gates would lag behind the target, λ₁ would grow meanwhile, and ŝ overshoot.

    Args:
        target: t, the share of heads to close.
        n_heads: n.
        stiffness: where λ₂ starts, in nats per token.

    Example:
        >>> constraint = Constraint(0.5, 8, stiffness=30.0)
        >>> constraint.term(torch.tensor(8.0), share=1.0).item()
        7.5
        >>> constraint.excess(torch.tensor(8.0), share=1.0).item()
        -0.5

    Reference:
        Wang 2020 (the constraint); Xia 2022 (CoFi, the warm-up of the target); Xia 2023
        (Sheared-LLaMA).
    """

    def __init__(self, target: float, n_heads: int, stiffness: float) -> None:
        super().__init__()
        self.target, self.n_heads = target, n_heads
        self.multipliers = nn.Parameter(torch.tensor([0.0, stiffness]))

    def excess(self, expected_open: Float[Tensor, ""], share: float) -> Float[Tensor, ""]:
        """ŝ − t, with the target that part of the warm-up has reached."""
        return 1 - expected_open / self.n_heads - self.target * share

    def term(self, expected_open: Float[Tensor, ""], share: float) -> Float[Tensor, ""]:
        """What is added to the loss.

        Args:
            expected_open: expected number of open heads.
            share: of the warm-up that is done, 0 to 1; the target grows with it.
        """
        excess = self.excess(expected_open, share)
        return self.multipliers[0] * excess + self.multipliers[1] * excess**2

    def price(self, expected_open: Float[Tensor, ""], share: float) -> float:
        """The term's derivative in the expected number of open heads, in nats per token."""
        first, second = self.multipliers.tolist()
        return (
            -(first + 2 * second * float(self.excess(expected_open, share).detach())) / self.n_heads
        )
