"""Ordered sequences of words and signs that are single tokens, and frequent words."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...interp.encode import encode

_ORDERS: dict[str, str] = {
    "digits": "0 1 2 3 4 5 6 7 8 9",
    "numbers": " ".join(str(number) for number in range(10, 100)),
    "number words": "one two three four five six seven eight nine ten eleven twelve",
    "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth",
    "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "months": "January February March April May June July August September October November "
    "December",
    "letters": "a b c d e f g h i j k l m n o p q r s t u v w x y z",
}
_FORMS = (str, str.capitalize, str.lower, str.upper)
_SHORTEST = 4


def ordinal_sequences(tokenizer: Any) -> dict[str, tuple[int, ...]]:
    """Ordered sequences whose elements are single tokens of this tokenizer.

    Digits, numbers to 99, number words, ordinals, days, months and letters, in lower case,
    capitals and upper case, with and without a space in front. Of each, the longest unbroken
    stretch of single, distinct tokens counts, if it has 4 elements; equal ones count once.

    Args:
        tokenizer: a Hugging Face tokenizer.

    Returns:
        Name of the form, such as `" Monday"` -> token ids in order.

    Example:
        >>> import headatlas as ha
        >>> found = ordinal_sequences(ha.load("tiny")[1])
        >>> len(found["0"]), len(found["a"])
        (10, 26)
    """
    found: dict[tuple[int, ...], str] = {}
    for line in _ORDERS.values():
        for form in _FORMS:
            for space in ("", " "):
                words = [space + form(word) for word in line.split()]
                stretch = _longest([_single(ids) for ids in encode(tokenizer, words)])
                ids = tuple(token for token, _ in stretch)
                if len(ids) >= _SHORTEST and ids not in found:
                    found[ids] = words[stretch[0][1]]
    return {name: ids for ids, name in found.items()}


def frequent_tokens(tokenizer: Any, vocab: int, n: int) -> np.ndarray:
    """The first n token ids that spell a word of two letters or more (all ids without a tokenizer).

    Ids of BPE vocabularies follow the order of merges, and those of most other vocabularies the
    frequency, so the first are frequent.
    """
    if tokenizer is None:
        return np.arange(vocab // 10, vocab // 10 + min(n, vocab - vocab // 10))
    special = set(tokenizer.all_special_ids)
    found = []
    for start in range(0, min(vocab, len(tokenizer)), 1024):
        ids = list(range(start, min(start + 1024, vocab, len(tokenizer))))
        words = tokenizer.batch_decode([[i] for i in ids])
        found += [
            i
            for i, word in zip(ids, words, strict=True)
            if i not in special and len(word.strip()) > 1 and word.strip().isalpha()
        ]
        if len(found) >= n:
            break
    return np.array(found[:n], dtype=np.int64)


def _single(ids: list[int]) -> int | None:
    return ids[0] if len(ids) == 1 else None


def _longest(tokens: list[int | None]) -> list[tuple[int, int]]:
    """The longest stretch without None or a token twice, as (token, index)."""
    best: list[tuple[int, int]] = []
    current: list[tuple[int, int]] = []
    for index, token in enumerate(tokens):
        if token is None or token in [known for known, _ in current]:
            current = []
        if token is not None:
            current.append((token, index))
        best = max(best, current, key=len)
    return best
