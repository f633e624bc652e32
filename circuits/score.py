"""Run a battery: every kind, every head, a forward pass per batch, sums kept per document."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import torch

from ..interp.attach import AttentionCall, attach
from ..interp.errors import InputError
from ..interp.probes import Prompts
from ..interp.sites import Site, unbridged
from .arguments import whole_number
from .batch import Batch
from .kinds import Kind, choose_kinds
from .label_vectors import Labels, UnfitPromptsError
from .scoring import Scoring
from .sums import Sums

_SMALL = 10_000_000  # parameters


def score(
    model: Any,
    prompts: Prompts,
    kinds: str | Kind | Sequence[str | Kind] | None = None,
    *,
    null_draws: int = 0,
    profile_rows: int = 32,
    seed: int = 0,
    batch_tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> Sums:
    """Score every head for every kind on a set of prompts, in one forward pass per batch.

    For each head and statistic the mass Σ_i Σ_j A[i, j] · [q_label[i] == k_label[j]] is summed
    over the scored rows of each document, while the model runs without its LM head and no N × N
    pattern is ever held.

    Args:
        model: a transformers model with one stack.
        prompts: the documents; padding is allowed on either side.
        kinds: kinds or their names; None scores all kinds on text that the prompts can serve
            (without marked delimiters, all but `delimiter`; without a token that comes twice, no
            copies).
        null_draws: how many times the labels of the content kinds are permuted within each
            document and scored in the same pass.
        profile_rows: rows per document whose weights are exported to estimate the profile.
        seed: seed of the sampled rows and permutations.
        batch_tokens: tokens per forward pass (at least one document).
        progress: called with the number of documents done after each batch.

    Returns:
        The sums per document.

    Raises:
        InputError: the model has no attention that can be hooked, several stacks or another
            direction than the prompts, a kind cannot be scored on these prompts or scores no row
            of them, a number is out of range, or the attention is not finite.

    Example:
        >>> import numpy as np
        >>> import headatlas as ha
        >>> from headatlas.interp.probes import random_prompts
        >>> model, tokenizer = ha.load("tiny")
        >>> prompts = random_prompts(np.arange(100, 900), 2, 48, bos_id=tokenizer.bos_token_id)
        >>> sums = score(model, prompts, "previous_token")
        >>> sums.mass.shape
        (2, 32, 1)
    """
    step = batch_documents(prompts, batch_tokens)
    batches = [slice(at, min(at + step, len(prompts))) for at in range(0, len(prompts), step)]
    run = score_batches(
        model, prompts, kinds, batches=batches, null_draws=null_draws,
        profile_rows=profile_rows, seed=seed,
    )  # fmt: skip
    parts = []
    with closing(run):  # an exception of `progress` must leave no hook behind
        for documents, part in zip(batches, run, strict=True):
            parts.append(part)
            if progress is not None:
                progress(documents.stop)
    return Sums.join(parts)


def batch_documents(prompts: Prompts, batch_tokens: int) -> int:
    """How many documents a forward pass takes, at least one.

    Raises:
        InputError: the prompts are none, or the number is out of range.
    """
    if not isinstance(prompts, Prompts):
        raise InputError(f"prompts are a Prompts; got {type(prompts).__name__}.")
    return max(1, whole_number("batch_tokens", batch_tokens, 1) // prompts.ids.shape[1])


@torch.no_grad()
def score_batches(
    model: Any,
    prompts: Prompts,
    kinds: str | Kind | Sequence[str | Kind] | None = None,
    *,
    batches: Sequence[slice],
    null_draws: int = 0,
    profile_rows: int = 32,
    seed: int = 0,
) -> Generator[Sums, None, None]:
    """Score some documents of a set, a batch at a time; joined, the sums are those of `score`.

    The model is attached from the first batch that is asked for until the last, or until the
    iterator is closed.

    Args:
        model: as for `score`, like all that follows.
        prompts: all documents of the set: they say which kinds can be scored, and how.
        kinds: kinds or their names.
        batches: the documents of each forward pass, with a start and a stop.
        null_draws: permutations of the content labels.
        profile_rows: rows per document whose weights are exported.
        seed: of the sampled rows and permutations.

    Yields:
        The sums of each batch.

    Raises:
        InputError: as `score`.
    """
    model = unbridged(model)
    draws = whole_number("null_draws", null_draws, 0)
    sampled = whole_number("profile_rows", profile_rows, 0)
    seed = whole_number("seed", seed, 0)
    chosen = choose_kinds(kinds) if kinds is not None else _served(prompts)
    batch: Batch | None = None

    def observe(call: AttentionCall) -> None:
        if batch is not None:  # what the caller may do with the model is not ours to count
            batch.take(call)

    with attach(model, observers=[observe]) as sites, _few_threads(model):
        check_direction(sites, causal=prompts.causal)
        scoring = Scoring(sites, prompts, chosen, draws, sampled, seed)
        _check_rows(scoring)
        for documents in batches:
            batch = Batch(scoring, documents, model.device)
            batch.run(model)
            sums = batch.sums()
            batch = None
            yield sums


def one_direction(sites: Sequence[Site]) -> bool:
    """Whether all queries see earlier keys only; the label vectors depend on it.

    Raises:
        InputError: the model has several stacks, or layers of both sorts.
    """
    stacks = {site.stack for site in sites}
    if stacks != {""}:
        raise InputError(
            f"this model has several stacks ({', '.join(sorted(stacks))}); classify one at a time, "
            "such as model.get_encoder()."
        )
    causal = {site.causal for site in sites}
    if len(causal) > 1:
        mixed = next(site.module for site in sites if not site.causal)
        raise InputError(
            f"some attention layers are causal and some are not (such as {mixed}); the kinds of "
            "head are defined for models that are one or the other."
        )
    return causal.pop()


def check_direction(sites: Sequence[Site], *, causal: bool) -> None:
    """Refuse prompts made for queries that see other keys than the model's do.

    Raises:
        InputError: as `one_direction`, or the model's direction is not that of the prompts.
    """
    own = one_direction(sites)
    if own != causal:
        sees = "earlier keys only" if own else "keys on both sides"
        raise InputError(
            f"the model's queries see {sees}, but the prompts were made with causal={causal}; "
            f"make them with causal={own}."
        )


def _served(prompts: Prompts) -> tuple[Kind, ...]:
    """The registered kinds that score some row of the prompts."""
    served = []
    for kind in choose_kinds(None):
        try:
            labels = kind.variants(prompts)
        except UnfitPromptsError:
            continue
        if _scores_rows(kind, labels):
            served.append(kind)
    if not served:
        raise InputError(f"no registered kind scores a row of the {prompts.name} prompts.")
    return tuple(served)


def _check_rows(scoring: Scoring) -> None:
    """Refuse a kind none of whose rows is scored: its heads would all be graded on nothing.

    A companion may be empty, and so may some of the variants that compete, such as offsets
    beyond the length of the documents.
    """
    prompts = scoring.prompts
    for kind in scoring.kinds:
        variants = {s.variant: pairs for k, s, pairs in scoring.columns if k is kind}
        if not _scores_rows(kind, variants):
            what = "any of its variants" if kind.candidates else "its own statistic"
            raise InputError(
                f"kind {kind.name}: {what} scores no row of the {prompts.name} prompts "
                f"({len(prompts)} documents of up to {int(prompts.mask.sum(1).max())} tokens): "
                "q_label is negative everywhere. Lengthen the documents (seq_len), or mend the "
                "kind's labels."
            )


def _scores_rows(kind: Kind, variants: Mapping[str, tuple[Labels, ...]]) -> bool:
    own = variants.values() if kind.candidates else [variants[""]]
    return any(bool((pairs[0].q >= 0).any()) for pairs in own)


class _Threads:
    """How many runs hold torch at one thread, and how many threads it had before the first."""

    lock = threading.Lock()
    holders = 0
    before = 1


@contextmanager
def _few_threads(model: Any) -> Iterator[None]:
    """One thread for a small model: waiting for the others costs it more than they bring.

    torch keeps a count for the process and one for each thread that has asked. Runs may overlap,
    so the count is noted by the first and given back by every one, to its own thread.
    """
    if model.device.type != "cpu" or sum(p.numel() for p in model.parameters()) >= _SMALL:
        yield
        return
    with _Threads.lock:
        if _Threads.holders == 0:
            _Threads.before = torch.get_num_threads()
        _Threads.holders += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _Threads.lock:
            _Threads.holders -= 1
            torch.set_num_threads(_Threads.before)
