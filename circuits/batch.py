"""One batch of documents: its label vectors as tensors, and what each layer adds to its sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..interp.attach import AttentionCall
from ..interp.errors import InputError
from ..interp.forward import run_base
from ..interp.probes import Prompts
from ..interp.signals import Signal, run_signal
from ..interp.sites import Site
from ..kernels.api import Mask, Match, Weights
from .label_vectors import NO_KEY, NO_QUERY, Labels
from .profile import Cells, sample_rows, uniform_mass
from .scoring import Scoring
from .sums import OFFSETS, Sums

_SAMPLED, _PERMUTED = 3, 6  # purposes of a document's random numbers: neither moves the other


class Batch:
    """The sums of some documents, filled while the model runs on them.

    Args:
        scoring: what is scored.
        documents: which of its documents.
        device: where the model runs.
    """

    def __init__(self, scoring: Scoring, documents: slice, device: torch.device) -> None:
        self.scoring, self.device = scoring, device
        self.prompts = scoring.prompts.select(documents)
        self.ids = torch.from_numpy(self.prompts.ids).to(device)
        self.mask = torch.from_numpy(self.prompts.mask).to(device)
        self._sums = scoring.empty(len(self.prompts))
        self._taken: set[Site] = set()
        self._uniform: list[tuple[Mask, np.ndarray]] = []
        self._documents = documents
        self._cells = Cells(self.prompts, scoring.bins)
        self._labels = self._cut_labels(documents)
        plain, self._enters = self._plain_matches()
        null, self._null_starts = self._permuted_matches()
        self._matches = (*plain, *null)
        self._weights = self._sample() if scoring.sampled_rows else None

    def _cut_labels(self, documents: slice) -> list[tuple[Labels, ...]]:
        """The labels of the documents, in the columns that `Prompts.select` keeps."""
        cut = self.scoring.prompts.columns(documents)
        return [
            tuple(
                Labels(pair.q[documents, cut], pair.k[documents, cut], pair.strict, pair.sign)
                for pair in labels
            )
            for *_, labels in self.scoring.columns
        ]

    def _plain_matches(self) -> tuple[list[Match], np.ndarray]:
        """The matches of the true labels, and how each enters a statistic [match, statistic]."""
        sums, matches, enters = self._sums, [], []
        for index, labels in enumerate(self._labels):
            sums.rows[:, index] = (labels[0].q >= 0).sum(1)
            matches += [_match(pair, self.device) for pair in labels]
            enters += [pair.sign * np.eye(len(self._labels))[index] for pair in labels]
            if index in self.scoring.on_profile:
                sums.pairs[:, index] = self._cells.count(labels)
        return matches, np.array(enters)

    def _permuted_matches(self) -> tuple[list[Match], list[int]]:
        """The matches of permuted labels, and where each draw of a statistic starts among them."""
        scoring, matches, starts = self.scoring, [], []
        rngs = scoring.generators(self._documents, _PERMUTED)
        for draw in range(scoring.draws):
            for slot, index in enumerate(scoring.permuted):
                shuffled = permute_labels(self._labels[index], self.prompts, rngs)
                self._sums.null_rows[:, draw, slot] = self._sums.rows[:, index]
                self._sums.null_pairs[:, draw, slot] = self._cells.count(shuffled)
                starts.append(len(matches))
                matches += [_match(pair, self.device) for pair in shuffled]
        return matches, starts

    def _sample(self) -> Weights:
        """The rows whose weights are written out, and what their pairs are."""
        prompts, sums, n_cells = self.prompts, self._sums, self.scoring.bins.count
        rngs = self.scoring.generators(self._documents, _SAMPLED)
        rows = sample_rows(prompts, self._cells.seen, self.scoring.sampled_rows, rngs)
        place, taken = prompts.position, np.maximum(rows, 0)
        row_place = np.take_along_axis(place, taken, 1)[:, :, None]
        key_place = place[:, None, :]
        real = (rows >= 0)[:, :, None] & prompts.mask[:, None, :]
        visible = real & (key_place <= row_place) if prompts.causal else real
        offsets = key_place - row_place
        exists = visible[..., None] & (offsets[..., None] == np.array(OFFSETS))
        sums.largest_rows[:] = exists.any(2).sum(1)
        self._offset_of = torch.from_numpy(offsets - OFFSETS[0]).to(self.device)
        self._sampled = torch.from_numpy(rows >= 0).to(self.device)
        if self.scoring.on_profile:
            columns = np.arange(place.shape[1])
            every = [self._cells.of(d, own[:, None], columns) for d, own in enumerate(taken)]
            cell = np.where(visible, np.stack(every), n_cells)
            for document, cells in enumerate(cell.reshape(len(cell), -1)):
                counted = np.bincount(cells, minlength=n_cells + 1)
                sums.profile_pairs[document] = counted[:-1]
            self._cell = torch.from_numpy(cell).to(self.device)
        return Weights(rows=torch.from_numpy(rows).to(self.device), dtype=torch.float32)

    def run(self, model: Any) -> None:
        """Run the model on the documents, without its head."""
        if self.prompts.signal is None:
            run_base(model, self.ids, self.mask)
            return
        values = torch.from_numpy(self.prompts.signal).to(self.device, model.dtype)
        run_signal(model, Signal(model.main_input_name, values))

    def take(self, call: AttentionCall) -> None:
        """Add what one layer shows."""
        index, heads = self.scoring.place[call.site]
        self._taken.add(call.site)
        out = call.probe(self._matches, weights=self._weights)
        if out.mass is not None:
            mass = out.mass.sum(2, dtype=torch.float64).cpu().numpy()
            plain = len(self._enters)
            self._sums.mass[:, heads] = mass[..., :plain] @ self._enters
            if self._null_starts:
                null = np.add.reduceat(mass[..., plain:], self._null_starts, axis=-1)
                shape = self._sums.null_mass.shape[2:]
                self._sums.null_mass[:, heads] = null.reshape(*null.shape[:2], *shape)
        if self.scoring.on_uniform:
            self._sums.uniform[:, index] = self._evenly_spread(call)
        if out.weights is not None:
            self._add_rows(heads, out.weights)

    def _evenly_spread(self, call: AttentionCall) -> np.ndarray:
        """What evenly spread weights would give, [document, statistic]."""
        for mask, value in self._uniform:  # layers of one kind share their mask object
            if mask is call.mask:
                return value
        n_query, n_key = call.q.shape[2], call.k.shape[2]
        low, high = (
            x.cpu().numpy()
            for x in call.mask.intervals(len(self.ids), n_query, n_key, call.q.device)
        )
        value = np.zeros((len(self.prompts), len(self._labels)))
        for column in self.scoring.on_uniform:
            value[:, column] = uniform_mass(self._labels[column], self.prompts, low, high)
        self._uniform.append((call.mask, value))
        return value

    def _add_rows(self, heads: slice, weights: torch.Tensor) -> None:
        """Sampled rows: the profile's sums, and where the largest weight stands."""
        sums, n_cells = self._sums, self.scoring.bins.count
        for document in range(len(weights)):
            rows = weights[document]  # [head, row, key]
            largest = rows.argmax(-1).T  # [row, head]
            offset = self._offset_of[document].gather(1, largest)
            valid = (offset >= 0) & (offset < len(OFFSETS)) & self._sampled[document, :, None]
            hits = torch.nn.functional.one_hot(offset.clamp(0, len(OFFSETS) - 1), len(OFFSETS))
            sums.largest[document, heads] = (hits * valid[..., None]).sum(0).cpu().numpy()
            if self.scoring.on_profile:
                flat = rows.reshape(len(rows), -1).T.contiguous()  # [row · key, head]
                found = flat.new_zeros((n_cells + 1, len(rows)))
                found.index_add_(0, self._cell[document].flatten(), flat)
                sums.profile[document, heads] = found[:-1].T.cpu().numpy()

    def sums(self) -> Sums:
        """The sums of the documents, once every layer was taken.

        Raises:
            InputError: a layer was not taken, or showed attention that is not finite.
        """
        for site in self.scoring.sites:
            if site not in self._taken:
                raise InputError(
                    f"the attention layer {site.module} was not called in this forward; "
                    "its heads cannot be scored."
                )
        spoilt = ~np.isfinite(self._sums.mass).all((0, 2))
        if spoilt.any():
            raise InputError(
                f"the attention of {self.scoring.heads[int(spoilt.argmax())]} is not finite (NaN "
                f"or infinity) on set {self.prompts.name}; check the model's weights and its dtype."
            )
        return self._sums


