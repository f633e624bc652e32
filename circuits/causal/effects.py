"""From a sweep to evidence: does removing a head harm what its label predicts?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.parsed import Parsed
from ...interp.sites import unbridged
from ..asked import AnyKind
from ..atlas import HeadAtlas
from ..same_weights import check_weights
from .decoder import check_decoder
from .documents import DOCUMENTS, SEQ_LEN, documents
from .evidence import ADDRESS, CausalRule, Judged, evidence_rows
from .stand_in import ABLATIONS, check_ablations
from .sweep import Progress, Sweep, sweep
from .sweep_file import beside
from .testable import (
    Candidate,
    by_documents,
    chosen_kinds,
    feeding,
    labelled,
    reads_parsed,
    with_behaviours,
)
from .word_documents import WordDocuments, word_documents


@dataclass(frozen=True, eq=False)
class CausalEffects:
    """What removing labelled heads does to the behaviours that their labels predict.

    Args:
        rows: one row per head × kind × ablation: `base`, the behaviour in the whole model;
            `effect`, the harm, with [`low`, `high`] its simultaneous interval; `layer_effect`,
            what the layer alone predicts, and `standing`, effect less that in units of the
            layer's spread; `p` and `q` of the standing; `n` measured rows; `reference`, how many
            other heads p rests on; `controlled`, whether these are enough to bound the rate of
            false discoveries; `evidence`, the verdict of the head as that kind, the same in each
            of its rows.
        sweeps: the sweeps over all heads, by the name of their documents.
        untested: kinds with labelled heads that were left out, and why.
        settings: everything needed to run it again.
    """

    rows: pd.DataFrame
    sweeps: Mapping[str, Sweep] = field(repr=False)
    untested: Mapping[str, str]
    settings: Mapping[str, Any] = field(repr=False)

    def heads(self, kind: str, evidence: str = "pattern + causal") -> list[HeadId]:
        """Heads of a kind with that evidence, largest effect of mean ablation first."""
        rows = self.rows
        rows = rows.loc[(rows["kind"] == kind) & (rows["evidence"] == evidence)]
        rows = rows.loc[rows["ablation"] == "mean"].sort_values("effect", ascending=False)
        return [HeadId(r["site"], r["layer"], r["head"]) for r in rows.to_dict("records")]

    def __repr__(self) -> str:
        lines, kinds = [], dict.fromkeys(self.rows["kind"]) if len(self.rows) else {}
        width = max([16, *map(len, (*kinds, *self.untested))])
        for kind in kinds:
            own, found = self.rows.loc[self.rows["kind"] == kind], self.heads(kind)
            best = " ".join(map(str, found[:4])) + (" …" if len(found) > 4 else "")
            total = len(own[ADDRESS].drop_duplicates())
            line = f"{kind:{width}} {len(found)} of {total} pattern + causal  {best}".rstrip()
            if not own["controlled"].all():
                line += f"  (against {own['reference'].iloc[0]} heads: false ones not controlled)"
            lines.append(line)
        lines += [f"{kind:{width}} not tested: {why}" for kind, why in self.untested.items()]
        return "\n".join(lines) or "no labelled head to test"


def causal_effects(
    model: Any,
    tokenizer: Any,
    atlas: HeadAtlas,
    *,
    kinds: AnyKind | Sequence[AnyKind] | None = None,
    heads: Iterable[str | HeadId] | None = None,
    ablations: Sequence[str] = ABLATIONS,
    prompts: int = DOCUMENTS,
    seq_len: int = SEQ_LEN,
    text: str | None = None,
    treebank: str | Path | Sequence[Parsed] | None = None,
    prepend_bos: bool | None = None,
    rule: CausalRule | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> CausalEffects:
    """Test labels by removal: does the behaviour that a head's label predicts suffer without it?

    All heads of the model are removed in turn (`sweep`), once for each set of documents: random
    tokens and natural text that gave no label, and parsed documents for kinds between words, whose
    behaviour is the mean loss after each word with a visible link (`word_documents`: of a treebank
    at most 4 · `prompts` sentences). For a labelled head the evidence is *pattern + causal* if,
    under mean ablation,

    1. the whole simultaneous interval of its effect (bootstrap over documents, all tested heads
       and kinds at once) lies on the side of harm, above `rule.margin`; and
    2. it stands out among all heads: its standing, (effect − what its layer predicts) / spread of
       such layers (running medians over the reference heads, `layer_trend`), ranks so high that
       its Benjamini–Hochberg q over the labelled heads is ≤ `rule.q`. Where there are too few
       reference heads for any rank to reach that, it must exceed them all. False discoveries are
       not controlled then (`controlled` is false): by chance alone a head that harms no more than
       any other exceeds R of them once in R + 1 times.

    Otherwise it is *pattern only*. Heads with the label are no reference for one another, since
    twenty true ones would bar each other from the top twentieth; nor are heads whose own label
    says that they feed this kind (previous-token heads for induction), since removing them harms
    it through the very heads that are tested. Zero and resample ablation stand beside it: zero
    ablation is heavy-tailed, because a head's missing mean is damage of its own.

    Args:
        model: a transformers decoder with a language-model head.
        tokenizer: its tokenizer.
        atlas: the labels, of the same model; heads graded weak or strong are tested. An atlas of
            other weights is refused where it can be told (`check_weights`): it says what they were,
            and class and dtype are the same.
        kinds: names, `Kind` or `WordKind` values, or a list of these; None: all that the atlas
            scored and that can be tested.
        heads: report on these alone; the sweep is over all heads all the same.
        ablations: which of `zero`, `mean`, `resample`; `mean` must be among them.
        prompts: documents of each set, at least 16.
        seq_len: tokens per document, other than parsed ones.
        text: running text for the natural set; None generates it.
        treebank: parsed documents for the kinds between words, or the path of a CoNLL-U file;
            None takes other documents of the built-in grammar than `classify` does.
        prepend_bos: True, False, or None for the tokenizer's habit.
        rule: level, rate, margin and resamples.
        seed: of documents, of `resample`, of the bootstrap.
        checkpoint: a `.safetensors` path; each set of documents keeps its finished layers in a
            file of that name with the set's behind it, and goes on from there.
        progress: called with (stage, heads done, heads).

    Returns:
        The effects, with the sweeps they come from.

    Raises:
        InputError: an encoder, an atlas of another model, a kind that was not scored or, if named,
            cannot be tested, or settings that do not fit.

    Example:
        >>> import headatlas as ha
        >>> model, tokenizer = ha.load("tiny")
        >>> atlas = ha.classify(model, tokenizer, prompts=24, seq_len=96,
        ...     kinds="induction,previous_token")
        >>> effects = causal_effects(model, tokenizer, atlas, ablations=["mean"])
        >>> effects.heads("previous_token")[0]
        L1H1

    Reference:
        Michel 2019; Olsson 2022; Wang 2022; Benjamini and Hochberg 1995.
    """
    model = unbridged(model)
    rule, used = rule or CausalRule(), check_ablations(ablations)
    if "mean" not in used:
        raise InputError(f"the evidence rests on mean ablation; got {', '.join(used)} alone.")
    _check_atlas(model, atlas)
    named = None if heads is None else _named(heads, atlas)
    asked = chosen_kinds(kinds, atlas)
    between = [kind for kind in asked if reads_parsed(kind)]
    if treebank is not None and not between:
        raise InputError("no kind between words is to be tested, so the treebank would go unread.")
    words = None
    if tokenizer is not None and any(atlas.heads(kind.name) for kind in between):
        words = word_documents(
            model, tokenizer, treebank=treebank, prompts=prompts, prepend_bos=prepend_bos, seed=seed
        )
    chosen, untested = with_behaviours(asked, atlas, tokenizer, words, must=kinds is not None)
    tested, sweeps = [], dict[str, Sweep]()
    for name, (given, group) in by_documents(chosen).items():
        own = given
        if isinstance(own, str):
            own = documents(
                model, tokenizer, own, prompts=prompts, seq_len=seq_len,
                text=text if own == "natural" else None, prepend_bos=prepend_bos, seed=seed,
            )  # fmt: skip
        behaviours = [*dict.fromkeys(one.behaviour for one in group)]
        sweeps[name] = sweep(
            model, own, behaviours, ablations=used, labelled=labelled(behaviours, atlas),
            seed=seed, checkpoint=None if checkpoint is None else beside(checkpoint, name),
            progress=progress,
        )  # fmt: skip
        tested += [_tested(one, name, sweeps[name], atlas, named) for one in group]
    rows = evidence_rows([one for one in tested if one.shown], rule, used, seed)
    settings = {
        "prompts": prompts, "seq_len": seq_len, "seed": seed, "ablations": [*used],
        "rule": vars(rule),
        "behaviours": {one.kind.name: one.behaviour.definition for one in chosen},
        "parsed": None if words is None else _size(words),
        "resumed": {name: one.resumed for name, one in sweeps.items()},
    }  # fmt: skip
    return CausalEffects(rows, sweeps, untested, settings)


def _check_atlas(model: Any, atlas: Any) -> None:
    if not isinstance(atlas, HeadAtlas):
        raise InputError(f"atlas is what classify gives; got {type(atlas).__name__}.")
    heads = {head for site in check_decoder(model) for head in site.heads}
    if set(atlas) != heads:
        raise InputError(
            f"the atlas has {len(atlas)} heads and the model {len(heads)}: it is another model's."
        )
    check_weights(model, atlas.model)


def _tested(
    one: Candidate, name: str, swept: Sweep, atlas: HeadAtlas, named: set[HeadId] | None
) -> Judged:
    having = tuple(sorted(atlas.heads(one.kind.name)))
    shown = tuple(head for head in having if named is None or head in named)
    unit = None if one.words is None else one.words.unit
    fed_by = feeding(one.kind.name, atlas)
    return Judged(one.kind.name, one.behaviour.name, name, swept, having, fed_by, shown, unit)


def _named(heads: Iterable[str | HeadId], atlas: HeadAtlas) -> set[HeadId]:
    listed = [heads] if isinstance(heads, str | HeadId) else list(heads)
    named = {HeadId.parse(head) for head in listed}
    for head in named:
        atlas[head]  # refuses a head that is not there
    return named


def _size(words: WordDocuments) -> dict[str, int]:
    """How many parsed documents were run."""
    sequences, length = words.prompts.ids.shape
    return {
        "documents": words.words.n_units, "sentences": words.n_sentences, "sequences": sequences,
        "seq_len": length,
    }  # fmt: skip
