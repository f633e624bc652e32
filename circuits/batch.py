"""One batch of documents: its label vectors as tensors, and what each layer adds to the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..interp.attach import AttentionCall
from ..interp.probes import Prompts
from ..kernels.api import Match, Weights
from .label_vectors import NO_KEY, NO_QUERY, Labels, previous_copy
from .profile import count_cells, sample_rows, uniform_mass
from .sums import OFFSETS

if TYPE_CHECKING:
    from .score import Run


class Batch:
    """Labels of some documents as tensors, and what each layer adds to the run's sums."""

    def __init__(self, run: Run, documents: slice) -> None:
        self.run, self.documents = run, documents
        self.prompts = run.prompts.select(documents)
        self.labels = [_cut(labels, run.prompts, documents) for labels in run.labels]
        device = run.model.device
        self.ids = torch.from_numpy(self.prompts.ids).to(device)
        self.mask = torch.from_numpy(self.prompts.mask).to(device)
        self.seen = previous_copy(self.prompts) >= 0
        self._uniform: list[tuple[Any, np.ndarray]] = []
        matches, self.column, self.sign = [], [], []
        for index, labels in enumerate(self.labels):
            run.rows[documents, index] = (labels[0].q >= 0).sum(1)
            for pair in labels:
                matches.append(_match(pair, device))
                self.column.append(index)
                self.sign.append(pair.sign)
            if index in run.on_profile:
                run.pairs[documents, index] = count_cells(labels, self.prompts, run.bins, self.seen)
        self.n_plain = len(matches)
        self.matches = (*matches, *self._permuted_matches(device))
        self._sample(device)

    def _permuted_matches(self, device: torch.device) -> list[Match]:
        run, matches = self.run, []
        for draw in range(run.draws):
            for slot, index in enumerate(run.permuted):
                shuffled = permute_labels(self.labels[index][0], self.prompts, run.rng)
                run.null_pairs[self.documents, draw, slot] = count_cells(
                    (shuffled,), self.prompts, run.bins, self.seen
                )
                matches.append(_match(shuffled, device))
        return matches

    def _sample(self, device: torch.device) -> None:
        run, self.weights = self.run, None
        if not run.n_sampled:
            return
        rows = sample_rows(self.prompts, self.seen, run.n_sampled, run.rng)
        self.weights = Weights(rows=torch.from_numpy(rows).to(device), dtype=torch.float32)
        place, taken = self.prompts.position, np.maximum(rows, 0)
        row_place = np.take_along_axis(place, taken, 1)[:, :, None]
        key_place = place[:, None, :]
        real = (rows >= 0)[:, :, None] & self.prompts.mask[:, None, :]
        visible = real & (key_place <= row_place) if self.prompts.causal else real
        offsets = key_place - row_place
        exists = visible[..., None] & (offsets[..., None] == np.array(OFFSETS))
        run.largest_rows[self.documents] = exists.any(2).sum(1)
        self.offset_of = torch.from_numpy(offsets + 8).to(device)
        self.sampled = torch.from_numpy(rows >= 0).to(device)
        if not run.on_profile:
            return
        seen = np.take_along_axis(self.seen, taken, 1)[:, :, None]
        cell = np.where(visible, run.bins.cell(seen, row_place, key_place), run.bins.count)
        for document, cells in enumerate(cell.reshape(len(cell), -1)):
            counted = np.bincount(cells, minlength=run.bins.count + 1)[:-1]
            run.profile_pairs[self.documents.start + document] = counted
        self.cell = torch.from_numpy(cell).to(device)

    def take(self, index: int, call: AttentionCall) -> None:
        """Add what one layer shows."""
        run = self.run
        out = call.probe(self.matches, weights=self.weights)
        heads = slice(run.first[index], run.first[index + 1])
        if out.mass is not None:
            mass = out.mass.sum(2, dtype=torch.float64).cpu().numpy()
            for match in range(self.n_plain):
                run.mass[self.documents, heads, self.column[match]] += (
                    self.sign[match] * mass[:, :, match]
                )
            if run.draws:
                drawn = mass[:, :, self.n_plain :]
                shape = (*drawn.shape[:2], run.draws, len(run.permuted))
                run.null_mass[self.documents, heads] = drawn.reshape(shape)
        if run.on_uniform:
            self._add_uniform(index, call)
        if out.weights is not None:
            self._add_rows(heads, out.weights)

    def _add_uniform(self, index: int, call: AttentionCall) -> None:
        run = self.run
        for mask, value in self._uniform:  # layers of one kind share their mask object
            if mask is call.mask:
                run.uniform[self.documents, index] = value
                return
        n_query, n_key = call.q.shape[2], call.k.shape[2]
        low, high = (
            x.cpu().numpy()
            for x in call.mask.intervals(len(self.ids), n_query, n_key, call.q.device)
        )
        value = np.zeros((len(self.prompts), len(run.statistics)))
        for column in run.on_uniform:
            value[:, column] = uniform_mass(self.labels[column], self.prompts, low, high)
        self._uniform.append((call.mask, value))
        run.uniform[self.documents, index] = value

    def _add_rows(self, heads: slice, weights: torch.Tensor) -> None:
        """Sampled rows: the profile's sums, and where the largest weight stands."""
        run = self.run
        for document in range(len(weights)):
            target = self.documents.start + document
            rows = weights[document]  # [head, row, key]
            largest = rows.argmax(-1).T  # [row, head]
            offset = self.offset_of[document].gather(1, largest)
            valid = (offset >= 0) & (offset < len(OFFSETS)) & self.sampled[document, :, None]
            hits = torch.nn.functional.one_hot(offset.clamp(0, len(OFFSETS) - 1), len(OFFSETS))
            run.largest[target, heads] = (hits * valid[..., None]).sum(0).cpu().numpy()
            if run.on_profile:
                flat = rows.reshape(len(rows), -1).T.contiguous()  # [row · key, head]
                sums = flat.new_zeros((run.bins.count + 1, len(rows)))
                sums.index_add_(0, self.cell[document].flatten(), flat)
                run.profile[target, heads] = sums[:-1].T.cpu().numpy()


def permute_labels(labels: Labels, prompts: Prompts, rng: np.random.Generator) -> Labels:
    """The same labels, shuffled within each document: same rows scored, same tokens eligible.

    Both sides are shuffled, queries among the scored rows and keys among the real tokens after a
    BOS, so that neither a popular key nor a peculiar query keeps its label.
    """
    q, k = labels.q.copy(), labels.k.copy()
    eligible = prompts.position >= int(prompts.bos)
    for document in range(len(q)):
        scored = np.flatnonzero(q[document] >= 0)
        q[document, scored] = q[document, rng.permutation(scored)]
        keys = np.flatnonzero(eligible[document])
        k[document, keys] = k[document, rng.permutation(keys)]
    return Labels(q, k, labels.strict)


def _cut(labels: tuple[Labels, ...], prompts: Prompts, documents: slice) -> tuple[Labels, ...]:
    """The labels of some documents, cut to the columns that `Prompts.select` keeps."""
    used = np.flatnonzero(prompts.mask[documents].any(0))
    cut = slice(int(used[0]), int(used[-1]) + 1)
    return tuple(
        Labels(pair.q[documents, cut], pair.k[documents, cut], pair.strict, pair.sign)
        for pair in labels
    )


def _match(labels: Labels, device: torch.device) -> Match:
    q, k = (torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (labels.q, labels.k))
    return Match(q.clamp_min(NO_QUERY), torch.where(k < 0, NO_KEY, k), labels.strict)
