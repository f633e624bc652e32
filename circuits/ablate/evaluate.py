"""Measure a model with sets of heads removed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool

from ...interp.errors import InputError, shown
from ...interp.heads import HeadId
from ...interp.plain_text import counted
from ...interp.probes import Prompts
from ...interp.sites import Site, unbridged
from ...interp.texts import Documents
from ..arguments import whole_number
from ..behaviour import copied_next, has_next
from ..causal.arguments import one_ablation
from ..causal.decoder import check_decoder, output_head, width
from ..causal.documents import documents as prompt_set
from ..causal.measures import RowMeasure
from ..causal.stand_in import Removal
from ..causal.sweep import check_finite
from ..causal.trials import Trials
from .evaluation import Evaluation

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""

WHOLE = "whole model"

_TOGETHER = 16  # sets between two reports of progress
_KEPT_BYTES = 2 * 2**30  # states and z of all layers, which the runs begin with
MOST_LOGITS = 2**26
"""Of one batch: 256 MiB in float32, of which a few are held at once."""
_BATCH_TOKENS = 2048


def evaluate(
    model: Any,
    documents: Documents,
    removed: Sequence[Collection[HeadId]],
    *,
    ablation: str = "zero",
    seed: int = 0,
    reference: Any = WHOLE,
    progress: Progress | None = None,
) -> Evaluation:
    """Loss and divergence of a model without sets of heads, on every document.

        loss[s, d] = mean over t of −log q_s(token[t + 1] | tokens ≤ t)
        kl[s, d]   = mean over t of Σ_v p(v) (log p(v) − log q_s(v))

    with q_s the model without set s and p the whole model. A removal acts on z, the head's output
    before W_O: `zero` puts 0 there, `mean` its mean over the other documents at the same position,
    `resample` its value at the same position of another document. A set without heads is the whole
    model, with a divergence of exactly 0.

    Runs begin at the block of the first removed head where trying has shown that to be exact.
    Logits are held for one batch at a time. States and z of all layers are held too; documents for
    which those would exceed 2 GiB are run in groups (`Evaluation.groups`).

    Args:
        model: a transformers decoder with a language-model head.
        documents: what it reads (`read_documents`, `repeated_probe`). Where they say which
            predictions count (`Prompts.counted`), only those are measured.
        removed: sets of heads; those of one set are removed together.
        ablation: `zero`, `mean` or `resample`; all need but `zero` two documents.
        seed: of the other documents for `resample`.
        reference: what loss and divergence are compared with: the whole model, or another model
            of the same vocabulary (such as one before it was fine-tuned).
        progress: called with (stage, sets done, sets).

    Returns:
        The losses and divergences.

    Raises:
        InputError: no decoder with a head, heads that it does not have, documents without a
            measured position, or outputs that are not finite.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.interp.texts import read_documents
        >>> model, tokenizer = ha.load("tiny")
        >>> text = read_documents(["a cat sat on a mat"], model, tokenizer, n=1, seq_len=16)
        >>> found = evaluate(model, text, [[], [HeadId("", 1, 1)]])
        >>> (found.kl_nats > 0).tolist()
        [False, True]

    Reference:
        Michel 2019; Wang 2022 (mean); Chan 2022 (resampling).
    """
    model = unbridged(model)
    if not isinstance(documents, Documents):
        raise InputError(
            f"documents are what read_documents gives; got {type(documents).__name__}."
        )
    ablation, seed = one_ablation(ablation), whole_number("seed", seed, 0)
    sites, sets, prompts = check_decoder(model), _sets(removed), documents.prompts
    other = None if isinstance(reference, str) else reference
    _check_reference(model, reference)
    marked = measured_rows(prompts)
    check_count(ablation, len(documents))
    given = [place for place, heads in enumerate(sets) if heads or other is not None]
    loss, kl = np.zeros((2, len(sets), len(documents)))
    base, resumed = np.zeros(len(documents)), True
    groups = [*_groups(sites, model, prompts)]
    for number, group in enumerate(groups):
        own = prompts.select(group)
        trials = trials_of(
            model, own, marked[group][:, prompts.columns(group)], seed=seed, reference=other
        )
        for heads in sets:
            trials.check_heads(heads)
        base[group], resumed = trials.base[0], resumed and trials.resumed
        for start in range(0, len(given), _TOGETHER):
            places = given[start : start + _TOGETHER]
            removals = [Removal(ablation, sets[place]) for place in places]
            found = trials.run(removals)
            check_finite(found, removals)
            loss[places, group], kl[places, group] = found[:, 0], found[:, 1]
            if progress is not None:
                done = number * len(given) + start + len(places)
                progress(f"ablate {prompts.name}", done, len(groups) * len(given))
    empty = [place for place in range(len(sets)) if place not in given]
    loss[empty] = base
    return Evaluation(
        documents, sets, ablation, marked.sum(1), base, loss, kl, resumed, len(groups)
    )


def trials_of(
    model: Any,
    prompts: Prompts,
    marked: Bool[np.ndarray, "document pos"],
    *,
    seed: int,
    reference: Any = None,
) -> Trials:
    """Runs of a model that measure the loss and the divergence at the marked positions."""
    vocab = len(output_head(model).weight)
    return Trials(
        model, prompts, measures_of(marked), seed=seed,
        batch_tokens=max(1, min(_BATCH_TOKENS, MOST_LOGITS // vocab)), reference=reference,
    )  # fmt: skip


def measures_of(marked: Bool[np.ndarray, "document pos"]) -> tuple[RowMeasure, RowMeasure]:
    """The loss and the divergence at the marked positions."""
    return RowMeasure("loss", marked), RowMeasure("kl", marked, "kl")


def measured_rows(prompts: Prompts) -> Bool[np.ndarray, "document pos"]:
    """The positions whose next token is predicted and measured.

    Raises:
        InputError: there is none.
    """
    marked = has_next(prompts)
    if not marked.any():
        raise InputError(
            f"nothing is measured in the {prompts.name} documents ({len(prompts)} of up to "
            f"{counted(prompts.ids.shape[1], 'token')}); give longer ones."
        )
    return marked


def check_count(ablation: str, documents: int) -> None:
    """Refuse documents too few to take a stand-in from.

    Raises:
        InputError: a single document, other than for `zero`.
    """
    if ablation != "zero" and documents < 2:
        raise InputError(
            f"{ablation} ablation takes a head's value from other documents, and there is a single "
            "one. Give more text or shorter windows, or remove heads by zero ablation."
        )


def repeated_probe(
    model: Any,
    tokenizer: Any,
    *,
    prompts: int = 32,
    seq_len: int = 64,
    prepend_bos: bool | None = None,
    seed: int = 0,
) -> Documents:
    """Random tokens with repeated spans, whose second copies a model with induction predicts.

    Second copies alone count, in measuring and in training: what comes first in them nobody can
    predict.

    Args:
        model: a transformers decoder with a language-model head.
        tokenizer: names the special tokens, which are not drawn; None will do.
        prompts: how many documents, at least 16.
        seq_len: tokens per document, at least 16.
        prepend_bos: True, False, or None for the tokenizer's habit.
        seed: of the draw.

    Raises:
        InputError: the model is no decoder, or numbers that do not fit it.

    Example:
        >>> import headatlas as ha
        >>> repeated_probe(*ha.load("tiny"), prompts=16)
        <16 documents of up to 64 tokens, 1024 in all, with a BOS; repeated random tokens, seed 0>
    """
    model = unbridged(model)
    found = prompt_set(
        model, tokenizer, "random", prompts=prompts, seq_len=seq_len, prepend_bos=prepend_bos,
        seed=seed,
    )  # fmt: skip
    counted = replace(found, counted=copied_next(found))
    return Documents(counted, f"repeated random tokens, seed {seed}")


def _sets(removed: Any) -> tuple[tuple[HeadId, ...], ...]:
    if isinstance(removed, str | HeadId) or not isinstance(removed, Sequence) or not len(removed):
        raise InputError(f"removed is a list of sets of heads, at least one; got {shown(removed)}.")
    for one in removed:
        if isinstance(one, str | HeadId) or not isinstance(one, Collection):
            raise InputError(
                f"removed is a list of sets of heads, such as [[L0H1]]; got {shown(one)} in it."
            )
    return tuple(tuple(sorted({HeadId.parse(head) for head in one})) for one in removed)


def _check_reference(model: Any, reference: Any) -> None:
    if isinstance(reference, str):
        if reference != WHOLE:
            raise InputError(f"reference is {WHOLE!r} or a model; got {reference!r}.")
        return
    check_decoder(reference)
    sizes = [one.config.get_text_config().vocab_size for one in (model, reference)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"the reference has {sizes[1]} tokens and the model {sizes[0]}; their predictions "
            "cannot be compared."
        )


def _groups(sites: Sequence[Site], model: Any, prompts: Prompts) -> Iterator[slice]:
    """Documents of about equal number whose states fit into memory, as slices."""
    weight = next(model.parameters())
    per_token = sum(site.n_heads * site.d_value + width(model) for site in sites)
    total = prompts.ids.size * per_token * weight.element_size()
    # two at least, so that each has another to take values from
    n_groups = max(1, min(-(-total // _KEPT_BYTES), len(prompts) // 2))
    ends = np.linspace(0, len(prompts), n_groups + 1).astype(int)
    for start, end in pairwise(ends.tolist()):
        yield slice(start, end)
