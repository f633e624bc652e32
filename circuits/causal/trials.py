"""Run a model with heads removed, many removals to a forward pass, and measure its behaviours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...interp.attach import AttentionCall, Edit, attach
from ...interp.capture import announce
from ...interp.errors import InputError
from ...interp.forward import run_base, run_whole
from ...interp.heads import HeadId
from ...interp.intervene import intervene
from ...interp.interventions import freeze
from ...interp.probes import Prompts
from ...interp.resume import States, find_blocks, keep_states, resumed
from ...interp.sites import Site
from .decoder import check_decoder, output_head, width
from .measures import MassMeasure, Measure, RowMeasure
from .readings import head_masses, row_means, rows_read
from .shortcuts import head_is_plain, probe_ids, resumes
from .stand_in import Removal, StandIns

Watch = Callable[[list[int], slice, AttentionCall], None]
"""Called with the places of the removals run side by side, their documents, and each call."""


@dataclass(frozen=True, eq=False)
class _Part:
    """A few documents that go through the model together."""

    documents: slice
    ids: Tensor
    mask: Tensor | None
    states: States | None


class Trials:
    """Documents on which a model is run with heads removed.

    The whole model runs once, and what enters each block and every head's z are kept. A removal
    in block l then runs from block l on; several removals go through the model side by side, the
    documents repeated. Logits are computed at the measured positions only. Both short cuts are
    tried first on two documents, against whole forward passes with a head removed in each layer;
    where a short cut is not exact to rounding it is not taken.

    Args:
        model: a transformers decoder with a language-model head.
        prompts: the documents.
        measures: what to measure.
        seed: of the draw of other documents for `resample`.
        batch_tokens: tokens per forward pass (at least one document).
        reference: another model, of the same vocabulary, that a divergence is measured from; None:
            the model itself, whole.

    Attributes:
        resumed: whether runs begin at the block of the removed head.
        chosen_rows: whether logits are computed at the measured positions only.
        base: mean of each measure per document in the whole model, [measure, document]; of a
            reference, where there is one, for measures of rows.

    Raises:
        InputError: no decoder with a language-model head, or documents without two tokens.
    """

    def __init__(
        self,
        model: Any,
        prompts: Prompts,
        measures: Sequence[Measure],
        *,
        seed: int = 0,
        batch_tokens: int = 2048,
        reference: Any = None,
    ) -> None:
        self.model, self.prompts, self.measures = model, prompts, tuple(measures)
        self._reference = reference
        self.sites = check_decoder(model)
        self.heads = tuple(head for site in self.sites for head in site.heads)
        self._site_of = {head: site for site in self.sites for head in site.heads}
        for measure in self.measures:
            if isinstance(measure, MassMeasure):
                self.check_heads(measure.heads)
        self._stand_ins, self._batch_tokens = StandIns(prompts, seed), batch_tokens
        self._blocks = find_blocks(model, self.sites)
        self._rows = [m for m in self.measures if isinstance(m, RowMeasure)]
        self._mass = [m for m in self.measures if isinstance(m, MassMeasure)]
        self._of_rows = [self.measures.index(m) for m in self._rows]
        with torch.no_grad():
            self._learn_padding()
            probe = probe_ids(prompts, next(model.parameters()).device)
            self.resumed = self._blocks is not None and resumes(
                model, self.sites, self._blocks, probe
            )
            self.chosen_rows = not self._rows or head_is_plain(model, probe)
            self._parts, self.base = self._run_clean()

    def check_heads(self, heads: Sequence[HeadId]) -> None:
        """Refuse heads that the model does not have."""
        for head in heads:
            if head not in self._site_of:
                raise InputError(f"the model has no head {head}; its last is {self.heads[-1]}.")

    @torch.no_grad()
    def run(
        self, removals: Sequence[Removal], *, watch: Watch | None = None, held: bool = False
    ) -> Float[np.ndarray, "removal measure document"]:
        """Mean of each measure per document with some heads removed; 0 where nothing is measured.

        Args:
            removals: what to remove, in each run; those that begin at one layer run together.
            watch: called with each attention call after the removed heads' layer, the places among
                `removals` of the copies that it holds, and the documents of each copy.
            held: whether all attention patterns are held at those of the whole model (Olsson
                2022), which are written out for as many documents as run together.
        """
        out = np.zeros((len(removals), len(self.measures), len(self.prompts)))
        order = sorted(range(len(removals)), key=lambda place: self._first(removals[place]))
        for part in self._parts:
            # patterns are held for the documents as they are, not for copies side by side
            step = 1 if held else max(1, self._batch_tokens // part.ids.numel())
            whole = self._whole(part)
            with self._hold(part) if held else nullcontext():
                for start in range(0, len(order), step):
                    places = order[start : start + step]
                    group = [removals[place] for place in places]
                    also = None if watch is None else partial(watch, places, part.documents)
                    out[places, :, part.documents] = self._run(part, group, also, whole)
        return out

    def _hold(self, part: _Part) -> Any:
        """A context in which all patterns are those of the whole model on a part."""
        given = {"input_ids": part.ids}
        if part.mask is not None:
            given["attention_mask"] = part.mask
        return intervene(self.model, freeze(self.model, tokens=given))

    def _first(self, removal: Removal) -> int:
        """Index of the first site where heads are removed."""
        return min((self.sites.index(self._site_of[head]) for head in removal.heads), default=0)

    def _run(
        self,
        part: _Part,
        group: Sequence[Removal],
        also: Callable[[AttentionCall], Any] | None,
        whole: Tensor | None,
    ) -> np.ndarray:
        """[removal, measure, document of the part]."""
        sites = {self._site_of[head] for removal in group for head in removal.heads}

        def replace(call: AttentionCall, z: Tensor) -> Tensor:
            return self._replace(call.site, z, part, group)

        edits = [Edit("z", replace, frozenset(sites))] if sites else []
        blocks, states = self._blocks, part.states
        resume = nullcontext()
        if self.resumed and blocks is not None and states is not None and sites:
            first = min(blocks.of[site] for site in sites)
            state = states.entering[first].repeat(len(group), 1, 1)
            resume = resumed(blocks, first, state, states)
        seen: dict[tuple[int, HeadId], np.ndarray] = {}
        observers = [self._watch(part, seen), *([] if also is None else [also])]
        with resume, attach(self.model, observers=observers, edits=edits):
            return self._measured(part, len(group), seen, whole)

    def _measured(
        self, part: _Part, copies: int, seen: dict[Any, np.ndarray], whole: Tensor | None = None
    ) -> np.ndarray:
        """Run the model on copies of a part and read off the measures."""
        states = self._forward(part, copies)
        rows = [one for one in self._rows if one.quantity != "kl" or whole is not None]
        out = np.zeros((copies, len(self.measures), len(part.ids)))
        for copy, own in enumerate(states.split(len(part.ids))):
            logits_at = partial(self._logits_at, own)
            found = row_means(rows, part.documents, part.ids, logits_at, whole)
            for measure, values in found.items():
                out[copy, self.measures.index(measure)] = values
        for measure in self._mass:
            total = sum(self._seen(seen, measure, head, part, copies) for head in measure.heads)
            scored = np.maximum(measure.n[part.documents], 1) * len(measure.heads)
            out[:, self.measures.index(measure)] = total / scored
        return out

    def _forward(self, part: _Part, copies: int) -> Tensor:
        """Last states, or logits, of copies of a part."""
        ids = part.ids.repeat(copies, 1)
        mask = None if part.mask is None else part.mask.repeat(copies, 1)
        if self.chosen_rows:
            return run_base(self.model, ids, mask).last_hidden_state
        return run_whole(self.model, ids, mask).logits

    def _whole(self, part: _Part) -> Tensor | None:
        """Log-probabilities of the reference at the measured rows, where a divergence is read.

        Those of the model itself are computed again, from its last block on where that is exact:
        for all documents together they would take too much memory.
        """
        if not any(measure.quantity == "kl" for measure in self._rows):
            return None
        _, document, pos = rows_read(self._rows, part.documents, part.ids)
        if self._reference is not None:
            device = next(self._reference.parameters()).device
            mask = None if part.mask is None else part.mask.to(device)
            logits = run_whole(self._reference, part.ids.to(device), mask).logits.to(pos.device)
            logits = logits[document, pos]
        else:
            resume, blocks, states = nullcontext(), self._blocks, part.states
            if self.resumed and blocks is not None and states is not None:
                last = len(blocks.modules) - 1
                resume = resumed(blocks, last, states.entering[last], states)
            with resume, attach(self.model):
                logits = self._logits_at(self._forward(part, 1), document, pos)
        return logits.float().log_softmax(1)

    def _logits_at(self, states: Tensor, document: Tensor, pos: Tensor) -> Tensor:
        chosen = states[document, pos]
        return output_head(self.model)(chosen) if self.chosen_rows else chosen

    def _replace(self, site: Site, z: Tensor, part: _Part, group: Sequence[Removal]) -> Tensor:
        for copy, own in zip(group, z.split(len(part.ids)), strict=True):
            heads = [head.head for head in copy.heads if self._site_of[head] == site]
            if heads:
                own[:, heads] = self._stand_ins.at(copy.ablation, site, heads, part.documents)
        return z

    def _watch(self, part: _Part, seen: dict[tuple[int, HeadId], np.ndarray]) -> Any:
        """An observer that sums the label mass of the heads of mass measures, per sequence."""

        def observe(call: AttentionCall) -> None:
            for index, measure in enumerate(self._mass):
                heads = [head for head in measure.heads if self._site_of[head] == call.site]
                if heads:
                    found = head_masses(measure, call, heads, part.documents, len(part.ids))
                    seen.update({(index, head): mass for head, mass in found.items()})

        return observe

    def _seen(
        self,
        seen: dict[Any, np.ndarray],
        measure: MassMeasure,
        head: HeadId,
        part: _Part,
        copies: int,
    ) -> np.ndarray:
        """A head's mass, [copy, document]: that of the whole model where its block did not run."""
        key = self._mass.index(measure), head
        if key in seen:
            return seen[key]
        return np.tile(self._clean_mass[key][part.documents], (copies, 1))

    def _run_clean(self) -> tuple[list[_Part], np.ndarray]:
        """The whole model on all documents: states, z, and the measures."""
        count, length = self.prompts.ids.shape
        weight = next(self.model.parameters())
        size = sum(site.n_heads * site.d_value + width(self.model) for site in self.sites)
        announce(count * length * size * weight.element_size(), "keeping states and z of a run")
        step = max(1, self._batch_tokens // length)
        ids = torch.from_numpy(self.prompts.ids).to(weight.device)
        padded = not bool(self.prompts.mask.all())
        mask = torch.from_numpy(self.prompts.mask).to(weight.device) if padded else None
        z: dict[Site, list[Tensor]] = {site: [] for site in self.sites}
        self._clean_mass: dict[tuple[int, HeadId], np.ndarray] = {}
        parts, base = [], np.zeros((len(self.measures), count))
        for start in range(0, count, step):
            documents = slice(start, min(start + step, count))
            part = _Part(documents, ids[documents], None if mask is None else mask[documents], None)
            seen: dict[tuple[int, HeadId], np.ndarray] = {}
            observers = [lambda call: z[call.site].append(call.z.clone()), self._watch(part, seen)]
            blocks = self._blocks if self.resumed else None
            keep = nullcontext() if blocks is None else keep_states(blocks)
            with keep as states, attach(self.model, observers=observers):
                base[:, documents] = self._measured(part, 1, seen)[0]
            if self._reference is not None:
                base[self._of_rows, documents] = self._base_of_reference(part)
            for key, mass in seen.items():
                self._clean_mass.setdefault(key, np.zeros(count))[documents] = mass[0]
            parts.append(_Part(part.documents, part.ids, part.mask, states))
        self._stand_ins.z.update({site: torch.cat(own) for site, own in z.items()})
        if not np.isfinite(base).all():
            raise InputError("the model's outputs are not finite on these documents.")
        return parts, base

    def _base_of_reference(self, part: _Part) -> np.ndarray:
        """The row measures of another model on a part, [measure, document]."""
        whole = self._whole(part)
        if whole is None:
            raise InputError("a reference is what a divergence is measured from; measure one.")
        found = row_means(self._rows, part.documents, part.ids, lambda *_: whole, whole)
        return np.stack([found[measure] for measure in self._rows])

    def _learn_padding(self) -> None:
        """Run one left-padded document: how the model takes those is tried once, in whole runs."""
        document = int(self.prompts.start.argmax())
        if self.prompts.start[document]:
            device = next(self.model.parameters()).device
            own = slice(document, document + 1)
            ids, mask = self.prompts.ids[own], self.prompts.mask[own]
            run_base(
                self.model, torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)
            )
