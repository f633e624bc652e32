"""How common each token of a text is, and which sentence it stands in."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int

from .encode import encode
from .grammar import natural_text

_REFERENCE_WORDS = 20_000
_REFERENCE_CHARACTERS = 400_000  # of a user's text: enough to rank its common tokens
_ENDS = frozenset(".!?…。！？\n")


def frequency_ranks(
    tokenizer: Any, ids: Int[np.ndarray, "document pos"], text: str | None = None
) -> Int[np.ndarray, "document pos"]:
    """How rare each token is: its place among the ids of a reference text, the commonest first.

    Ids that the reference lacks come after all others. Among ids of one count the larger one is
    the rarer, since the ids of byte pair encodings follow the order of their merges.

    Args:
        tokenizer: makes tokens of the reference.
        ids: token ids.
        text: the reference, of which the first 400,000 characters count; None takes 20,000 words
            of the built-in grammar, the same whatever the ids.

    Returns:
        Ranks from 0; where the reference has fewer than 1,000 different ids they are stretched so
        that its commoner half stays below 500.

    Reference:
        Voita 2019, section 5.3 (rare tokens are those outside the 500 most frequent); Sennrich
        2016 (byte pair encoding).
    """
    running = _reference() if text is None else text[:_REFERENCE_CHARACTERS]
    counted = np.array(encode(tokenizer, [running])[0], np.int64)
    known, counts = np.unique(counted, return_counts=True)
    order = np.lexsort((known, -counts))
    rank = np.empty(len(known), np.int64)
    rank[order] = np.arange(len(known))
    if len(known) < 1000:
        rank = rank * 1000 // max(1, len(known))
    place = np.searchsorted(known, ids).clip(max=len(known) - 1)
    beyond = max(1000, len(known)) + ids
    return np.where(known[place] == ids, rank[place], beyond)


def sentence_numbers(
    tokenizer: Any, ids: Int[np.ndarray, "document pos"]
) -> Int[np.ndarray, "document pos"]:
    """Number of each token's sentence in its document; a full stop belongs to what it ends.

    A sentence ends after a token that holds one of `. ! ? …`, their full-width forms, or a line
    break, and no letter or digit.
    """
    unique, inverse = np.unique(ids, return_inverse=True)
    ends = np.array([_ends(tokenizer.decode([int(i)])) for i in unique], np.int64)
    after = ends[inverse].reshape(ids.shape)
    return np.cumsum(after, axis=1) - after


def _ends(text: str) -> bool:
    return bool(_ENDS & set(text)) and not any(char.isalnum() for char in text)


@lru_cache(maxsize=1)
def _reference() -> str:
    return natural_text(_REFERENCE_WORDS, seed=0)
