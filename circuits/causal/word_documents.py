"""Parsed documents for causal tests, and the behaviours of kinds between words on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from ...interp.parsed import Parsed, passage
from ...interp.probes import MIN_PROMPTS, Prompts
from ...interp.tokens import context_length
from ..battery import Battery
from ..behaviour import Behaviour, has_next
from ..words.kind import WordKind
from ..words.prompts import SET, WordPrompts
from .decoder import check_decoder
from .documents import DOCUMENTS, apart

SENTENCES_EACH = 4
"""Sentences taken of a document; on average over all of them, as few documents may be long."""

WORD_LEN = 64
"""Tokens of a sequence, where the model's context allows."""


@dataclass(frozen=True, eq=False)
class WordDocuments:
    """Parsed documents, as words and as the sequences of a sweep.

    Args:
        words: the words of each token.
        prompts: the same sequences; the longest ends where the second longest does, so that each
            has another no shorter, as `resample` needs.
    """

    words: WordPrompts
    prompts: Prompts

    @property
    def unit(self) -> Int[np.ndarray, " sequence"]:
        """The document that each sequence was cut from."""
        return self.words.unit

    @property
    def n_sentences(self) -> int:
        """Sentences in all."""
        return sum(len(document.first_words) for document in self.words.documents)

    def rows(self, kind: WordKind) -> Bool[np.ndarray, "sequence pos"]:
        """Last tokens of the query words of a kind's visible links, where a token follows."""
        words = self.words
        marked = np.zeros(words.ids.shape, dtype=bool)
        for sequence, document in enumerate(words.documents):
            for query, keys in kind.linked(document):
                if any(words.visible(sequence, query, key) for key in keys):
                    marked[sequence, words.last_token[sequence, query]] = True
        return marked[:, : self.prompts.ids.shape[1]] & has_next(self.prompts)


def word_documents(
    model: Any,
    tokenizer: Any,
    *,
    treebank: str | Path | Sequence[Parsed] | None = None,
    prompts: int = DOCUMENTS,
    seq_len: int | None = None,
    prepend_bos: bool | None = None,
    seed: int = 0,
) -> WordDocuments:
    """Parsed documents for causal tests: few sentences each, cut to short sequences.

    Without a treebank they come from the built-in grammar, with another seed than those of
    `classify`. Of a treebank a random half is taken where that leaves 16 documents, else all of it.
    The first 4 sentences of each count, until there are 4 · `prompts` in all; they are cut at
    the ends of sentences to sequences of at most `seq_len` tokens, and links between sequences are
    lost.

    Args:
        model: a transformers decoder with a language-model head.
        tokenizer: its tokenizer, a fast one.
        treebank: parsed documents, or the path of a CoNLL-U file; None: the built-in grammar.
        prompts: how many documents of the grammar, at least 16; of a treebank's, as many as have
            4 times as many sentences.
        seq_len: tokens per sequence; None: 64, or the model's context.
        prepend_bos: True, False, or None for the tokenizer's habit.
        seed: of the draw.

    Raises:
        InputError: the model is no decoder, or numbers and documents do not fit it.

    Example:
        >>> import headatlas as ha
        >>> found = word_documents(*ha.load("tiny"), prompts=16)
        >>> found.words.n_units, found.n_sentences, found.prompts.ids.shape[1] <= WORD_LEN
        (16, 64, True)
    """
    check_decoder(model)
    if seq_len is None:
        seq_len = min(WORD_LEN, context_length(model) or WORD_LEN)
    every = Battery(prompts, seq_len, None, prepend_bos, 0, apart(seed), treebank)
    documents = every.documents
    order = np.random.default_rng((seed, 33)).permutation(len(documents))
    if treebank is not None and len(documents) >= 2 * MIN_PROMPTS:
        order = order[: (len(order) + 1) // 2]
    chosen = _beginnings([documents[place] for place in order], SENTENCES_EACH * every.n_prompts)
    own = Battery(prompts, seq_len, None, prepend_bos, 0, 0, chosen)
    words = own.word_prompts(model, tokenizer, causal=True)
    return WordDocuments(words, _as_prompts(words))


def _beginnings(documents: Sequence[Parsed], limit: int) -> tuple[Parsed, ...]:
    """The first sentences of documents, of as many as stay within a number of sentences."""
    found, total = [], 0
    for document in documents:
        numbers = sorted(set(document.sentences))[: min(SENTENCES_EACH, limit - total)]
        if not numbers:
            break
        found.append(passage(document, numbers[0], numbers[-1] + 1))
        total += len(numbers)
    return tuple(found)


def _as_prompts(words: WordPrompts) -> Prompts:
    mask, length = words.mask.copy(), words.mask.sum(1)
    if len(length) > 1:
        *_, second, longest = np.argsort(length, kind="stable")
        mask[longest, words.first[longest] + length[second] :] = False
    # select cuts what is now padding in every sequence
    return Prompts(SET, words.ids, mask, bos=words.bos).select(slice(None))


def word_behaviour(kind: WordKind, documents: WordDocuments) -> Behaviour | str:
    """The behaviour of a kind between words on parsed documents, or why there is none.

    It is the mean loss of the token after each query word with a visible link: the word's last
    token is the row that attends.

    Args:
        kind: the kind.
        documents: what it is measured on.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.circuits.words.syntax import syntactic_kind
        >>> found = word_documents(*ha.load("tiny"), prompts=16)
        >>> word_behaviour(syntactic_kind("nsubj", "to_dependent"), found).name
        'syntactic_nsubj_to_dependent_loss'
        >>> word_behaviour(syntactic_kind("orphan", "to_head"), found)
        'its words occur in 0 of 16 parsed documents, and the bootstrap needs 16'
    """
    rows = documents.rows(kind)
    having = len(set(documents.unit[rows.any(1)].tolist()))
    if having < MIN_PROMPTS:
        return (
            f"its words occur in {having} of {documents.words.n_units} parsed documents, and the "
            f"bootstrap needs {MIN_PROMPTS}"
        )
    return Behaviour(
        f"{kind.name.replace('.', '_')}_loss",
        f"Mean loss at words that {kind.name} links to an earlier one, on parsed documents.",
        documents.prompts,
        lambda _: rows,
    )
