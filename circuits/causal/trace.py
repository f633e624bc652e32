"""Measure the induction circuit link by link: `trace_induction`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...interp.attach import AttentionCall
from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.probes import Prompts
from ...interp.sites import Site, unbridged
from ...kernels.api import Match, attention_probe
from ..atlas import HeadAtlas
from ..behaviour import copied_next
from ..classify import classify
from ..kinds import KINDS
from ..label_vectors import Labels
from ..same_weights import check_weights
from .arguments import mass_margin, one_ablation
from .chain import InductionTrace
from .decoder import check_decoder
from .documents import DOCUMENTS, SEQ_LEN, documents
from .measures import MassMeasure, RowMeasure
from .readings import match_of
from .stand_in import Removal
from .sweep import Progress
from .trace_rows import (
    COLUMNS,
    PATHS,
    TRACED,
    Link,
    best_chain,
    bounded_rows,
    composition_rows,
    feeds,
    pattern_rows,
    split_roles,
    verdicts,
)
from .trials import Trials


def trace_induction(
    model: Any,
    tokenizer: Any = None,
    *,
    atlas: HeadAtlas | None = None,
    ablation: str = "mean",
    margin: float = 0.05,
    prompts: int = DOCUMENTS,
    seq_len: int = SEQ_LEN,
    prepend_bos: bool | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> InductionTrace:
    """Follow the induction circuit of a model from head to head, and measure each link.

    On repeated random tokens, for every head labelled `previous_token` and every later head
    labelled `induction`:

    1. the weight the first puts on the previous token;
    2. the K-composition of their weights;
    3. how far the second's prefix-matching mass falls when the first is removed, in all, and when
       only its keys (or only its queries) come from the run without it:
       Σ_j softmax(q k′ᵀ)[i, j] · [match(i, j)] with k′ from that run and q from the whole model;

    for every induction head its mass; and for both sorts how far the copied token's logit falls and
    the loss at the second copy rises when the head is removed, the latter also with all attention
    patterns held: what a previous-token head does through values and MLPs. Previous-token heads
    behind which no induction head stands can feed none: they are named (`untested`) and left alone.

    A previous-token head is *pattern + causal* if, through the keys of some induction head, the
    whole interval of the fall lies above `margin`; an induction head if that of the rise of the
    loss lies above 0. Else they are *pattern only*. Intervals hold for all links at once (bootstrap
    over documents). `causal_effects` asks more of a head: that it also stands out among all heads.

    Args:
        model: a transformers decoder with a language-model head.
        tokenizer: its tokenizer, which tells ordinary tokens from special ones.
        atlas: labels that exist already; None: the two kinds are scored first.
        ablation: `zero`, `mean` or `resample`.
        margin: attention mass.
        prompts: documents, at least 16; they give no label.
        seq_len: tokens per document.
        prepend_bos: True, False, or None for the tokenizer's habit.
        seed: of everything random.
        progress: called with (stage, done, total).

    Raises:
        InputError: an encoder, an atlas of another model or without the two kinds, or settings that
            do not fit.

    Example:
        >>> import headatlas as ha
        >>> found = trace_induction(*ha.load("tiny"))
        >>> found.chain
        (L1H1, L2H7)
        >>> found.evidence("L1H1")
        'pattern + causal'

    Reference:
        Elhage 2021 (K-composition); Olsson 2022 (prefix matching, pattern-preserving ablation).
    """
    model = unbridged(model)
    ablation, margin = one_ablation(ablation), mass_margin(margin)
    sites = check_decoder(model)
    atlas = _labels(model, tokenizer, atlas, prepend_bos, seed, progress)
    if set(atlas) != {head for site in sites for head in site.heads}:
        raise InputError("the atlas is of a model with other heads.")
    check_weights(model, atlas.model)
    roles, untested = split_roles(atlas)
    own = documents(
        model, tokenizer, prompts=prompts, seq_len=seq_len, prepend_bos=prepend_bos, seed=seed
    )
    settings = {
        "ablation": ablation, "margin": margin, "prompts": prompts, "seq_len": seq_len,
        "seed": seed,
    }  # fmt: skip
    links, caveats = _Tracer(model, own, roles, ablation, seed, progress).links(), []
    fixed = pattern_rows(atlas, roles["previous_token"])
    scores, caveat = composition_rows(model, roles, progress)
    caveats += [caveat] if caveat else []
    rows = pd.DataFrame([*fixed, *scores, *bounded_rows(links, margin, seed)], columns=COLUMNS)
    rows = rows.sort_values(["site", "layer", "head"], kind="stable", ignore_index=True)
    return InductionTrace(
        rows, verdicts(rows, roles, atlas), best_chain(rows), tuple(caveats), settings, untested
    )


class _Tracer:
    """Runs that measure the links, on one set of documents."""

    def __init__(
        self,
        model: Any,
        prompts: Prompts,
        roles: Mapping[str, tuple[HeadId, ...]],
        ablation: str,
        seed: int,
        progress: Progress | None,
    ) -> None:
        self._model, self._prompts, self._ablation = model, prompts, ablation
        self._first, self._last = roles["previous_token"], roles["induction"]
        self._removed = tuple(sorted({*self._first, *self._last}))
        self._seed, self._progress = seed, progress
        copied = copied_next(prompts)
        if not copied.any():
            raise InputError("no token is copied in these documents. Lengthen them (seq_len).")
        self._loss = RowMeasure("second_copy_loss", copied)
        self._labels = KINDS["induction"].variants(prompts)[""]
        self._mass = [MassMeasure(str(head), (head,), self._labels) for head in self._last]
        logit = RowMeasure("copied_logit", copied, "logit")
        self._trials = Trials(model, prompts, [self._loss, logit, *self._mass], seed=seed)
        self._clean: dict[Site, tuple[Tensor, Tensor]] = {}
        self._paths: dict[tuple[int, HeadId, str], np.ndarray] = {}

    def links(self) -> list[Link]:
        """Everything that documents give, per document."""
        trials = self._trials
        if not self._removed:
            return []
        removals = [Removal(self._ablation, (head,)) for head in self._removed]
        if self._last:
            trials.run([Removal(self._ablation, ())], watch=self._keep)
        found = np.zeros((len(removals), len(trials.measures), len(self._prompts)))
        for place, removal in enumerate(removals):
            watch = None if not self._last else self._paths_of(place)
            found[place] = trials.run([removal], watch=watch)[0]
            if self._progress is not None:
                self._progress("trace links", place + 1, len(removals))
        frozen = self._frozen(removals)
        rows = self._loss.n / self._loss.n.sum()
        links = []
        for place, head in enumerate(self._removed):
            for index, name in enumerate(("second_copy_loss", "copied_logit")):
                harm = (found[place, index] - trials.base[index]) * trials.measures[index].harm
                links.append(Link(head, name, "", harm, rows))
            links.append(Link(head, "second_copy_loss_frozen", "", frozen[place], rows))
        return links + self._mass_links(found)

    def _mass_links(self, found: np.ndarray) -> list[Link]:
        """The induction heads' mass, and its fall by previous-token head and path."""
        links = []
        for place, measure in enumerate(self._mass, start=2):
            target, base = self._last[place - 2], self._trials.base[place]
            weights = measure.n / measure.n.sum()
            links.append(Link(target, "induction_mass", "", base, weights))
            for index, head in enumerate(self._removed):
                if head not in self._first or not feeds(head, target):
                    continue
                links.append(Link(head, "mass", str(target), base - found[index, place], weights))
                for path in PATHS[1:]:
                    fall = base - self._paths[index, target, path] / np.maximum(measure.n, 1)
                    links.append(Link(head, path, str(target), fall, weights))
        return links

    def _targets(self, site: Site) -> list[HeadId]:
        return [head for head in self._last if head in site.heads]

    def _keep(self, _places: list[int], _documents: slice, call: AttentionCall) -> None:
        """Keep queries and keys of the whole model where induction heads are."""
        if self._targets(call.site):
            call.site.check_queries("the path through queries and keys alone")
            q, k = self._clean.get(call.site, (call.q[:0], call.k[:0]))
            self._clean[call.site] = torch.cat([q, call.q]), torch.cat([k, call.k])

    def _paths_of(self, place: int) -> Any:
        """A watcher that sums the mass with keys, or queries, alone from the changed run."""

        def watch(_places: list[int], documents: slice, call: AttentionCall) -> None:
            if not self._targets(call.site):
                return
            q, k = (kept[documents] for kept in self._clean[call.site])
            matches = [match_of(pair, documents, 1, call.q) for pair in self._labels]
            for path, one, other in ((PATHS[1], q, call.k), (PATHS[2], call.q, k)):
                total = _mass(call, one, other, matches, self._labels)
                for head in self._targets(call.site):
                    key = place, head, path
                    kept = self._paths.setdefault(key, np.zeros(len(self._prompts)))
                    kept[documents] = total[:, head.head]

        return watch

    def _frozen(self, removals: Sequence[Removal]) -> Float[np.ndarray, "removal document"]:
        """Rise of the loss with all patterns held at those of the whole model."""
        trials = Trials(self._model, self._prompts, [self._loss], seed=self._seed)
        return trials.run(removals, held=True)[:, 0] - trials.base[0]


