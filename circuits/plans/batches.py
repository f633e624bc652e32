"""Score the missing batches of a prompt set; one that does not fit memory is cut in halves."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch

from ...interp.errors import InputError
from ...interp.probes import Prompts
from ..kinds import Kind
from ..score import batch_documents, score_batches
from ..sums import Sums


def ranges(prompts: Prompts, batch_tokens: int) -> list[slice]:
    """The documents of each batch of a set: the plan fixes them, so that bits do not move.

    Raises:
        InputError: the number is out of range.
    """
    step = batch_documents(prompts, batch_tokens)
    return [slice(at, min(at + step, len(prompts))) for at in range(0, len(prompts), step)]


def score_missing(
    model: Any,
    prompts: Prompts,
    kinds: Sequence[Kind],
    batches: Sequence[slice],
    keep: Callable[[slice, Sums, int | None], None],
    options: Mapping[str, int],
) -> None:
    """Score batches and hand each on as soon as it is done.

    Args:
        model: a transformers model.
        prompts: all documents of the set.
        kinds: what is scored.
        batches: the documents that are missing.
        keep: takes a batch, its sums, and to how many documents at a time it was cut for want of
            memory (None: not cut).
        options: of `score_batches`.

    Raises:
        InputError: the model or the documents are refused, or a single document does not fit.
    """
    left = [*batches]
    while left:
        with closing(score_batches(model, prompts, kinds, batches=[*left], **options)) as run:
            try:
                while left:
                    sums = next(run)
                    keep(left.pop(0), sums, None)
                return
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
        keep(*_cut(model, prompts, kinds, left.pop(0), options))


def _cut(
    model: Any,
    prompts: Prompts,
    kinds: Sequence[Kind],
    documents: slice,
    options: Mapping[str, int],
) -> tuple[slice, Sums, int]:
    """Score a batch in pieces of half its size, a quarter, … one document."""
    size = documents.stop - documents.start
    while size > 1:
        size = (size + 1) // 2
        _free_memory()
        pieces = [
            slice(at, min(at + size, documents.stop))
            for at in range(documents.start, documents.stop, size)
        ]
        try:
            found = list(score_batches(model, prompts, kinds, batches=pieces, **options))
            return documents, Sums.join(found), size
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
    _free_memory()
    raise InputError(
        f"out of memory: one document of {prompts.ids.shape[1]} tokens (set {prompts.name}) does "
        "not fit beside the model. Take shorter lengths or another device."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the device or of the machine.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
        (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and (
        "not enough memory" in str(error) or "out of memory" in str(error)
    )


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
