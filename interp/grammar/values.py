"""What the grammar makes: sentences with trees, mentions, documents with their text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

_NO_SPACE_BEFORE = frozenset({",", ".", "?", "!", ";", ":", "'s", "'"})


@dataclass(frozen=True)
class Sentence:
    """One sentence and its dependency tree.

    Args:
        words: the words and punctuation marks, in order.
        heads: for each word the index of its head in the sentence, −1 for the root.
        relations: for each word its Universal Dependencies relation to its head
            (`nsubj`, `obj`, `det`, `acl:relcl`, …; the root has `root`).

    Example:
        >>> Sentence(("It", "fell", "."), (1, -1, 1), ("nsubj", "root", "punct")).text
        'It fell.'
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]

    @cached_property
    def word_spans(self) -> tuple[tuple[int, int], ...]:
        """Half-open character span of each word in `text`."""
        return self._layout[1]

    @property
    def text(self) -> str:
        """The words written as a person would.

        One space between two words, but none before `, . ? ! ; :` and `'s`, none inside a pair of
        double quotes next to the quotes (the first `"` of a sentence opens, the next one closes).
        """
        return self._layout[0]

    @cached_property
    def _layout(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        text, spans, glued, inside = "", [], True, False
        for word in self.words:
            closes = word == '"' and inside
            if not (glued or closes or word in _NO_SPACE_BEFORE):
                text += " "
            spans.append((len(text), len(text) + len(word)))
            text += word
            glued = word == '"' and not inside
            inside ^= word == '"'
        return text, tuple(spans)


@dataclass(frozen=True, order=True)
class Mention:
    """Words that name someone or something.

    Args:
        sentence: index of the sentence in its document.
        start: first word.
        end: one past the last word.
        head: the word that heads the mention in the tree, `start <= head < end`.
    """

    sentence: int
    start: int
    end: int
    head: int


@dataclass(frozen=True)
class Document:
    """Sentences about one topic, and which of their words name the same thing.

    Args:
        sentences: in order.
        clusters: mentions of one person or thing each, two or more, in text order.
        topic: name of the topic.
        paragraphs: index of the first sentence of each paragraph; the first is 0.
    """

    sentences: tuple[Sentence, ...]
    clusters: tuple[tuple[Mention, ...], ...]
    topic: str
    paragraphs: tuple[int, ...] = (0,)

    @property
    def text(self) -> str:
        """The sentences joined by a space, or by a newline where a paragraph begins."""
        return "".join(
            self._separator(index) + sentence.text for index, sentence in enumerate(self.sentences)
        )

    @cached_property
    def word_spans(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Half-open character spans in `text`, by sentence and word.

        Example:
            >>> from headatlas.interp.grammar import Grammar
            >>> document = Grammar(0).document()
            >>> start, end = document.word_spans[1][0]
            >>> document.text[start:end] == document.sentences[1].words[0]
            True
        """
        spans, offset = [], 0
        for index, sentence in enumerate(self.sentences):
            offset += len(self._separator(index))
            spans.append(tuple((offset + a, offset + b) for a, b in sentence.word_spans))
            offset += len(sentence.text)
        return tuple(spans)

    def _separator(self, index: int) -> str:
        if index == 0:
            return ""
        return "\n" if index in self.paragraphs else " "
