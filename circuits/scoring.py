"""What a battery scores on a set of prompts: its statistics, their labels, how chance is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..interp.heads import HeadId
from ..interp.probes import Prompts
from ..interp.sites import Site
from .kinds import Kind
from .label_vectors import Labels
from .profile import Bins
from .sums import OFFSETS, Statistic, Sums


@dataclass(frozen=True, eq=False)
class Scoring:
    """What a battery scores on a set of prompts; nothing here changes while it runs.

    Args:
        sites: the attention modules of the model.
        prompts: the documents.
        kinds: what to score.
        null_draws: how many times the labels of the content kinds are permuted.
        profile_rows: rows per document whose weights estimate the profile.
        seed: seed of the sampled rows and permutations.
    """

    sites: tuple[Site, ...]
    prompts: Prompts
    kinds: tuple[Kind, ...]
    null_draws: int
    profile_rows: int
    seed: int

    @cached_property
    def columns(self) -> tuple[tuple[Kind, Statistic, tuple[Labels, ...]], ...]:
        """Kind, name and labels of each statistic."""
        return tuple(
            (kind, Statistic(kind.name, variant), labels)
            for kind in self.kinds
            for variant, labels in kind.variants(self.prompts).items()
        )

    @cached_property
    def on_profile(self) -> tuple[int, ...]:
        """Statistics whose chance is what the head's habits of position give."""
        return self._with_null("profile")

    @cached_property
    def on_uniform(self) -> tuple[int, ...]:
        """Statistics whose chance is what evenly spread weights give."""
        return self._with_null("uniform")

    def _with_null(self, null: str) -> tuple[int, ...]:
        return tuple(i for i, (kind, *_) in enumerate(self.columns) if kind.null == null)

    @cached_property
    def permuted(self) -> tuple[int, ...]:
        """Statistics whose labels are permuted; companions share their kind's draw of chance."""
        plain = tuple(i for i in self.on_profile if not self.columns[i][1].variant)
        return plain if self.null_draws else ()

    @property
    def draws(self) -> int:
        """How many permutations of each permuted statistic are scored."""
        return self.null_draws if self.permuted else 0

    @property
    def sampled_rows(self) -> int:
        """Rows per document whose weights are written out."""
        needed = bool(self.on_profile) or any(kind.candidates for kind in self.kinds)
        return self.profile_rows if needed else 0

    @cached_property
    def bins(self) -> Bins:
        """Cells of the profile."""
        return Bins(int(self.prompts.mask.sum(1).max()), self.prompts.causal)

    @cached_property
    def heads(self) -> tuple[HeadId, ...]:
        """The heads of all sites, in order."""
        return tuple(head for site in self.sites for head in site.heads)

    @cached_property
    def place(self) -> dict[Site, tuple[int, slice]]:
        """Index of each site, and the slice of its heads."""
        ends = np.cumsum([0, *(site.n_heads for site in self.sites)])
        return {
            site: (index, slice(int(ends[index]), int(ends[index + 1])))
            for index, site in enumerate(self.sites)
        }

    def generators(self, documents: slice, purpose: int) -> Sequence[np.random.Generator]:
        """One source of randomness per document and purpose, whatever batch it falls in."""
        numbers = self.prompts.numbers
        chosen = range(len(self.prompts)) if numbers is None else numbers.tolist()
        return [np.random.default_rng((self.seed, purpose, n)) for n in chosen[documents]]

    def empty(self, documents: int) -> Sums:
        """Sums of that many documents, all zero."""
        heads, stats, permuted = len(self.heads), len(self.columns), len(self.permuted)
        cells = self.bins.count if self.on_profile else 0

        def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
            return np.zeros((documents, *shape), dtype)

        return Sums(
            prompts=self.prompts.name,
            heads=self.heads,
            statistics=tuple(statistic for _, statistic, _ in self.columns),
            rows=zeros(stats, dtype=np.int64),
            mass=zeros(heads, stats, dtype=np.float64),
            uniform=zeros(len(self.sites), stats, dtype=np.float64),
            layer_of=np.repeat(np.arange(len(self.sites)), [site.n_heads for site in self.sites]),
            pairs=zeros(stats, cells),
            profile=zeros(heads, cells),
            profile_pairs=zeros(cells),
            largest=zeros(heads, len(OFFSETS)),
            largest_rows=zeros(len(OFFSETS)),
            null_rows=zeros(self.draws, permuted, dtype=np.int64),
            null_mass=zeros(heads, self.draws, permuted, dtype=np.float64),
            null_pairs=zeros(self.draws, permuted, cells),
            permuted=self.permuted,
        )
