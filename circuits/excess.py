"""Observed mass less the mass expected by chance, with the influence of every document on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from .sums import Sums


@dataclass(frozen=True, eq=False)
class Excess:
    """One statistic for every head.

    Args:
        score: mean mass per scored row, [head].
        expected: mean mass expected by chance, [head].
        influence: influence of each document on score − expected, [document, head].
        by_half: excess in half A and in half B, [2, head].
        n: scored rows.
    """

    score: Float[np.ndarray, " head"]
    expected: Float[np.ndarray, " head"]
    influence: Float[np.ndarray, "document head"]
    by_half: Float[np.ndarray, "2 head"]
    n: int

    @property
    def excess(self) -> Float[np.ndarray, " head"]:
        """score − expected, [head]."""
        return self.score - self.expected


def uniform_excess(
    sums: Sums,
    column: int,
    half: Bool[np.ndarray, " document"],
    *,
    documents: Bool[np.ndarray, " document"] | None = None,
) -> Excess:
    """Excess over evenly spread attention.

    θ = Σ_d (mass_d − uniform_d) / Σ_d rows_d.

    Args:
        sums: what `score` left.
        column: index of the statistic.
        half: marks half A.
        documents: only these documents count; None means all.
    """
    use = np.ones(len(sums.rows), bool) if documents is None else documents
    rows = sums.rows[:, column] * use
    total = max(1, int(rows.sum()))
    mass = sums.mass[:, :, column] * use[:, None]
    chance = sums.uniform[:, sums.layer_of, column] * use[:, None]
    theta = (mass - chance).sum(0) / total
    influence = len(use) * (mass - chance - theta * rows[:, None]) / total
    return _excess(mass, chance, rows, influence, half)


def profile_excess(sums: Sums, column: int, half: Bool[np.ndarray, " document"]) -> Excess:
    """Excess over the head's own habits of position.

    The profile of one half of the documents gives the expected mass of the other:
    θ = Σ_d (mass_d − pairs_d · π_other(d)) / Σ_d rows_d. A document moves θ in two ways, through
    its own rows and through the profile that judges the other half; both are in the influence.

    Args:
        sums: what `score` left.
        column: index of the statistic.
        half: marks half A.
    """
    return _profile_excess(
        sums, sums.mass[:, :, column], sums.pairs[:, column], sums.rows[:, column], half
    )


def permuted_excess(
    sums: Sums, draw: int, slot: int, half: Bool[np.ndarray, " document"]
) -> Excess:
    """`profile_excess` of one draw of permuted labels."""
    rows = sums.rows[:, sums.permuted[slot]]
    return _profile_excess(
        sums, sums.null_mass[:, :, draw, slot], sums.null_pairs[:, draw, slot], rows, half
    )


def _profile_excess(
    sums: Sums, mass: np.ndarray, pairs: np.ndarray, rows: np.ndarray, half: np.ndarray
) -> Excess:
    total = max(1, int(rows.sum()))
    chance = np.empty_like(mass)
    through_profile = np.empty_like(mass)
    for own in (half, ~half):
        counts = sums.profile_pairs[own].sum(0)
        weight = sums.profile[own].sum(0, dtype=np.float64)  # [head, cell]
        # a cell never sampled falls back on the mean weight of all sampled pairs; smoothing the
        # others towards it too would bias heads whose weights hardly vary
        even = weight.sum(1, keepdims=True) / max(1.0, counts.sum())
        sampled = np.maximum(counts, 1.0)
        profile = np.where(counts > 0, weight / sampled, even)
        chance[~own] = pairs[~own] @ profile.T
        judged = pairs[~own].sum(0, dtype=np.float64) / sampled  # [cell]
        through_profile[own] = sums.profile[own] @ judged - (
            (sums.profile_pairs[own] * judged) @ profile.T
        )
    theta = (mass - chance).sum(0) / total
    influence = len(half) * (mass - chance - theta * rows[:, None] - through_profile) / total
    return _excess(mass, chance, rows, influence, half)


def _excess(
    mass: np.ndarray, chance: np.ndarray, rows: np.ndarray, influence: np.ndarray, half: np.ndarray
) -> Excess:
    total = max(1, int(rows.sum()))
    parts = [(mass - chance)[part].sum(0) / max(1, int(rows[part].sum())) for part in (half, ~half)]
    return Excess(
        mass.sum(0) / total, chance.sum(0) / total, influence, np.stack(parts), int(rows.sum())
    )
