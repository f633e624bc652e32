"""Which word each token of a model belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from .encode import as_input_error, encode
from .errors import InputError


@dataclass(frozen=True, eq=False)
class Aligned:
    """A text as tokens, and the word each belongs to.

    Args:
        ids: token ids of the text alone, without special tokens.
        words: index of each token's word, −1 for a token between words, [pos].
        n_words: how many words there are.
    """

    ids: Int[np.ndarray, " pos"]
    words: Int[np.ndarray, " pos"]
    n_words: int

    @property
    def missing(self) -> Int[np.ndarray, " word"]:
        """Words without a token of their own: they share one with a neighbour."""
        return np.setdiff1d(np.arange(self.n_words), self.words)


def align(tokenizer: Any, text: str, spans: Sequence[tuple[int, int]]) -> Aligned:
    """Tokenize a text and give each token to the word most of whose characters it holds.

    A token that covers parts of two words (`don` + `'t` for `do` + `n't`) goes to the one of which
    it holds more characters, to the earlier one on a tie; a token that covers none, such as a
    line break, to no word. Words that share one span cannot be told apart: all tokens go to the
    first of them.

    Args:
        tokenizer: a fast tokenizer, which knows where its tokens stand.
        text: the text.
        spans: half-open character span of each word, in order of their starts.

    Raises:
        InputError: a slow tokenizer, or a text that spells one of its special tokens.

    Example:
        >>> from headatlas.interp.load import load
        >>> aligned = align(load("tiny")[1], "the harbours", [(0, 3), (4, 12)])
        >>> sorted(set(aligned.words.tolist()))
        [0, 1]
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__} does not say where its tokens stand in a text. "
            "Load the model's fast tokenizer (AutoTokenizer, use_fast=True)."
        )
    with as_input_error(tokenizer):
        encoded = tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, padding=False,
            truncation=False, verbose=False, return_offsets_mapping=True,
        )  # fmt: skip
    ids = list(encoded["input_ids"])
    if ids != encode(tokenizer, [text])[0]:
        raise InputError("the text spells one of the tokenizer's special tokens; take it out.")
    places = encoded["offset_mapping"]
    return Aligned(np.array(ids, np.int64), _words(places, spans), len(spans))


def _words(
    places: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> Int[np.ndarray, " pos"]:
    words = np.full(len(places), -1, np.int64)
    first = 0  # words before it end before the present token
    for token, (start, end) in enumerate(places):
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        best, word = 0, first
        while word < len(spans) and spans[word][0] < end:
            held = min(end, spans[word][1]) - max(start, spans[word][0])
            if held > best:
                best, words[token] = held, word
            word += 1
    return words
