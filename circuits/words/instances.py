"""Every visible link of every kind, as flat lists of pairs of words, and what rules would guess."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from ...interp.errors import InputError
from ..sums import Statistic
from .kind import WordKind
from .prompts import WordPrompts

FARTHEST = 32
"""Fixed offsets up to this many words compete as baselines."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Linked words: each pair is a query word, one of its keys, and the column it counts in.

    Args:
        sequence: [pair].
        query: word of the sequence, [pair].
        key: word of the sequence, [pair].
        column: index of the statistic, [pair].
        n_columns: how many statistics there are.
    """

    sequence: Int[np.ndarray, " pair"]
    query: Int[np.ndarray, " pair"]
    key: Int[np.ndarray, " pair"]
    column: Int[np.ndarray, " pair"]
    n_columns: int

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int]], n_columns: int) -> Pairs:
        """From (sequence, query, key, column) rows."""
        table = np.array(rows, np.int64).reshape(-1, 4)
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3], n_columns)


@dataclass(frozen=True)
class Instance:
    """A query word and the words it is linked to, as far as they can be seen."""

    sequence: int
    query: int
    keys: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Instances:
    """The visible links of some kinds on some prompts.

    Args:
        prompts: the documents.
        kinds: the kinds, each of which has an instance.
        columns: statistics: each kind's own (variant `""`), and one per group of its queries.
        by_column: the instances of each statistic.
    """

    prompts: WordPrompts
    kinds: tuple[WordKind, ...]
    columns: tuple[Statistic, ...]
    by_column: tuple[tuple[Instance, ...], ...]

    @cached_property
    def pairs(self) -> Pairs:
        """All linked pairs."""
        rows = [
            (one.sequence, one.query, key, column)
            for column, instances in enumerate(self.by_column)
            for one in instances
            for key in one.keys
        ]
        return Pairs.of(rows, len(self.columns))

    @cached_property
    def rows(self) -> Int[np.ndarray, "unit statistic"]:
        """Instances of each unit."""
        counts = np.zeros((self.prompts.n_units, len(self.columns)), np.int64)
        for column, instances in enumerate(self.by_column):
            units = self.prompts.unit[[one.sequence for one in instances]]
            np.add.at(counts[:, column], units, 1)
        return counts

    @cached_property
    def key_rows(self) -> Int[np.ndarray, "unit statistic"]:
        """Distinct words that are linked to, of each unit."""
        counts = np.zeros((self.prompts.n_units, len(self.columns)), np.int64)
        for column, instances in enumerate(self.by_column):
            linked = {(one.sequence, key) for one in instances for key in one.keys}
            units = self.prompts.unit[[sequence for sequence, _ in linked]]
            np.add.at(counts[:, column], units, 1)
        return counts

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Fixed offsets, in words, that compete as baselines; the nearest first."""
        signs = (-1,) if self.prompts.causal else (-1, 1)
        return tuple(sign * size for size in range(1, FARTHEST + 1) for sign in signs)

    @cached_property
    def baselines(self) -> tuple[str, ...]:
        """Names of the rules: offsets, then the kinds' own guesses."""
        own = dict.fromkeys(name for kind in self.kinds for name in kind.guesses)
        return (*(f"{offset:+d}" for offset in self.offsets), *own)

    @cached_property
    def guesses(self) -> Float[np.ndarray, "unit statistic baseline"]:
        """How many instances each rule gets right."""
        right = np.zeros((self.prompts.n_units, len(self.columns), len(self.baselines)))
        for column, instances in enumerate(self.by_column):
            self.count_offsets(right[:, column], instances)
        place = {statistic: column for column, statistic in enumerate(self.columns)}
        for kind in self.kinds:
            own = [
                (place[s], self.by_column[place[s]]) for s in self.columns if s.kind == kind.name
            ]
            for name in kind.guesses:
                at = self.baselines.index(name)
                for column, instances in own:
                    self._count_guess(right[:, column, at], instances, kind, name)
        return right

    def count_offsets(
        self, right: Float[np.ndarray, "unit baseline"], instances: Sequence[Instance]
    ) -> None:
        """Add to `right` what each fixed offset gets right."""
        place = {offset: at for at, offset in enumerate(self.offsets)}
        for one in instances:
            unit = self.prompts.unit[one.sequence]
            for key in one.keys:
                at = place.get(key - one.query)
                if at is not None:
                    right[unit, at] += 1

    def _count_guess(
        self, right: np.ndarray, instances: Sequence[Instance], kind: WordKind, name: str
    ) -> None:
        known: dict[int, dict[int, int]] = {}
        for one in instances:
            if one.sequence not in known:
                document = self.prompts.documents[one.sequence]
                guessed = kind.guessed(name, document, causal=self.prompts.causal)
                known = {one.sequence: dict(guessed)}  # instances come by sequence
            if known[one.sequence].get(one.query) in one.keys:
                right[self.prompts.unit[one.sequence]] += 1


