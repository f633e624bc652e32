"""Text to learn from and text to measure on, kept apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...interp.errors import InputError
from ...interp.probes import MIN_PROMPTS, MIN_TOKENS, Prompts
from ...interp.texts import Documents, read_documents
from ..ablate.evaluate import repeated_probe
from ..behaviour import has_next

_SPAN = 16  # tokens; that many in a row hardly ever come twice by chance
_MOST = 0.5  # share of a document's spans that training text may hold


@dataclass(frozen=True)
class Reading:
    """How texts are read.

    Args:
        train_documents: documents to learn from, at most; None: all that there are.
        eval_documents: documents to measure on, at most; of `Documents` a seeded choice, of text
            the first.
        seq_len: tokens per document.
        prepend_bos: True, False, or None for the tokenizer's habit.
        seed: of the split, of text that the model writes, and of the repeated tokens.
    """

    train_documents: int | None
    eval_documents: int
    seq_len: int
    prepend_bos: bool | None
    seed: int


@dataclass(frozen=True, eq=False)
class Material:
    """What is learnt from, and the two sorts of documents that losses are measured on."""

    train: Documents
    text: Documents
    repeated: Documents


def read_material(
    model: Any, tokenizer: Any, texts: Any, eval_texts: Any, reading: Reading
) -> Material:
    """Read the text to learn from and that to measure on.

    Without a text for measuring, a seeded choice of the documents is held out: at most a third of
    those in which every prediction counts (not of repeated tokens, of which second copies alone
    do). Tokens that repeat, whose second copies are measured, are drawn anew.

    Raises:
        InputError: text that cannot be read, a single document where two parts are needed, or text
            that stands on both sides.
    """
    if eval_texts is None:
        train, text = _split(_read(model, tokenizer, texts, reading, held_out=True), reading)
    else:
        train = _read(model, tokenizer, texts, reading, held_out=False)
        text = _read(
            model, tokenizer, eval_texts,
            replace(reading, train_documents=reading.eval_documents, seed=reading.seed + 1),
            held_out=False,
        )  # fmt: skip
    refuse_overlap(train, text)
    return Material(train, text, _probe(model, tokenizer, reading, train.fingerprints()))


def _probe(model: Any, tokenizer: Any, reading: Reading, known: frozenset[str]) -> Documents:
    """Repeated tokens that were not learnt from, whatever seed those had."""
    for seed in count(reading.seed):
        probe = repeated_probe(
            model, tokenizer, prompts=max(reading.eval_documents, MIN_PROMPTS),
            seq_len=max(reading.seq_len, MIN_TOKENS), prepend_bos=reading.prepend_bos, seed=seed,
        )  # fmt: skip
        if not probe.fingerprints() & known:
            return probe
    raise AssertionError("seeds do not end")


def refuse_overlap(train: Documents, text: Documents) -> None:
    """Refuse text to measure on that was learnt from.

    Documents that are the same are found by their fingerprints; documents cut from the same text at
    other places, by the spans of 16 tokens (of half a document, if that is shorter) in both.

    Raises:
        InputError: a document stands on both sides, or more than half of its spans do.

    Example:
        >>> import numpy as np
        >>> from headatlas.interp.probes import Prompts
        >>> ids = np.arange(100)[None]
        >>> one, other = (
        ...     Documents(Prompts("text", own, own >= 0, bos=False), "a text")
        ...     for own in (ids[:, :60], ids[:, 20:80])
        ... )
        >>> refuse_overlap(one, other)
        Traceback (most recent call last):
        ...
        headatlas.interp.errors.InputError: 1 of 1 documents to measure on (a text) share more ...
    """
    where = f"({text.origin})"
    same = len(train.fingerprints() & text.fingerprints())
    if same:
        raise InputError(
            f"{same} of {len(text)} documents to measure on {where} are among those to learn from "
            f"({train.origin}). Give other text, or no text for measuring: then some is held out."
        )
    known: dict[int, set[bytes]] = {}
    shared = 0
    for row in _rows(text.prompts):
        size = min(_SPAN, len(row) // 2)
        if size and size not in known:
            known[size] = {span for own in _rows(train.prompts) for span in _spans(own, size)}
        spans = _spans(row, size)
        shared += sum(span in known[size] for span in spans) > _MOST * len(spans)
    if shared:
        raise InputError(
            f"{shared} of {len(text)} documents to measure on {where} share more than half of "
            f"their spans of {_SPAN} tokens (or half a document) with those to learn from "
            f"({train.origin}). Give other text."
        )


def _read(model: Any, tokenizer: Any, texts: Any, reading: Reading, *, held_out: bool) -> Documents:
    n = reading.train_documents
    if n is not None and held_out:
        n += reading.eval_documents
    if isinstance(texts, Documents):
        return texts if held_out else _at_most(texts, n, reading.seed)
    return read_documents(
        texts, model, tokenizer, n=n, seq_len=reading.seq_len, prepend_bos=reading.prepend_bos,
        seed=reading.seed,
    )  # fmt: skip


def _split(every: Documents, reading: Reading) -> tuple[Documents, Documents]:
    prompts = every.prompts
    whole = has_next(replace(prompts, counted=None)).sum(1)
    text = np.flatnonzero(has_next(prompts).sum(1) == whole)
    if len(text) < 2:
        few = "a single document" if len(every) == 1 else f"{len(text)} documents of text"
        raise InputError(
            f"{every.origin} is {few}, of which none can be held out. Give more text, a smaller "
            "seq_len, or text for measuring."
        )
    out = min(reading.eval_documents, max(1, len(text) // 3))
    drawn = np.random.default_rng((reading.seed, 62)).permutation(text)[:out]
    parts = (np.setdiff1d(np.arange(len(every)), drawn), np.sort(drawn))
    names = (every.origin, f"{every.origin}, held out")
    train, text = (
        Documents(every.prompts.select(rows), name) for rows, name in zip(parts, names, strict=True)
    )
    return _at_most(train, reading.train_documents, reading.seed), text


def _at_most(documents: Documents, n: int | None, seed: int) -> Documents:
    """No more than n of the documents, drawn: what comes last may be of another sort."""
    if n is None or len(documents) <= n:
        return documents
    drawn = np.random.default_rng((seed, 63)).permutation(len(documents))[:n]
    origin = f"{documents.origin}, {n} of {len(documents)} documents"
    return Documents(documents.prompts.select(np.sort(drawn)), origin)


def _rows(prompts: Prompts) -> list[np.ndarray]:
    return [row[own] for row, own in zip(prompts.ids, prompts.content, strict=True)]


def _spans(row: np.ndarray, size: int) -> list[bytes]:
    if not 0 < size <= len(row):
        return []
    return [span.tobytes() for span in sliding_window_view(row.astype("<i8"), size)]
