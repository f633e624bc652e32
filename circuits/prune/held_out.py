"""Text to learn from and text to measure on, kept apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...interp.errors import InputError
from ...interp.probes import MIN_PROMPTS, MIN_TOKENS, Prompts
from ...interp.texts import Documents, read_documents
from ..ablate.evaluate import repeated_probe

_SPAN = 16  # tokens; that many in a row hardly ever come twice by chance
_MOST = 0.5  # share of a document's spans that training text may hold


@dataclass(frozen=True)
class Reading:
    """How texts are read.

    Args:
        train_documents: documents to learn from, at most; None: all that there are.
        eval_documents: documents to measure on, at most.
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
    them. Tokens that repeat, whose second copies are measured, are drawn anew.

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
    probe = repeated_probe(
        model, tokenizer, prompts=max(reading.eval_documents, MIN_PROMPTS),
        seq_len=max(reading.seq_len, MIN_TOKENS), prepend_bos=reading.prepend_bos,
        seed=reading.seed,
    )  # fmt: skip
    return Material(train, text, probe)


def refuse_overlap(train: Documents, text: Documents) -> None:
    """Refuse text to measure on that was learnt from.

    Documents that are the same are found by their fingerprints; documents cut from the same text at
    other places, by the spans of 16 tokens that stand in both.

    Raises:
        InputError: a document stands on both sides, or half of its spans do.

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
        headatlas.interp.errors.InputError: 1 of 1 documents to measure on (a text) share half ...
    """
    where = f"({text.origin})"
    same = len(train.fingerprints() & text.fingerprints())
    if same:
        raise InputError(
            f"{same} of {len(text)} documents to measure on {where} are among those to learn from "
            f"({train.origin}). Give other text, or no text for measuring: then some is held out."
        )
    known = {span for row in _rows(train.prompts) for span in _spans(row)}
    shared = 0
    for row in _rows(text.prompts):
        spans = _spans(row)
        shared += bool(spans) and sum(span in known for span in spans) > _MOST * len(spans)
    if shared:
        raise InputError(
            f"{shared} of {len(text)} documents to measure on {where} share half or more of their "
            f"spans of {_SPAN} tokens with those to learn from ({train.origin}). Give other text."
        )


def _read(model: Any, tokenizer: Any, texts: Any, reading: Reading, *, held_out: bool) -> Documents:
    if isinstance(texts, Documents):
        return texts
    n = reading.train_documents
    if n is not None and held_out:
        n += reading.eval_documents
    return read_documents(
        texts, model, tokenizer, n=n, seq_len=reading.seq_len, prepend_bos=reading.prepend_bos,
        seed=reading.seed,
    )  # fmt: skip


def _split(every: Documents, reading: Reading) -> tuple[Documents, Documents]:
    n = len(every)
    if n < 2:
        raise InputError(
            f"{every.origin} is a single document, of which none can be held out. Give more text, "
            "a smaller seq_len, or text for measuring."
        )
    out = min(reading.eval_documents, max(1, n // 3))
    order = np.random.default_rng((reading.seed, 62)).permutation(n)
    parts = (np.sort(order[out:]), np.sort(order[:out]))
    names = (every.origin, f"{every.origin}, held out")
    train, text = (
        Documents(every.prompts.select(rows), name) for rows, name in zip(parts, names, strict=True)
    )
    limit = reading.train_documents
    if limit is not None and len(train) > limit:
        train = Documents(train.prompts.select(slice(0, limit)), train.origin)
    return train, text


def _rows(prompts: Prompts) -> list[np.ndarray]:
    return [row[own] for row, own in zip(prompts.ids, prompts.content, strict=True)]


def _spans(row: np.ndarray) -> list[bytes]:
    if len(row) < _SPAN:
        return []
    return [span.tobytes() for span in sliding_window_view(row.astype("<i8"), _SPAN)]
