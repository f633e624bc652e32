"""One batch of sequences: the weights between their words, and what each layer adds to the sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...interp.attention_call import AttentionCall
from ...kernels.api import Weights
from .instances import Pairs
from .prompts import WordPrompts
from .sums import WordBins

_WEIGHTS_AT_ONCE = 8_000_000  # attention weights written out for one layer at a time: 32 MB


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Some words of every sequence as queries, and the rows of the pattern that they take."""

    start: int
    stop: int
    rows: Int[Tensor, "sequence row"]
    word: Int[Tensor, "sequence row"]  # counted from `start`; past the end for unused rows
    share: Float[Tensor, "sequence row"]


@dataclass(frozen=True, eq=False)
class _Linked:
    """Pairs of the batch as tensors, ordered by query, and where each enters the sums."""

    sequence: Int[Tensor, " pair"]
    query: Int[Tensor, " pair"]
    key: Int[Tensor, " pair"]
    slot: Int[Tensor, " pair"]
    n_slots: int

    def between(self, start: int, stop: int) -> slice:
        """The pairs whose query is one of these words."""
        edges = torch.tensor([start, stop], device=self.query.device)
        low, high = torch.searchsorted(self.query, edges).tolist()
        return slice(low, high)


@dataclass(frozen=True, eq=False)
class Found:
    """What one layer adds, for its heads; slots are units × columns."""

    mass: Float[Tensor, "slot head"]
    hits: Float[Tensor, "slot head"]
    chosen: Float[Tensor, "slot head"]
    null_mass: Float[Tensor, "null_slot head"]
    null_hits: Float[Tensor, "null_slot head"]
    profile: Float[Tensor, "cell_slot head"]


