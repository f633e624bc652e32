"""What a battery leaves: sums per document, from which every statistic follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..interp.errors import InputError
from ..interp.heads import HeadId

OFFSETS = tuple(range(-8, 9))
"""Offsets at which the rate of the largest weight is counted on the sampled rows."""

_PER_DOCUMENT = (
    "rows", "mass", "uniform", "pairs", "profile", "profile_pairs", "largest", "largest_rows",
    "null_rows", "null_mass", "null_pairs",
)  # fmt: skip


@dataclass(frozen=True)
class Statistic:
    """One column of the sums: a variant of a kind."""

    kind: str
    variant: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.variant}" if self.variant else self.kind


@dataclass(frozen=True, eq=False)
class Sums:
    """What a battery leaves: sums per document, from which every statistic follows.

    Nothing here depends on the model any more: the bootstrap resamples these sums.

    Args:
        prompts: name of the prompt set.
        heads: the heads, in layer order.
        statistics: the columns of `mass`.
        rows: scored rows, [document, statistic].
        mass: label-match mass summed over the scored rows, [document, head, statistic].
        uniform: the same for evenly spread weights, [document, layer, statistic].
        layer_of: index of each head's layer, [head].
        pairs: matched pairs per cell of the profile, [document, statistic, cell].
        profile: weight summed over sampled pairs, [document, head, cell].
        profile_pairs: sampled pairs, [document, cell].
        largest: sampled rows whose largest weight is at each of `OFFSETS`,
            [document, head, offset].
        largest_rows: sampled rows at which each offset exists, [document, offset].
        null_rows: `rows` for permuted labels, [document, draw, permuted statistic].
        null_mass: `mass` for permuted labels, [document, head, draw, permuted statistic].
        null_pairs: `pairs` for permuted labels, [document, draw, permuted statistic, cell].
        permuted: indices into `statistics` of those that were permuted.
    """

    prompts: str
    heads: tuple[HeadId, ...]
    statistics: tuple[Statistic, ...]
    rows: Int[np.ndarray, "document statistic"]
    mass: Float[np.ndarray, "document head statistic"]
    uniform: Float[np.ndarray, "document layer statistic"]
    layer_of: Int[np.ndarray, " head"]
    pairs: Float[np.ndarray, "document statistic cell"]
    profile: Float[np.ndarray, "document head cell"]
    profile_pairs: Float[np.ndarray, "document cell"]
    largest: Float[np.ndarray, "document head offset"]
    largest_rows: Float[np.ndarray, "document offset"]
    null_rows: Int[np.ndarray, "document draw permuted"]
    null_mass: Float[np.ndarray, "document head draw permuted"]
    null_pairs: Float[np.ndarray, "document draw permuted cell"]
    permuted: tuple[int, ...]

    def take(self, documents: Any) -> Sums:
        """The sums of some documents (a slice, index or boolean array)."""
        return replace(self, **{name: getattr(self, name)[documents] for name in _PER_DOCUMENT})

    @classmethod
    def join(cls, parts: Sequence[Sums]) -> Sums:
        """The sums of all documents of some runs of one battery, in that order."""
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _PER_DOCUMENT
        }
        return replace(parts[0], **joined)

    def index(self, kind: str, variant: str = "") -> int:
        """Column of a statistic.

        Raises:
            InputError: it was not scored on this set of prompts.
        """
        wanted = Statistic(kind, variant)
        if wanted not in self.statistics:
            raise InputError(
                f"{wanted} was not scored on the {self.prompts} prompts; scored: "
                f"{', '.join(map(str, self.statistics))}."
            )
        return self.statistics.index(wanted)

    def mean(self, kind: str, variant: str = "") -> Float[np.ndarray, " head"]:
        """Mean mass per scored row over all documents: the raw score of every head."""
        column = self.index(kind, variant)
        return self.mass[:, :, column].sum(0) / max(1, self.rows[:, column].sum())