def _mass(
    call: AttentionCall, q: Tensor, k: Tensor, matches: Sequence[Match], labels: Sequence[Labels]
) -> Float[np.ndarray, "document head"]:
    """Summed label mass of a call's heads under other queries or keys."""
    out = attention_probe(
        q, k, call.v, mask=call.mask, scores=call.scores, matches=tuple(matches)
    )  # fmt: skip
    if out.mass is None:
        raise RuntimeError("the probe returned no mass for its matches")
    signs = out.mass.new_tensor([pair.sign for pair in labels])
    return (out.mass.sum(2) * signs).sum(-1).double().cpu().numpy()


def _labels(
    model: Any,
    tokenizer: Any,
    atlas: HeadAtlas | None,
    prepend_bos: bool | None,
    seed: int,
    progress: Progress | None,
) -> HeadAtlas:
    if atlas is None:
        return classify(
            model, tokenizer, kinds=TRACED, prompts=32, seq_len=_length(model),
            prepend_bos=prepend_bos, seed=seed, progress=progress,
        )  # fmt: skip
    if not isinstance(atlas, HeadAtlas):
        raise InputError(f"atlas is what classify gives, or None; got {type(atlas).__name__}.")
    return atlas


def _length(model: Any) -> int:
    from ...interp.tokens import context_length

    return min(128, context_length(model) or 128)
