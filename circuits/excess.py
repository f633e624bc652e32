"""Observed mass less the mass expected by chance, with the influence of every document on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from ..interp.errors import InputError
from .sums import Sums


@dataclass(frozen=True, eq=False)
class Excess:
    """One statistic for every head.

    Args:
        score: mean mass per scored row, [head].
        expected: mean mass expected by chance, [head].
        influence: influence of each document on score − expected, [document, head].
        by_half: excess in half A and in half B, [2, head].
        n: scored rows, [head].
    """

    score: Float[np.ndarray, " head"]
    expected: Float[np.ndarray, " head"]
    influence: Float[np.ndarray, "document head"]
    by_half: Float[np.ndarray, "2 head"]
    n: Int[np.ndarray, " head"]

    @property
    def excess(self) -> Float[np.ndarray, " head"]:
        """score − expected, [head]."""
        return self.score - self.expected


def excess(
    sums: Sums,
    column: int,
    null: str,
    half: Bool[np.ndarray, " document"],
    *,
    documents: Bool[np.ndarray, " document"] | None = None,
) -> Excess:
    """Excess of one statistic over its null, for every head.

    `uniform`: θ = Σ_d (mass_d − uniform_d) / Σ_d rows_d.

    `profile`: the profile π of one half of the documents gives the expected mass of the other,
    θ = Σ_d (mass_d − pairs_d · π_other(d)) / Σ_d rows_d. A document moves θ in two ways, through
    its own rows and through the profile that judges the other half; both are in the influence.

    Args:
        sums: what `score` left.
        column: index of the statistic.
        null: `uniform` or `profile`.
        half: marks half A.
        documents: only these documents count; None means all.

    Raises:
        InputError: the profile is asked for and no rows were sampled for it.
    """
    use = np.ones(len(sums.rows), bool) if documents is None else documents
    rows, mass = sums.rows[:, column] * use, sums.mass[:, :, column] * use[:, None]
    if null == "profile":
        return _over_profile(sums, mass, sums.pairs[:, column] * use[:, None], rows, half)
    chance = sums.uniform[:, sums.layer_of, column] * use[:, None]
    return _summarise(mass, chance, rows, half, np.zeros_like(mass))


def permuted_excess(
    sums: Sums, draw: int, slot: int, half: Bool[np.ndarray, " document"]
) -> Excess:
    """Excess over the profile of one draw of permuted labels."""
    mass, pairs = sums.null_mass[:, :, draw, slot], sums.null_pairs[:, draw, slot]
    return _over_profile(sums, mass, pairs, sums.null_rows[:, draw, slot], half)


def best_excess(
    every: Sequence[Excess], whole: Sequence[Excess], chosen: Int[np.ndarray, " head"]
) -> Excess:
    """For each head the excess of its chosen variant; the halves come from all documents."""
    heads = np.arange(len(chosen))
    return Excess(
        np.stack([e.score for e in every])[chosen, heads],
        np.stack([e.expected for e in every])[chosen, heads],
        np.stack([e.influence for e in every])[chosen, :, heads].T,
        np.stack([e.by_half for e in whole])[chosen, :, heads].T,
        np.stack([e.n for e in every])[chosen, heads],
    )


def _over_profile(
    sums: Sums, mass: np.ndarray, pairs: np.ndarray, rows: np.ndarray, half: np.ndarray
) -> Excess:
    if not sums.profile_pairs.any():
        raise InputError(
            "no rows were sampled to estimate the heads' habits of position; score with "
            "profile_rows > 0 before labelling a kind whose null is the profile."
        )
    chance, through_profile = np.empty_like(mass), np.empty_like(mass)
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
    return _summarise(mass, chance, rows, half, through_profile)


def _summarise(
    mass: np.ndarray,
    chance: np.ndarray,
    rows: np.ndarray,
    half: np.ndarray,
    through_profile: np.ndarray,
) -> Excess:
    total = max(1, int(rows.sum()))
    theta = (mass - chance).sum(0) / total
    influence = len(half) * (mass - chance - theta * rows[:, None] - through_profile) / total
    parts = [(mass - chance)[part].sum(0) / max(1, int(rows[part].sum())) for part in (half, ~half)]
    n = np.full(mass.shape[1], int(rows.sum()))
    return Excess(mass.sum(0) / total, chance.sum(0) / total, influence, np.stack(parts), n)
