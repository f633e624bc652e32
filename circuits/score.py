"""Run a battery: every kind, every head, one forward pass per batch, sums kept per document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..interp.attach import AttentionCall, attach
from ..interp.forward import run_base
from ..interp.probes import Prompts
from .batch import Batch
from .kinds import Kind, choose_kinds
from .scoring import Scoring
from .sums import Sums

_SMALL = 10_000_000  # parameters


@torch.no_grad()
def score(
    model: Any,
    prompts: Prompts,
    kinds: Sequence[Kind] | str | None = None,
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
        model: a transformers model.
        prompts: the documents; padding is allowed on either side.
        kinds: kinds or their names; None scores all that the prompts can serve.
        null_draws: how many times the labels of the content kinds are permuted within each
            document and scored in the same pass.
        profile_rows: rows per document whose weights are exported to estimate the profile.
        seed: seed of the sampled rows and permutations.
        batch_tokens: tokens per forward pass (at least one document).
        progress: called with the number of documents done after each batch.

    Returns:
        The sums per document.

    Raises:
        InputError: the model has no attention that can be hooked, a kind cannot be scored on
            these prompts, or the attention is not finite.

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
    chosen = choose_kinds(kinds) if kinds is None or isinstance(kinds, str) else tuple(kinds)
    batch: Batch | None = None

    def observe(call: AttentionCall) -> None:
        if batch is not None:  # what `progress` may do with the model is not ours to count
            batch.take(call)

    step = max(1, batch_tokens // prompts.ids.shape[1])
    parts = []
    with attach(model, observers=[observe]) as sites, _few_threads(model):
        scoring = Scoring(sites, prompts, chosen, null_draws, profile_rows, seed)
        for start in range(0, len(prompts), step):
            stop = min(start + step, len(prompts))
            batch = Batch(scoring, slice(start, stop), model.device)
            run_base(model, batch.ids, batch.mask)
            parts.append(batch.sums())
            batch = None
            if progress is not None:
                progress(stop)
    return Sums.join(parts)


@contextmanager
def _few_threads(model: Any) -> Iterator[None]:
    """One thread for a small model: waiting for the others costs it more than they bring.

    torch's thread count is process-wide; it is restored on exit.
    """
    threads = torch.get_num_threads()
    if model.device.type == "cpu" and sum(p.numel() for p in model.parameters()) < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
