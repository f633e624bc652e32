"""What scoring between words leaves: sums per document, from which every statistic follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from ...interp.heads import HeadId
from ..profile import Bins
from ..sums import Statistic, Sums
from .instances import Instances
from .kind import WordKind
from .prompts import SET, WordPrompts


@dataclass(frozen=True)
class WordBins:
    """Cells of (query of one or several tokens, key likewise, query position, offset), in words.

    As `Bins`, with the number of tokens in place of whether the query's token is new: a head that
    looks a fixed number of *tokens* back reaches the word before only from words of one token, and
    would seem to prefer such words.

    The first word has cells of its own, whatever the offset, where it stands on the first position
    of a decoder's sequence, on which heads rest.

    Args:
        n_words: words of the longest document.
        causal: whether queries see earlier words only.
        bos: whether a special token takes the first position.

    Example:
        >>> bins = WordBins(40, causal=True, bos=True)
        >>> yes, no = np.array([1]), np.array([0])
        >>> row, key = np.array([9]), np.array([8])
        >>> int(bins.cell(yes, no, row, key)[0]) == int(bins.cell(no, yes, row, key)[0])
        False
    """

    n_words: int
    causal: bool
    bos: bool

    @classmethod
    def of(cls, prompts: WordPrompts) -> WordBins:
        """The cells for some documents."""
        return cls(prompts.n_tokens.shape[1], prompts.causal, prompts.bos)

    @property
    def _shift(self) -> int:
        """Where the first word counts as standing; `Bins` sets place 0 apart."""
        return int(self.bos or not self.causal)

    @property
    def _one(self) -> Bins:
        return Bins(self.n_words + self._shift, self.causal)

    @property
    def count(self) -> int:
        """Number of cells."""
        return self._one.count

    def cell(
        self, long_query: np.ndarray, long_key: np.ndarray, query: np.ndarray, key: np.ndarray
    ) -> np.ndarray:
        """Cell of each pair; the arrays broadcast."""
        return self._one.cell(long_query, long_key, query + self._shift, key + self._shift)


@dataclass(frozen=True, eq=False)
class WordSums:
    """What scoring between words leaves, per unit of the bootstrap.

    Args:
        kinds: what was scored.
        mass: weight on the linked words over the instances, with the head's habits of word offset.
        hits: in `mass`: instances whose query's largest weight stands on a linked word (A).
        chosen: in `mass`: linked words at which the word that attends to them most (the column
            of Aᵀ) is linked to them; in `rows`: linked words.
        baselines: names of the rules that heads have to beat.
        guesses: instances that each rule gets right.
        null_guesses: the same for shuffled links.
        words: words of the documents.
        unaligned: words left out because no token is theirs alone.
        left_out: sentences left out because they are too long.
    """

    kinds: tuple[WordKind, ...]
    mass: Sums
    hits: Sums
    chosen: Sums
    baselines: tuple[str, ...]
    guesses: Float[np.ndarray, "document statistic baseline"]
    null_guesses: Float[np.ndarray, "document draw permuted baseline"]
    words: int
    unaligned: int
    left_out: int

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """The heads, in layer order."""
        return self.mass.heads

    def instances(self, kind: str, variant: str = "") -> int:
        """Visible instances of a kind, over all documents."""
        return int(self.mass.rows[:, self.mass.index(kind, variant)].sum())

    def expected_hits(
        self, half: Bool[np.ndarray, " document"]
    ) -> tuple[Float[np.ndarray, "document statistic"], Int[np.ndarray, "2 statistic"]]:
        """Hits of the best baseline, each half judged by the one that the other half chose.

        Returns:
            The hits, and the index of the baseline that half A and half B were judged by.
        """
        return _judged(self.guesses, half)


def best_baselines(guesses: np.ndarray) -> np.ndarray:
    """Index of the rule with the most hits, the first of equals; the last axis is the rules."""
    return guesses.sum(0).argmax(-1)


def _judged(guesses: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    expected = np.zeros(guesses.shape[:-1])
    judges = []
    for own in (half, ~half):
        best = best_baselines(guesses[~own])
        judges.append(best)
        expected[own] = np.take_along_axis(guesses[own], best[None, ..., None], -1)[..., 0]
    return expected, np.stack(judges)


def plain_sums(
    heads: Sequence[HeadId],
    statistics: Sequence[Statistic],
    rows: Int[np.ndarray, "document statistic"],
    *,
    draws: int = 0,
    permuted: tuple[int, ...] = (),
    cells: int = 0,
) -> Sums:
    """Empty sums for word-level statistics: no layer differs in what chance gives."""
    documents, stats, every = len(rows), len(statistics), len(heads)

    def zeros(*shape: int, dtype: type = np.float64) -> np.ndarray:
        return np.zeros((documents, *shape), dtype)

    return Sums(
        prompts=SET,
        heads=tuple(heads),
        statistics=tuple(statistics),
        rows=rows,
        mass=zeros(every, stats),
        uniform=zeros(1, stats),
        layer_of=np.zeros(every, np.int64),
        pairs=zeros(stats, cells, dtype=np.float32),
        profile=zeros(every, cells, dtype=np.float32),
        profile_pairs=zeros(cells),
        largest=zeros(every, 0),
        largest_rows=zeros(0),
        null_rows=zeros(draws, len(permuted), dtype=np.int64),
        null_mass=zeros(every, draws, len(permuted), dtype=np.float32),
        null_pairs=zeros(draws, len(permuted), cells, dtype=np.float32),
        permuted=permuted,
    )


def empty_sums(
    instances: Instances, heads: Sequence[HeadId], *, draws: int, permuted: tuple[int, ...]
) -> WordSums:
    """Sums without any attention yet, with what follows from the words alone."""
    prompts = instances.prompts
    shape = (prompts.n_units, draws, len(permuted), len(instances.baselines))
    options = {"draws": draws, "permuted": permuted}
    cells = WordBins.of(prompts).count
    return WordSums(
        kinds=instances.kinds,
        mass=plain_sums(heads, instances.columns, instances.rows, cells=cells, **options),
        hits=plain_sums(heads, instances.columns, instances.rows, **options),
        chosen=plain_sums(heads, instances.columns, instances.key_rows),
        baselines=instances.baselines,
        guesses=instances.guesses,
        null_guesses=np.zeros(shape),
        words=prompts.n_words,
        unaligned=prompts.unaligned,
        left_out=prompts.left_out,
    )


def hits_over_baseline(sums: WordSums, half: Bool[np.ndarray, " document"]) -> Sums:
    """The hits, with the best baseline's in the place of what evenly spread weights give."""
    expected, _ = sums.expected_hits(half)
    return replace(sums.hits, uniform=expected[:, None])


def shuffled_hits(sums: WordSums, draw: int, half: Bool[np.ndarray, " document"]) -> Sums:
    """The same for one draw of shuffled links."""
    expected, _ = _judged(sums.null_guesses[:, draw], half)
    permuted = list(sums.hits.permuted)
    return replace(
        sums.hits,
        statistics=tuple(sums.hits.statistics[i] for i in permuted),
        rows=sums.mass.null_rows[:, draw],
        mass=sums.hits.null_mass[:, :, draw].astype(np.float64),
        uniform=expected[:, None],
        pairs=sums.hits.pairs[:, permuted],
    )
