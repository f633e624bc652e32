"""A head's habits of position, and what they alone would put on a set of label pairs.

The profile is the mean weight of a head on a (query, key) pair, by things that say nothing about
content except whether tokens are new: whether the query's token occurred before, whether the key's
token stands elsewhere too among the keys that the query sees, how far into the document the query
stands, and how far back the key stands (the first position apart, since sinks rest there). Applied
to the pairs that a label matches, it gives the mass expected of a head that has such habits only.

The key's copies matter because they share weight: whatever draws a head to one copy draws it to all
of them, and the softmax gives each less than it would get alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from ..interp.probes import Prompts
from .label_vectors import Labels, previous_copy

_PAIRS_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Bins:
    """Cells of (sort of query, sort of key, query position, key offset) on which weights average.

    Between tokens a query's sort is whether its token occurred before, a key's whether another copy
    of its token can be seen; between words both are whether the word has several tokens.

    Query positions fall in octaves (0–7, 8–15, 16–31, …), offsets in half octaves
    (0, 1, 2, 3, 4–5, 6–7, 8–11, …), keys ahead of the query in cells of their own, and the
    document's first position in one cell whatever its offset.

    Args:
        n_pos: longest document, in tokens.
        causal: whether queries see earlier keys only.

    Example:
        >>> bins = Bins(64, causal=True)
        >>> seen, row, key = np.array([0, 0, 1]), np.array([9, 9, 9]), np.array([0, 8, 8])
        >>> cells = bins.cell(seen, np.array(0), row, key)
        >>> len(set(cells.tolist())), int(cells.max()) < bins.count
        (3, True)
    """

    n_pos: int
    causal: bool

    @cached_property
    def _edges(self) -> np.ndarray:
        edges = [0, 1, 2, 3]
        step = 4
        while step <= self.n_pos:
            edges += [step, step + step // 2]
            step *= 2
        return np.array(edges)

    @cached_property
    def _row_bins(self) -> int:
        return int(self._row_bin(np.array([max(0, self.n_pos - 1)]))[0]) + 1

    @property
    def _offset_bins(self) -> int:
        return 1 + len(self._edges) * (1 if self.causal else 2)

    @property
    def count(self) -> int:
        """Number of cells."""
        return 4 * self._row_bins * self._offset_bins

    def cell(
        self, query_sort: np.ndarray, key_sort: np.ndarray, row: np.ndarray, key: np.ndarray
    ) -> np.ndarray:
        """Cell of each pair; the arrays broadcast. `row` and `key` are document positions."""
        sort = 2 * np.asarray(key_sort, np.int64) + query_sort
        return (sort * self._row_bins + self._row_bin(row)) * self._offset_bins + self._offset(
            row, key
        )

    def _offset(self, row: np.ndarray, key: np.ndarray) -> np.ndarray:
        distance = row - key
        cell = np.searchsorted(self._edges, np.abs(distance), side="right")
        if not self.causal:
            cell = cell + len(self._edges) * (distance < 0)
        return np.where(key == 0, 0, cell)

    @staticmethod
    def _row_bin(row: np.ndarray) -> np.ndarray:
        return np.maximum(0, np.floor(np.log2(np.maximum(row, 1))).astype(np.int64) - 2)


def sample_rows(
    prompts: Prompts, seen: np.ndarray, n_rows: int, rngs: Sequence[np.random.Generator]
) -> np.ndarray:
    """Rows whose weights estimate the profile: half with a token seen before, half with a new one.

    Args:
        prompts: the documents.
        seen: whether each token occurred before in its document, [document, pos].
        n_rows: rows per document.
        rngs: a source of randomness per document.

    Returns:
        Columns, [document, n_rows], −1 where a document has too few rows of a sort.
    """
    real = prompts.position >= int(prompts.causal)
    chosen = np.full((len(prompts), n_rows), -1, np.int64)
    for document in range(len(prompts)):
        sorts = [np.flatnonzero(real[document] & (seen[document] == want)) for want in (1, 0)]
        first = min(len(sorts[0]), max(n_rows // 2, n_rows - len(sorts[1])))
        for columns, take, at in ((sorts[0], first, 0), (sorts[1], n_rows - first, first)):
            picked = _spread(columns, min(take, len(columns)), rngs[document])
            chosen[document, at : at + len(picked)] = picked
    return chosen


def _spread(columns: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """`n` of the columns, one at random from each of `n` equal stretches."""
    if n == 0:
        return columns[:0]
    edges = np.linspace(0, len(columns), n + 1).astype(np.int64)  # n ≤ len: no stretch is empty
    return columns[rng.integers(edges[:-1], edges[1:])]


def matching_pairs(
    labels: Labels, document: int, *, causal: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The (row, column) pairs of one document that the labels match and causality lets see.

    Yields:
        Arrays of rows and of columns, a few million pairs at a time.

    Example:
        >>> labels = Labels(np.array([[-1, 5, 5]]), np.array([[5, 7, 5]]))
        >>> [(r.tolist(), c.tolist()) for r, c in matching_pairs(labels, 0, causal=True)]
        [([1, 2, 2], [0, 0, 2])]
    """
    q, k = labels.q[document], labels.k[document]
    order = np.argsort(k, kind="stable")
    low, high = (np.searchsorted(k[order], q, side=side) for side in ("left", "right"))  # type: ignore[arg-type]
    counts = np.where(q >= 0, high - low, 0)
    ends = np.cumsum(counts)
    start = 0
    while start < len(q):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + _PAIRS_AT_ONCE, side="right")))
        n = counts[start:stop]
        rows = np.repeat(np.arange(start, stop), n)
        within = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
        columns = order[np.repeat(low[start:stop], n) + within]
        keep = np.ones(len(rows), bool) if not causal else columns <= rows
        if labels.strict:
            keep &= columns != rows
        yield rows[keep], columns[keep]
        start = stop


