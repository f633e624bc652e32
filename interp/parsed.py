"""A text with its grammar: words with their places in it, dependency trees, coreference."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import sub
from typing import Any

from .errors import InputError, shown
from .grammar import Document, Mention
from .plain_text import checked_text

_TEXTS = ("name", "text", "group")
_ELEMENTS: dict[str, type] = {
    "spans": tuple, "sentences": int, "heads": int, "relations": str, "upos": str,
    "clusters": tuple,
}  # fmt: skip


@dataclass(frozen=True)
class Parsed:
    """One document and what is known of its words.

    Args:
        text: the document as a model reads it.
        spans: half-open character span of each word in `text`, in order of their starts; words
            that cannot be told apart in it (Spanish `del` = `de` + `el`) share the span of the
            whole.
        sentences: index of each word's sentence, in order from 0.
        heads: index of each word's head among the words of its sentence, counted through the
            document; −1 for a root, of which a sentence may have several. Heads form no circle.
        relations: each word's relation to its head (`nsubj`, `obj`, `acl:relcl`, …).
        clusters: mentions of one person or thing each, in text order; the words of a `Mention`
            count within its sentence. One that is mentioned once refers to nothing, but others may
            be taken to refer to it.
        name: how messages call the document.
        upos: each word's universal part of speech (`NOUN`, `PRON`, …), `""` where unknown; empty
            where none is known.
        group: documents of one group are near-copies, and count as one where intervals are made;
            `""` for a document of its own.

    Raises:
        InputError: a part is of another type, a string that no UTF-8 text can hold, or the parts do
            not fit together.

    Example:
        >>> Parsed("It fell.", ((0, 2), (3, 7), (7, 8)), (0, 0, 0), (1, -1, 1),
        ...     ("nsubj", "root", "punct")).word(1)
        'fell'
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    sentences: tuple[int, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    clusters: tuple[tuple[Mention, ...], ...] = ()
    name: str = "document"
    upos: tuple[str, ...] = ()
    group: str = ""

    def __post_init__(self) -> None:
        _check_types(self)
        n = len(self.spans)
        lengths = {len(self.sentences), len(self.heads), len(self.relations), n}
        if len(lengths) > 1 or not n:
            raise InputError(
                f"{self.name}: spans, sentences, heads and relations must have one entry per word, "
                f"at least one; got {n}, {len(self.sentences)}, {len(self.heads)} and "
                f"{len(self.relations)}."
            )
        if self.upos and len(self.upos) != n:
            raise InputError(
                f"{self.name}: {len(self.upos)} parts of speech for {n} words; give one per word, "
                "or none."
            )
        _check_spans(self)
        _check_sentences(self)
        _check_heads(self)
        _check_clusters(self)

    def word(self, index: int) -> str:
        """How the text spells a word."""
        start, end = self.spans[index]
        return self.text[start:end]

    @cached_property
    def first_words(self) -> tuple[int, ...]:
        """Index of each sentence's first word."""
        firsts: dict[int, int] = {}
        for word, sentence in enumerate(self.sentences):
            firsts.setdefault(sentence, word)
        return tuple(firsts[sentence] for sentence in sorted(firsts))


def from_grammar(document: Document, *, name: str = "document") -> Parsed:
    """A document of the built-in grammar with its gold trees and clusters.

    Example:
        >>> from headatlas.interp.grammar import Grammar
        >>> parsed = from_grammar(Grammar(0).document())
        >>> parsed.word(0) == Grammar(0).document().sentences[0].words[0]
        True
    """
    heads: list[int] = []
    sentences: list[int] = []
    for index, sentence in enumerate(document.sentences):
        first = len(heads)
        heads += [first + head if head >= 0 else -1 for head in sentence.heads]
        sentences += [index] * len(sentence.words)
    return Parsed(
        text=document.text,
        spans=tuple(span for spans in document.word_spans for span in spans),
        sentences=tuple(sentences),
        heads=tuple(heads),
        relations=tuple(r for sentence in document.sentences for r in sentence.relations),
        clusters=document.clusters,
        name=name,
    )


def by_sentence(documents: Iterable[Parsed]) -> Sequence[Parsed]:
    """Each sentence as a document of its own; clusters that span sentences are lost.

    Example:
        >>> from headatlas.interp.grammar import Grammar
        >>> [one] = by_sentence([from_grammar(Grammar(0).document(n_sentences=1))])
        >>> set(one.sentences)
        {0}
    """
    return [
        replace(
            passage(document, sentence, sentence + 1), name=f"{document.name}, sentence {sentence}"
        )
        for document in documents
        for sentence in sorted(set(document.sentences))
    ]


def passage(document: Parsed, first: int, stop: int) -> Parsed:
    """The sentences `first` to `stop` − 1 of a document; mentions elsewhere are lost.

    A cluster of two mentions or more of which one is left is dropped.

    Raises:
        InputError: the document has no sentence of these numbers.

    Example:
        >>> from headatlas.interp.grammar import Grammar
        >>> whole = from_grammar(Grammar(0).document(n_sentences=4))
        >>> set(passage(whole, 1, 3).sentences)
        {0, 1}
    """
    begin, end = (bisect_left(document.sentences, edge) for edge in (first, stop))
    if begin >= end:
        raise InputError(f"{document.name} has no sentence {first} to {stop - 1}.")
    first = document.sentences[begin]
    start = document.spans[begin][0]
    stops = max(b for _, b in document.spans[begin:end])
    clusters = []
    for cluster in document.clusters:
        kept = [m for m in cluster if first <= m.sentence < stop]
        if len(kept) >= min(2, len(cluster)):
            clusters.append(tuple(replace(m, sentence=m.sentence - first) for m in kept))
    return Parsed(
        text=document.text[start:stops],
        spans=tuple((a - start, b - start) for a, b in document.spans[begin:end]),
        sentences=tuple(s - first for s in document.sentences[begin:end]),
        heads=tuple(h - begin if h >= 0 else -1 for h in document.heads[begin:end]),
        relations=document.relations[begin:end],
        clusters=tuple(clusters),
        name=document.name,
        upos=document.upos[begin:end],
        group=document.group,
    )


def find_circle(heads: Sequence[int]) -> tuple[int, ...]:
    """Words each of which is the head of the one before it, and the first of the last; or none.

    Args:
        heads: index of each word's head; negative for a root.

    Example:
        >>> find_circle((-1, 2, 3, 1)), find_circle((1, -1, 1))
        ((1, 2, 3), ())
    """
    walk = [0] * len(heads)  # the walk towards a root that first met each word
    for start in range(len(heads)):
        word = start
        while word >= 0 and not walk[word]:
            walk[word] = start + 1
            word = heads[word]
        if word >= 0 and walk[word] == start + 1:
            circle = [word]
            while heads[circle[-1]] != word:
                circle.append(heads[circle[-1]])
            return tuple(circle)
    return ()


def _check_types(parsed: Parsed) -> None:
    for field in _TEXTS:
        value = getattr(parsed, field)
        if not isinstance(value, str):
            raise InputError(f"a document's {field} is a str; got {shown(value)}.")
        checked_text(value, "a document's name" if field == "name" else f"{parsed.name}: {field}")
    for field, kind in _ELEMENTS.items():
        values = getattr(parsed, field)
        if not isinstance(values, tuple):
            raise InputError(
                f"{parsed.name}: {field} is a tuple; got {type(values).__name__}. Make it one: "
                "tuple(…)."
            )
        _check_elements(parsed.name, field, values, kind)
        if kind is str:
            checked_text("".join(values), f"{parsed.name}: {field}")
    if not set(map(len, parsed.spans)) <= {2}:
        odd = next(span for span in parsed.spans if len(span) != 2)
        raise InputError(f"{parsed.name}: a span is a start and an end; got {shown(odd)}.")
    _check_elements(parsed.name, "spans", [*chain.from_iterable(parsed.spans)], int)
    mentions = [*chain.from_iterable(parsed.clusters)]
    _check_elements(parsed.name, "clusters", mentions, Mention)
    places = [place for m in mentions for place in (m.sentence, m.start, m.end, m.head)]
    _check_elements(parsed.name, "mentions", places, int)


def _check_elements(name: str, field: str, values: Sequence[Any], kind: type) -> None:
    if {*map(type, values)} <= {kind}:  # without a look at each: documents may be long
        return
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{name}: {field} hold {kind.__name__} values; got {shown(value)}.")


def _check_spans(parsed: Parsed) -> None:
    length, last = len(parsed.text), 0
    for word, (start, end) in enumerate(parsed.spans):
        if not 0 <= start < end <= length:
            raise InputError(
                f"{parsed.name}: word {word} has the span {shown((start, end))} in a text of "
                f"{length} characters."
            )
        if start < last:
            raise InputError(
                f"{parsed.name}: word {word} starts before word {word - 1}; give words in the "
                "order of the text."
            )
        last = start


def _check_sentences(parsed: Parsed) -> None:
    before = (-1, *parsed.sentences)
    if parsed.sentences[0] == 0 and {*map(sub, parsed.sentences, before)} <= {0, 1}:
        return
    for word, (number, last) in enumerate(zip(parsed.sentences, before, strict=False)):
        if number != last + 1 and (number != last or not word):
            wanted = f"{last} or {last + 1}" if word else "0"
            raise InputError(
                f"{parsed.name}: sentences are numbered in order from 0; word {word} is in "
                f"sentence {shown(number)} where {wanted} should stand."
            )


def _check_heads(parsed: Parsed) -> None:
    n, sentences = len(parsed.heads), parsed.sentences
    for word, head in enumerate(parsed.heads):
        if head == -1:
            continue
        if not 0 <= head < n or head == word:
            raise InputError(
                f"{parsed.name}: word {word} cannot have the head {shown(head)}; a head is "
                f"another of the {n} words, or -1 for a root."
            )
        if sentences[head] != sentences[word]:
            raise InputError(
                f"{parsed.name}: word {word} has its head, word {head}, in another sentence."
            )
    circle = find_circle(parsed.heads)
    if circle:
        raise InputError(
            f"{parsed.name}: words {shown(circle)} are each other's heads in a circle; heads must "
            "form trees."
        )


def _check_clusters(parsed: Parsed) -> None:
    words = Counter(parsed.sentences) if parsed.clusters else Counter[int]()
    for number, cluster in enumerate(parsed.clusters):
        if not cluster:
            raise InputError(f"{parsed.name}: cluster {number} has no mention; leave it out.")
        for one in cluster:
            size = words.get(one.sentence)
            if size is None:
                raise InputError(
                    f"{parsed.name}: cluster {number} has a mention in sentence "
                    f"{shown(one.sentence)}; sentences are 0 to {parsed.sentences[-1]}."
                )
            if not 0 <= one.start <= one.head < one.end <= size:
                raise InputError(
                    f"{parsed.name}: cluster {number} has the mention {shown(one)} in a "
                    f"sentence of {size} words; needed: 0 <= start <= head < end <= {size}."
                )
