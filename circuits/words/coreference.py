"""The coreference kind: from a mention to another mention of the same thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...interp.errors import InputError
from ...interp.parsed import Parsed
from .kind import Links, WordKind

NAME = "coreference"

GROUPS = ("pronoun", "proper", "nominal")
"""What a mention's head word may be."""

PRONOUNS = frozenset((
    "i", "me", "my", "mine", "myself", "you", "your", "yours", "yourself", "yourselves", "he",
    "him", "his", "himself", "she", "her", "hers", "herself", "it", "its", "itself", "we", "us",
    "our", "ours", "ourselves", "they", "them", "their", "theirs", "themselves", "themself",
    "who", "whom", "whose", "this", "that", "these", "those", "one", "oneself", "each", "other",
))  # fmt: skip
"""English pronouns, by which mentions are told apart where parts of speech are not known."""


def mention_heads(document: Parsed) -> list[list[int]]:
    """Head word of every mention, by cluster."""
    firsts = dict(zip(sorted(set(document.sentences)), document.first_words, strict=True))
    return [
        [firsts[mention.sentence] + mention.head for mention in cluster]
        for cluster in document.clusters
    ]


def mention_group(document: Parsed, word: int) -> str:
    """Whether a mention headed by a word is a pronoun, a proper name or a nominal.

    By the word's part of speech where it is known (PRON, DET: pronoun; PROPN: proper). Otherwise a
    word of `PRONOUNS` is a pronoun, one with a capital that does not begin its sentence is proper,
    and so is one that begins it and stands with a capital inside a sentence elsewhere.

    Example:
        >>> parsed = Parsed("She saw Ann", ((0, 3), (4, 7), (8, 11)), (0, 0, 0), (1, -1, 1),
        ...     ("nsubj", "root", "obj"))
        >>> [mention_group(parsed, word) for word in (0, 1, 2)]
        ['pronoun', 'nominal', 'proper']
    """
    tag = document.upos[word] if document.upos else ""
    if tag:
        return {"PRON": "pronoun", "DET": "pronoun", "PROPN": "proper"}.get(tag, "nominal")
    spelling = document.word(word)
    if spelling.lower() in PRONOUNS:
        return "pronoun"
    return "proper" if spelling in _names(document) else "nominal"


def _names(document: Parsed) -> frozenset[str]:
    firsts = set(document.first_words)
    words = (document.word(w) for w in range(len(document.spans)) if w not in firsts)
    return frozenset(word for word in words if word[:1].isupper())


def _links(document: Parsed) -> Links:
    for heads in mention_heads(document):
        for head in heads:
            others = [other for other in heads if other != head]
            if others:
                yield head, others


def _groups(document: Parsed) -> Mapping[int, str]:
    return {
        head: mention_group(document, head) for heads in mention_heads(document) for head in heads
    }


def _nearest(document: Parsed, causal: bool) -> Mapping[int, int]:
    """The head of the nearest mention of anything; of two equally near the earlier one."""
    every = sorted({head for heads in mention_heads(document) for head in heads})
    return _pick(every, dict.fromkeys(every, every), causal)


def _head_match(document: Parsed, causal: bool) -> Mapping[int, int]:
    """The nearest mention whose head word is spelled alike, else the nearest mention."""
    every = sorted({head for heads in mention_heads(document) for head in heads})
    alike: dict[str, list[int]] = {}
    for head in every:
        alike.setdefault(document.word(head).lower(), []).append(head)
    same = {head: alike[document.word(head).lower()] for head in every}
    return {**_pick(every, dict.fromkeys(every, every), causal), **_pick(every, same, causal)}


def _pick(every: list[int], among: Mapping[int, list[int]], causal: bool) -> dict[int, int]:
    picked = {}
    for head in every:
        seen = [other for other in among[head] if (other < head if causal else other != head)]
        if seen:
            picked[head] = min(seen, key=lambda other: (abs(other - head), other))
    return picked


COREFERENCE = WordKind(
    NAME,
    "Share of mentions whose head word most attends, among the other words, to the head word of "
    "another mention of the same thing (in a decoder, of an earlier one).",
    _links,
    guesses={"nearest_mention": _nearest, "head_match": _head_match},
    groups=_groups,
)
"""Coreference as Clark 2019 measures it: baselines are the best offset, the nearest mention, and
the nearest mention with the same head word; the excess is over the best of them."""


@dataclass(frozen=True)
class Ceiling:
    """What no reader from left to right can exceed.

    Args:
        anaphors: mentions with an antecedent.
        prefixes: distinct texts up to and with an anaphor.
        ambiguous: of these, the ones that occur with more than one antecedent.
        accuracy: share of anaphors that are right if each prefix gets its most common answer.
    """

    anaphors: int
    prefixes: int
    ambiguous: int
    accuracy: float


def prefix_ceiling(documents: Iterable[Parsed]) -> Ceiling:
    """The best accuracy of a model that has read each text only up to the anaphor.

    Schemas such as Winogender's come in pairs that differ only after the pronoun; a decoder's
    choice there is the same for both.

    Raises:
        InputError: the documents hold no anaphor.

    Example:
        >>> from headatlas.interp.winogender import winogender
        >>> template = "The $OCCUPATION met the $PARTICIPANT before $NOM_PRONOUN "
        >>> pair = winogender("clerk", "guest", 0, template + "closed.")
        >>> pair += winogender("clerk", "guest", 1, template + "left.")
        >>> prefix_ceiling(pair).accuracy
        0.5
    """
    answers: dict[str, Counter[tuple[int, ...]]] = {}
    for document in documents:
        for prefix, antecedents in _anaphors(document):
            answers.setdefault(prefix, Counter())[antecedents] += 1
    total = sum(sum(found.values()) for found in answers.values())
    if not total:
        raise InputError("no mention in these documents has an antecedent.")
    best = sum(max(found.values()) for found in answers.values())
    ambiguous = sum(len(found) > 1 for found in answers.values())
    return Ceiling(total, len(answers), ambiguous, best / total)


def _anaphors(document: Parsed) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each mention with antecedents: the text up to it, and their head words."""
    for heads in mention_heads(document):
        for head in sorted(set(heads)):
            earlier = tuple(sorted({other for other in heads if other < head}))
            if earlier:
                yield document.text[: document.spans[head][1]], earlier