class Cells:
    """The cells of some documents' token pairs.

    Args:
        prompts: the documents.
        bins: what tells cells apart; that of a set may be wider than these documents need.
    """

    def __init__(self, prompts: Prompts, bins: Bins) -> None:
        self.bins, self._causal, self._place = bins, prompts.causal, prompts.position
        previous = previous_copy(prompts)
        self.seen = previous >= 0
        self._next = np.full(previous.shape, previous.shape[1])  # past the end: no later copy
        document, column = np.nonzero(self.seen)
        self._next[document, previous[document, column]] = column

    def of(self, document: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Cell of each pair of one document; the arrays broadcast."""
        seen, later, place = self.seen[document], self._next[document], self._place[document]
        last = rows if self._causal else len(later) - 1
        copied = seen[columns] | (later[columns] <= last)
        return self.bins.cell(seen[rows], copied, place[rows], place[columns])

    def count(self, labels: tuple[Labels, ...]) -> Float[np.ndarray, "document cell"]:
        """How many matched pairs fall in each cell; pairs of negative sign count as −1."""
        counts = np.zeros((len(self.seen), self.bins.count))
        for document, own in enumerate(counts):
            for pair in labels:
                for rows, columns in matching_pairs(pair, document, causal=self._causal):
                    cells = self.of(document, rows, columns)
                    own += pair.sign * np.bincount(cells, minlength=self.bins.count)
        return counts


def uniform_mass(
    labels: tuple[Labels, ...],
    prompts: Prompts,
    low: Int[np.ndarray, "document pos"],
    high: Int[np.ndarray, "document pos"],
) -> Float[np.ndarray, " document"]:
    """Mass on the matched pairs if every row spread its weight evenly over the keys it sees.

    Args:
        labels: the statistic's label pairs.
        prompts: the documents.
        low: first visible column of each row.
        high: end of the visible columns of each row (not included).
    """
    total = np.zeros(len(prompts))
    for document in range(len(prompts)):
        first, last = low[document], high[document]
        for pair in labels:
            for rows, columns in matching_pairs(pair, document, causal=False):
                visible = (columns >= first[rows]) & (columns < last[rows])
                width = (last - first)[rows[visible]]
                total[document] += pair.sign * float((1.0 / width).sum())
    return total
