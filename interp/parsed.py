"""A text with its grammar: words with their places in it, dependency trees, coreference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .errors import InputError
from .grammar import Document, Mention


@dataclass(frozen=True)
class Parsed:
    """One document and what is known of its words.

    Args:
        text: the document as a model reads it.
        spans: half-open character span of each word in `text`; words that cannot be told apart
            in it (Spanish `del` = `de` + `el`) share the span of the whole.
        sentences: index of each word's sentence, in order.
        heads: index of each word's head among the document's words; −1 for a root.
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
        InputError: the parts do not fit together.

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
        n = len(self.spans)
        lengths = {len(self.sentences), len(self.heads), len(self.relations), n}
        if len(lengths) > 1 or not n:
            raise InputError(
                f"{self.name}: spans, sentences, heads and relations must have one entry per word, "
                f"at least one; got {n}, {len(self.sentences)}, {len(self.heads)} and "
                f"{len(self.relations)}."
            )
        if self.upos and len(self.upos) != n:
            raise InputError(f"{self.name}: {len(self.upos)} parts of speech for {n} words.")
        for word, (start, end) in enumerate(self.spans):
            if not 0 <= start < end <= len(self.text):
                raise InputError(
                    f"{self.name}: word {word} has the span {start}..{end} in a text of "
                    f"{len(self.text)} characters."
                )
            head = self.heads[word]
            if not -1 <= head < n or head == word:
                raise InputError(f"{self.name}: word {word} cannot have the head {head}.")
            if head >= 0 and self.sentences[head] != self.sentences[word]:
                raise InputError(f"{self.name}: word {word} has its head in another sentence.")

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
    words = [w for w, s in enumerate(document.sentences) if first <= s < stop]
    if not words:
        raise InputError(f"{document.name} has no sentence {first} to {stop - 1}.")
    begin, end = words[0], words[-1] + 1
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
