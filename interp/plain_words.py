"""Words and sentences of plain text, where no treebank says what they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_WORD = re.compile(r"\w+|[^\w\s]")
_END = re.compile(r"[.?!]+[\"'”’)\]]*\s+|\n\s*\n\s*")


def split_words(text: str, *, cuts: Iterable[int] = ()) -> tuple[tuple[int, int], ...]:
    """Half-open span of each word: a run of letters and digits, or one other mark.

    Args:
        text: the text.
        cuts: places at which a word ends in any case, such as the edges of mentions.

    Example:
        >>> [text[a:b] for text in ["Ann's cat."] for a, b in split_words(text)]
        ['Ann', "'", 's', 'cat', '.']
    """
    edges = sorted(set(cuts))
    spans, at = [], 0
    for match in _WORD.finditer(text):
        start, end = match.span()
        while at < len(edges) and edges[at] <= start:
            at += 1
        inner = at
        while inner < len(edges) and edges[inner] < end:
            spans.append((start, edges[inner]))
            start = edges[inner]
            inner += 1
        spans.append((start, end))
    return tuple(spans)


def split_sentences(text: str, *, kept: Collection[tuple[int, int]] = ()) -> tuple[int, ...]:
    """Where each sentence starts: after `.`, `?` or `!` and a blank, or after an empty line.

    Args:
        text: the text.
        kept: spans that no sentence ends within, such as mentions.

    Example:
        >>> split_sentences("It fell. Why? Dr. No knows.", kept=[(14, 20)])
        (0, 9, 14)
    """
    ends = (match.end() for match in _END.finditer(text))
    inside = [end for end in ends if end < len(text)]
    return (0, *(end for end in inside if not any(a < end < b for a, b in kept)))
