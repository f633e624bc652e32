"""Prompt sets made for one kind of head each: repeated bigrams, and lists of words of two topics.

Both are balanced by construction, so that a head which does something simpler scores nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np
from jaxtyping import Int

from .encode import encode
from .errors import InputError
from .grammar import TOPICS
from .probes import Prompts, fresh_tokens
from .tokens import bos_token

_NGRAM_LENGTH, _TOPIC_LENGTH = 128, 64  # tokens per document: they keep the battery cheap
_PAIRS = 6  # word pairs per document of two topics
_FEWEST_PAIRS = 3


def ngram_prompts(
    pool: Int[np.ndarray, " ids"],
    n_prompts: int,
    seq_len: int,
    *,
    bos_id: int | None = None,
    seed: int = 0,
    causal: bool = True,
) -> Prompts:
    """Random tokens in which every repeated bigram has a rival that shares its last token alone.

    A group is `x y u` and `w y v` in random order, and later one of the two again: at the last
    `y` one key follows an earlier match of two tokens, one follows a match of one. Groups are
    shuffled into each other with up to two random tokens between their parts. A document has at
    most 128 tokens.

    Args:
        pool: ids to draw from (`token_pool`), without replacement as long as it lasts.
        n_prompts: number of documents.
        seq_len: tokens per document, BOS included.
        bos_id: id to start each document with; None for no BOS.
        seed: seed of the draw.
        causal: passed on to the label builders.

    Example:
        >>> prompts = ngram_prompts(np.arange(1000), 2, 64, bos_id=1000)
        >>> prompts.name, prompts.ids.shape
        ('ngrams', (2, 64))

    Reference:
        Akyürek 2024 (n-gram heads).
    """
    room = min(seq_len, _NGRAM_LENGTH) - (bos_id is not None)
    rng = np.random.default_rng((seed, 7))
    rows = []
    for _ in range(n_prompts):
        body = _groups(room, fresh_tokens(pool, rng), rng)
        rows.append(([] if bos_id is None else [bos_id]) + body[:room])
    ids = np.array(rows, dtype=np.int64)
    return Prompts("ngrams", ids, np.ones_like(ids, bool), bos_id is not None, causal=causal)


def _groups(room: int, fresh: Iterator[int], rng: np.random.Generator) -> list[int]:
    """Groups of three parts, nine tokens, shuffled into each other two to four at a time."""
    body: list[int] = []
    while len(body) < room:
        groups = []
        # as many as still fit whole, so that no group lacks the part that is scored
        for _ in range(max(1, min(int(rng.integers(2, 5)), (room - len(body)) // 12))):
            x, w, y, u, v = (next(fresh) for _ in range(5))
            parts = [[x, y, u], [w, y, v]]
            if rng.random() < 0.5:
                parts.reverse()
            groups.append([*parts, parts[int(rng.integers(2))]])
        turns = rng.permutation(np.repeat(np.arange(len(groups)), 3))
        for group in turns.tolist():
            body += groups[group].pop(0)
            body += [next(fresh) for _ in range(int(rng.integers(0, 3)))]
    return body


def topic_prompts(
    tokenizer: Any,
    n_prompts: int,
    seq_len: int,
    *,
    prepend_bos: bool | None = None,
    seed: int = 0,
    causal: bool = True,
) -> Prompts:
    """Lists of nouns of two topics in random order, `…, rope, onion, boat, kettle, …`.

    Each noun of one topic has a partner in the other, which has as many tokens and, where the
    tokenizer merges by frequency, is about as common. Both members of a pair stand in every round
    of a list, in an order drawn anew, so that neither position nor frequency tells the topics
    apart. A document has at most 64 tokens. Marks: `topic` (0 or 1), `word` and `partner` (number
    of the word and of its partner in the document), and `end` (1 on a word's last token), −1 on
    other tokens.

    Args:
        tokenizer: turns words into tokens.
        n_prompts: number of documents.
        seq_len: tokens per document, BOS included.
        prepend_bos: True, False, or None for the tokenizer's habit.
        seed: seed of the draw.
        causal: passed on to the label builders.

    Raises:
        InputError: the tokenizer spells too few of the words.

    Example:
        >>> from headatlas.interp.load import load
        >>> prompts = topic_prompts(load("tiny")[1], 2, 48)
        >>> prompts.name, sorted(prompts.marks)
        ('topics', ['end', 'partner', 'topic', 'word'])

    Reference:
        Ren 2024 (semantic induction heads) asks what attention joins by meaning; the balanced
        lists are this project's.
    """
    spelling = _Spelling(tokenizer)
    choices = [
        (first, second)
        for first, second in permutations(range(len(TOPICS)), 2)
        if len(spelling.pairs(first, second)) >= _FEWEST_PAIRS
    ]
    if not choices:
        raise InputError(
            "this tokenizer spells too few English nouns to make lists of two topics, which the "
            "kind semantic is scored on; leave that kind out (kinds=…)."
        )
    bos = bos_token(tokenizer, prepend_bos)
    start = [*([] if bos is None else [bos]), *spelling.lead]
    length = min(seq_len, _TOPIC_LENGTH)
    rng = np.random.default_rng((seed, 8))
    rows = []
    for _ in range(n_prompts):
        chosen = choices[int(rng.integers(len(choices)))]
        rows.append(_list(spelling.pairs(*chosen), start, spelling.comma, length, rng))
    ids, topic, word, partner, end = (
        np.array(array, np.int64) for array in zip(*rows, strict=True)
    )
    marks = {"topic": topic, "word": word, "partner": partner, "end": end}
    mask = np.ones_like(ids, bool)
    return Prompts("topics", ids, mask, bos is not None, causal=causal, marks=marks)


@dataclass(frozen=True)
class _Spelling:
    """The grammar's nouns as tokens, each after a comma."""

    tokenizer: Any

    @cached_property
    def lead(self) -> list[int]:
        return encode(self.tokenizer, ["List"])[0]

    @cached_property
    def comma(self) -> list[int]:
        return encode(self.tokenizer, ["List,"])[0][len(self.lead) :]

    @cached_property
    def _nouns(self) -> list[list[tuple[int, ...]]]:
        """Distinct spellings of each topic's own nouns, most common first."""
        shared = Counter(noun for topic in TOPICS for noun in {*topic.roles, *topic.things})
        before = [*self.lead, *self.comma]
        special = {*self.tokenizer.all_special_ids}
        topics = []
        for topic in TOPICS:
            own = [noun for noun in (*topic.roles, *topic.things) if shared[noun] == 1]
            spelt = encode(self.tokenizer, [f"List, {noun}" for noun in own])
            after = {tuple(ids[len(before) :]) for ids in spelt if ids[: len(before)] == before}
            usable = [ids for ids in after if ids and not special.intersection(ids)]
            topics.append(sorted(usable, key=lambda ids: (len(ids), ids[-1], ids)))
        return topics

    def pairs(self, first: int, second: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Nouns of two topics, matched in number of tokens and then in order of their ids."""
        found = []
        sides = [self._nouns[first], self._nouns[second]]
        other = set(sides[1])
        for length in range(1, 4):
            ours, theirs = (
                [ids for ids in side if len(ids) == length and not (k == 0 and ids in other)]
                for k, side in enumerate(sides)
            )
            found += _matched(ours, theirs)
        return found


def _matched(ours: Sequence[Any], theirs: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """Pairs of two sorted lists; of the longer one those at even steps."""
    n = min(len(ours), len(theirs))
    spread = [
        [side[i] for i in np.linspace(0, len(side) - 1, n).round().astype(int).tolist()]
        if n
        else []
        for side in (ours, theirs)
    ]
    return zip(*spread, strict=True)


def _list(
    pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    start: Sequence[int],
    comma: Sequence[int],
    length: int,
    rng: np.random.Generator,
) -> list[list[int]]:
    """One document: ids, topic, word, partner, end."""
    chosen = rng.permutation(len(pairs))[:_PAIRS].tolist()
    columns: list[list[int]] = [list(start), *([-1] * len(start) for _ in range(4))]
    while len(columns[0]) < length:
        for number in rng.permutation(2 * len(chosen)).tolist():
            pair, topic = divmod(number, 2)
            spelt = pairs[chosen[pair]][topic]
            columns[0] += [*comma, *spelt]
            for column, value in enumerate((topic, number, number ^ 1), start=1):
                columns[column] += [*([-1] * len(comma)), *([value] * len(spelt))]
            columns[4] += [*([-1] * len(comma)), *([0] * (len(spelt) - 1)), 1]
    return [column[:length] for column in columns]