def permute_labels(
    labels: tuple[Labels, ...], prompts: Prompts, rngs: Sequence[np.random.Generator]
) -> tuple[Labels, ...]:
    """The same labels, shuffled within each document: same rows scored, same tokens eligible.

    Both sides are shuffled, queries among the scored rows and keys among the real tokens after a
    BOS, so that neither a popular key nor a peculiar query keeps its label. The pairs of a union
    are shuffled alike; mass to be taken off belongs to places, not to labels, and is left out.
    """
    kept = [pair for pair in labels if pair.sign > 0]
    q, k = np.stack([pair.q for pair in kept]), np.stack([pair.k for pair in kept])
    eligible = prompts.position >= int(prompts.bos)
    for document, rng in enumerate(rngs):
        scored = np.flatnonzero(labels[0].q[document] >= 0)
        q[:, document, scored] = q[:, document, rng.permutation(scored)]
        keys = np.flatnonzero(eligible[document])
        k[:, document, keys] = k[:, document, rng.permutation(keys)]
    return tuple(Labels(q[i], k[i], pair.strict) for i, pair in enumerate(kept))


def _match(labels: Labels, device: torch.device) -> Match:
    q, k = (torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (labels.q, labels.k))
    return Match(q.clamp_min(NO_QUERY), torch.where(k < 0, NO_KEY, k), labels.strict)