def find_instances(
    prompts: WordPrompts, kinds: Sequence[WordKind], *, empty: str = "refuse"
) -> Instances:
    """Find the visible links of some kinds.

    Args:
        prompts: the documents.
        kinds: the kinds.
        empty: `refuse` or `drop` kinds without a visible link.

    Raises:
        InputError: a kind without a visible link is to be refused, or none is left.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.circuits.words.prompts import word_prompts
        >>> from headatlas.circuits.words.syntax import syntactic_kind
        >>> from headatlas.interp.parsed import Parsed
        >>> parsed = Parsed("it fell", ((0, 2), (3, 7)), (0, 0), (1, -1), ("nsubj", "root"))
        >>> prompts = word_prompts(ha.load("tiny")[1], [parsed], prepend_bos=True)
        >>> found = find_instances(prompts, [syntactic_kind("nsubj", "to_dependent")])
        >>> found.by_column[0]
        (Instance(sequence=0, query=1, keys=(0,)),)
    """
    columns: list[Statistic] = []
    by_column: list[tuple[Instance, ...]] = []
    kept: list[WordKind] = []
    for kind in kinds:
        grouped = _of_kind(prompts, kind)
        if not grouped[""]:
            if empty == "refuse":
                sees = "; a decoder sees earlier words only" if prompts.causal else ""
                raise InputError(f"kind {kind.name}: these documents hold no visible link{sees}.")
            continue
        kept.append(kind)
        for variant, instances in grouped.items():
            columns.append(Statistic(kind.name, variant))
            by_column.append(tuple(instances))
    if not kept:
        raise InputError("these documents hold no visible link of any kind.")
    return Instances(prompts, tuple(kept), tuple(columns), tuple(by_column))


def _of_kind(prompts: WordPrompts, kind: WordKind) -> dict[str, list[Instance]]:
    """The instances of a kind, all (`""`) and by group of their queries."""
    found: dict[str, list[Instance]] = {"": []}
    for sequence, document in enumerate(prompts.documents):
        groups = kind.group_of(document)
        for query, keys in kind.linked(document):
            seen = tuple(key for key in keys if prompts.visible(sequence, query, key))
            if not seen:
                continue
            one = Instance(sequence, query, seen)
            found[""].append(one)
            if query in groups:
                found.setdefault(groups[query], []).append(one)
    return found


class Shuffled:
    """Links that nobody made: those of a kind, each moved to a random word of another document.

    An instance keeps the offsets of its keys and gets a query word of another unit from which such
    keys can be seen, so that neither a peculiar query nor a popular key keeps its link while
    distances stay as they were. All words of other units from which they can be seen are equally
    likely. (Within its own document a far link often has one place to go, its own, and would fall
    on true links more often than words at its distance do; and all links of a long document moved
    to one short one would be a single observation.) Where no other unit has such a word, it is one
    of its own.

    Args:
        instances: the true ones.
        columns: statistics to shuffle.
        draws: how many times.
        seed: seed of the draws.
    """

    def __init__(self, instances: Instances, columns: Sequence[int], draws: int, seed: int) -> None:
        self._instances, self._prompts = instances, instances.prompts
        self._columns, self.draws, self._seed = tuple(columns), draws, seed
        sequence, word = np.nonzero(self._prompts.usable)
        self._words = np.stack([sequence, word], 1)
        self._unit = self._prompts.unit[sequence]
        causal, usable = self._prompts.causal, self._prompts.usable
        self._seen = usable & self._prompts.candidate if causal else usable
        self._places: dict[int, np.ndarray] = {}

    def __iter__(self) -> Iterator[tuple[int, int, tuple[Instance, ...]]]:
        """Draw, slot among the columns, and the moved instances."""
        moved = {
            column: self._moved(self._instances.by_column[column], slot)
            for slot, column in enumerate(self._columns)
        }
        for draw in range(self.draws):
            for slot, column in enumerate(self._columns):
                yield draw, slot, tuple(one[draw] for one in moved[column])

    def _moved(self, instances: Sequence[Instance], slot: int) -> list[list[Instance]]:
        """Where each instance goes in each draw."""
        rng, found = np.random.default_rng((self._seed, 9, slot)), []
        for one in instances:
            offsets = tuple(key - one.query for key in one.keys)
            fitting = self._fitting(offsets)
            others = fitting[self._unit[fitting] != self._prompts.unit[one.sequence]]
            fitting = others if len(others) else fitting
            chosen = self._words[fitting[rng.integers(len(fitting), size=self.draws)]].tolist()
            found.append(
                [Instance(s, query, tuple(query + o for o in offsets)) for s, query in chosen]
            )
        return found

    def _fitting(self, offsets: tuple[int, ...]) -> Int[np.ndarray, " place"]:
        """Which of the words see usable words at all of these offsets."""
        first, *rest = offsets
        if first not in self._places:
            self._places[first] = np.flatnonzero(self._sees(np.arange(len(self._words)), first))
        found = self._places[first]
        for offset in rest:
            found = found[self._sees(found, offset)]
        return found

    def _sees(self, place: np.ndarray, offset: int) -> Bool[np.ndarray, " place"]:
        """Whether words see a usable word at this offset."""
        sequence, key = self._words[place, 0], self._words[place, 1] + offset
        inside = (key >= 0) & (key < self._seen.shape[1])
        return inside & self._seen[sequence, np.where(inside, key, 0)]
