"""A text with its grammar: words with their places in it, dependency trees, coreference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
        clusters: mentions of one person or thing each, two or more, in text order; the words of a
            `Mention` count within its sentence.
        name: how messages call the document.

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

    def __post_init__(self) -> None:
        n = len(self.spans)
        lengths = {len(self.sentences), len(self.heads), len(self.relations), n}
        if len(lengths) > 1 or not n:
            raise InputError(
                f"{self.name}: spans, sentences, heads and relations must have one entry per word, "
                f"at least one; got {n}, {len(self.sentences)}, {len(self.heads)} and "
                f"{len(self.relations)}."
            )
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
        _cut(document, sentence)
        for document in documents
        for sentence in sorted(set(document.sentences))
    ]


def _cut(document: Parsed, sentence: int) -> Parsed:
    words = [w for w, s in enumerate(document.sentences) if s == sentence]
    first, last = words[0], words[-1]
    start = document.spans[first][0]
    end = max(document.spans[w][1] for w in words)
    clusters = []
    for cluster in document.clusters:
        kept = [m for m in cluster if m.sentence == sentence]
        if len(kept) > 1:
            clusters.append(tuple(Mention(0, m.start, m.end, m.head) for m in kept))
    return Parsed(
        text=document.text[start:end],
        spans=tuple((a - start, b - start) for a, b in document.spans[first : last + 1]),
        sentences=(0,) * len(words),
        heads=tuple(h - first if h >= 0 else -1 for h in document.heads[first : last + 1]),
        relations=document.relations[first : last + 1],
        clusters=tuple(clusters),
        name=f"{document.name}, sentence {sentence}",
    )