class WordBatch:
    """The words of some sequences, ready to be read off attention calls.

    Args:
        prompts: the documents.
        chosen: numbers of the sequences of this batch.
        pairs: the links of all sequences.
        null_pairs: the shuffled links of all sequences.
        bins: cells of the profile.
        n_heads: heads of the widest layer.
        device: where the model runs.
    """

    def __init__(
        self,
        prompts: WordPrompts,
        chosen: Int[np.ndarray, " sequence"],
        pairs: tuple[Pairs, Pairs],
        bins: WordBins,
        *,
        n_heads: int,
        device: torch.device,
    ) -> None:
        self._device, self.causal, self._bins = device, prompts.causal, bins
        columns = prompts.mask[chosen].any(0)
        present = np.flatnonzero((prompts.n_tokens[chosen] > 0).any(axis=0))
        self._n_words = int(present.max(initial=0)) + 1
        words = slice(0, self._n_words)
        self.ids = self._tensor(prompts.ids[chosen][:, columns])
        self.mask = self._tensor(prompts.mask[chosen][:, columns])
        self._n_tokens = prompts.n_tokens[chosen][:, words]
        self._word_of = prompts.word_of[chosen][:, columns]
        self.units, unit = np.unique(prompts.unit[chosen], return_inverse=True)
        self._key_word = self._tensor(np.where(self._word_of < 0, self._n_words, self._word_of))
        self._first = self.mask.int().argmax(1)[:, None]
        allowed = self._seen(prompts.candidate[chosen][:, words])
        self._allowed = self._tensor(allowed)
        cell = self._cells(unit)
        self.profile_pairs = np.bincount(cell.ravel(), minlength=len(self.units) * bins.count + 1)
        self._cell = self._tensor(cell)
        place = np.full(len(prompts), -1)
        place[chosen] = np.arange(len(chosen))
        self._pairs, self._null = (self._linked(p, place, unit) for p in pairs)
        self._chunks = self._cut(n_heads)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def _seen(self, keys: np.ndarray) -> np.ndarray:
        """Which words may be looked at from which, [sequence, query, key]."""
        word = np.arange(self._n_words)
        before = word[:, None] > word if self.causal else word[:, None] != word
        return (self._n_tokens > 0)[:, :, None] & keys[:, None, :] & before

    def _cells(self, unit: np.ndarray) -> np.ndarray:
        """Slot of each pair of words in the profile, one past the last for unseen pairs."""
        word, several = np.arange(self._n_words), (self._n_tokens > 1).astype(np.int64)
        cell = self._bins.cell(
            several[:, :, None], several[:, None, :], word[:, None], word[None, :]
        )
        slot = unit[:, None, None] * self._bins.count + cell
        return np.where(self._seen(self._n_tokens > 0), slot, len(self.units) * self._bins.count)

    def _linked(self, pairs: Pairs, place: np.ndarray, unit: np.ndarray) -> _Linked:
        """The pairs of this batch; `place` is each sequence's row in it, or −1."""
        own = np.flatnonzero(place[pairs.sequence] >= 0)
        own = own[np.argsort(pairs.query[own], kind="stable")]
        row = place[pairs.sequence[own]]
        slot = unit[row] * pairs.n_columns + pairs.column[own]
        row, query, key, slot = map(self._tensor, (row, pairs.query[own], pairs.key[own], slot))
        return _Linked(row, query, key, slot, len(self.units) * pairs.n_columns)

    def _cut(self, n_heads: int) -> list[_Chunk]:
        """Words to read at once, so that few weights are held."""
        rows_per_word = 1 if self.causal else int(self._n_tokens.max())
        per_word = self.ids.numel() * n_heads * rows_per_word
        step = max(1, _WEIGHTS_AT_ONCE // per_word)
        starts = range(0, self._n_words, step)
        return [self._chunk(start, min(start + step, self._n_words)) for start in starts]

    def _chunk(self, start: int, stop: int) -> _Chunk:
        """In a decoder each word's last token, in an encoder all of its tokens, equally."""
        n = stop - start
        listed = []
        for words in self._word_of:
            column = np.flatnonzero((words >= start) & (words < stop))
            if self.causal:
                column = column[_is_last(words[column])]
            listed.append(column)
        rows = np.full((len(listed), max(1, *map(len, listed))), -1, np.int64)
        word = np.full(rows.shape, n, np.int64)
        share = np.zeros(rows.shape, np.float32)
        for at, column in enumerate(listed):
            own = self._word_of[at, column]
            rows[at, : len(column)], word[at, : len(column)] = column, own - start
            share[at, : len(column)] = 1.0 if self.causal else 1 / self._n_tokens[at, own]
        return _Chunk(start, stop, self._tensor(rows), self._tensor(word), self._tensor(share))

    def read(self, call: AttentionCall) -> Found:
        """What one layer adds."""
        heads, device = call.q.shape[1], self._device
        sums = {
            "mass": torch.zeros(self._pairs.n_slots, heads, device=device, dtype=torch.float64),
            "hits": torch.zeros(self._pairs.n_slots, heads, device=device),
            "null_mass": torch.zeros(self._null.n_slots, heads, device=device),
            "null_hits": torch.zeros(self._null.n_slots, heads, device=device),
            "profile": torch.zeros(len(self.units) * self._bins.count + 1, heads, device=device),
        }
        shape = (len(self.ids), heads, self._n_words)
        most, by = torch.zeros(shape, device=device), torch.full(shape, -1, device=device)
        for chunk in self._chunks:
            between, choosable = self._between(call, chunk)
            self._add(sums, chunk, between, choosable)
            top, who = choosable.max(2)  # of these queries, the one that looks at each key most
            above = top > most
            most, by = torch.where(above, top, most), torch.where(above, who + chunk.start, by)
        return Found(**sums, chosen=self._count_chosen(by))

    def _between(
        self, call: AttentionCall, chunk: _Chunk
    ) -> tuple[Float[Tensor, "sequence head query key"], Float[Tensor, "sequence head query key"]]:
        """Weights between words, and the same with −1 for words that may not be chosen."""
        weights = _rows(call, chunk.rows)
        batch, heads, n_rows, _ = weights.shape
        index = self._key_word[:, None, None, :].expand_as(weights)
        words = weights.new_zeros(batch, heads, n_rows, self._n_words + 1)
        words.scatter_add_(3, index, weights)
        chosen = words
        if self.causal:  # the first position is no part of a word that may be chosen
            first = self._first[:, None, None].expand(batch, heads, n_rows, 1)
            chosen = words.scatter_add(3, index.gather(3, first), -weights.gather(3, first))
        allowed = self._allowed[:, None, chunk.start : chunk.stop]
        words, chosen = (self._by_query(x[..., :-1], chunk) for x in (words, chosen))
        return words, chosen.clamp_min(0).masked_fill(~allowed, -1.0)

    @staticmethod
    def _by_query(words: Tensor, chunk: _Chunk) -> Tensor:
        """The mean over the rows of each query word."""
        batch, heads, _, n_keys = words.shape
        index = chunk.word[:, None, :, None].expand_as(words)
        found = words.new_zeros(batch, heads, chunk.stop - chunk.start + 1, n_keys)
        return found.scatter_add_(2, index, words * chunk.share[:, None, :, None])[:, :, :-1]

    def _add(
        self, sums: dict[str, Tensor], chunk: _Chunk, between: Tensor, choosable: Tensor
    ) -> None:
        best, choice = choosable.max(3)
        choice = torch.where(best > 0, choice, -1)
        for prefix, linked in (("", self._pairs), ("null_", self._null)):
            own = linked.between(chunk.start, chunk.stop)
            row, query, key = linked.sequence[own], linked.query[own] - chunk.start, linked.key[own]
            mass = between[row, :, query, key]
            hits = choice[row, :, query] == key[:, None]
            for name, values in (("mass", mass), ("hits", hits)):
                total = sums[prefix + name]
                total.index_add_(0, linked.slot[own], values.to(total.dtype))
        cell = self._cell[:, chunk.start : chunk.stop].reshape(-1)
        flat = between.permute(0, 2, 3, 1).reshape(len(cell), -1)
        sums["profile"].index_add_(0, cell, flat)

    def _count_chosen(self, by: Tensor) -> Tensor:
        """Linked words whose most attentive word is linked to them."""
        linked = self._pairs
        hits = by[linked.sequence, :, linked.key] == linked.query[:, None]
        return hits.new_zeros(linked.n_slots, by.shape[1], dtype=torch.float32).index_add_(
            0, linked.slot, hits.float()
        )


def _is_last(words: np.ndarray) -> np.ndarray:
    """Whether no later token is of the same word."""
    last = np.zeros(len(words), bool)
    _, back = np.unique(words[::-1], return_index=True)
    last[len(words) - 1 - back] = True
    return last


def _rows(
    call: AttentionCall, rows: Int[Tensor, "sequence row"]
) -> Float[Tensor, "sequence head row key"]:
    """Rows of the pattern, 0 for row −1; of the edited pattern where there is one."""
    if not call.edited:
        weights = call.probe(weights=Weights(rows=rows, dtype=torch.float32)).weights
        if weights is None:
            raise RuntimeError("the probe returned no weights though some were asked for.")
        return weights
    pattern = call.pattern.detach()
    index = rows.clamp_min(0)[:, None, :, None].expand(-1, pattern.shape[1], -1, pattern.shape[3])
    return pattern.gather(2, index).float() * (rows >= 0)[:, None, :, None]
