"""English-like text with gold trees and coreference, made from a seed.

Documents speak of a few people and things of one topic. Their sentences are projective trees under
Universal Dependencies relations (with the subtypes `nsubj:pass`, `aux:pass`, `obl:agent`,
`nmod:poss`, `acl:relcl`, `compound:prt`), and their pronouns agree and can be resolved: a pronoun
stands only for the entity mentioned last among those that would take the same one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..errors import InputError
from .clauses import Clauses
from .lexicon import TOPICS
from .nominals import Discourse
from .sentences import Sentences
from .tree import Entity, linearise
from .values import Document, Mention, Sentence

__all__ = ["TOPICS", "Document", "Grammar", "Mention", "Sentence", "natural_text"]


class Grammar:
    """An endless, seeded source of documents.

    Document number n depends on the seed, on n and on the number of sentences asked for, not on
    the documents before it.

    Args:
        seed: any integer.

    Example:
        >>> document = Grammar(0).document(n_sentences=3)
        >>> len(document.sentences)
        3
        >>> document == Grammar(0).document(n_sentences=3)
        True
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._made = 0

    def document(self, n_sentences: int | None = None) -> Document:
        """The next document.

        Args:
            n_sentences: its length; None draws 5 to 14.

        Raises:
            InputError: `n_sentences` is below 1.
        """
        if n_sentences is not None and n_sentences < 1:
            raise InputError(
                f"a document has at least one sentence; got n_sentences={n_sentences}."
            )
        rng = random.Random(f"{self.seed}/{self._made}")
        self._made += 1
        return _write(rng, n_sentences or rng.randint(5, 14))

    def documents(self, n: int) -> Iterator[Document]:
        """The next `n` documents, made one by one."""
        for _ in range(n):
            yield self.document()


def natural_text(n_words: int, *, seed: int) -> str:
    """Text of exactly `n_words` words (as `str.split` counts them) from documents on all topics.

    Args:
        n_words: length in words; the last document is cut off there.
        seed: the grammar's.

    Returns:
        Documents separated by an empty line.

    Raises:
        InputError: `n_words` is below 1.

    Example:
        >>> len(natural_text(100, seed=3).split())
        100
    """
    if n_words < 1:
        raise InputError(f"natural text has at least one word; got n_words={n_words}.")
    grammar, lines, missing = Grammar(seed), [], n_words
    while missing > 0:
        for line in (*grammar.document().text.split("\n"), ""):
            words = line.split()[:missing]
            missing -= len(words)
            lines.append(" ".join(words))
    return "\n".join(lines).rstrip("\n")


def _write(rng: random.Random, n_sentences: int) -> Document:
    topic = rng.choice(TOPICS)
    discourse = Discourse(rng, topic)
    writer = Sentences(Clauses(discourse, rng.choice(("past", "past", "present"))))
    sentences: list[Sentence] = []
    clusters: dict[Entity, list[Mention]] = {}
    paragraphs = [0]
    for index in range(n_sentences):
        discourse.sentence = index
        if index - paragraphs[-1] >= 3 and rng.random() < 0.12:
            paragraphs.append(index)
        sentence, mentions = linearise(writer.sentence(), index)
        sentences.append(sentence)
        for entity, mention in mentions:
            clusters.setdefault(entity, []).append(mention)
    repeated = tuple(tuple(found) for found in clusters.values() if len(found) > 1)
    return Document(tuple(sentences), repeated, topic.name, tuple(paragraphs))
