"""Parsed documents as the tokens of a model, with the word that each token belongs to."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from ...interp.alignment import Aligned, align
from ...interp.errors import InputError
from ...interp.parsed import Parsed, passage
from ...interp.tokens import tokenize
from ..arguments import whole_number

SET = "treebank"
"""What tables and files call a set of parsed documents."""

_NO_WORD = -1


@dataclass(frozen=True, eq=False)
class WordPrompts:
    """Parsed documents as token sequences, and the word of each token.

    Args:
        documents: what each sequence holds: a document, a part of one, or a sentence.
        ids: token ids, [sequence, pos].
        mask: true on real tokens, [sequence, pos]; padding may stand on either side.
        word_of: index of each token's word in its document, −1 for special tokens, padding and
            tokens between words, [sequence, pos].
        unit: what each sequence was cut from, counted from 0, [sequence]; sequences of one unit
            are resampled together.
        bos: whether each sequence starts with a special token (BOS or CLS).
        causal: whether the model's queries see earlier keys only.
        left_out: sentences that were longer than a sequence may be.

    Raises:
        InputError: the parts do not fit together.
    """

    documents: tuple[Parsed, ...]
    ids: Int[np.ndarray, "sequence pos"]
    mask: Bool[np.ndarray, "sequence pos"]
    word_of: Int[np.ndarray, "sequence pos"]
    unit: Int[np.ndarray, " sequence"]
    bos: bool
    causal: bool = True
    left_out: int = 0

    def __post_init__(self) -> None:
        shapes = {self.ids.shape, self.mask.shape, self.word_of.shape}
        n = len(self.documents)
        if len(shapes) > 1 or not n or self.ids.shape[0] != n or len(self.unit) != n:
            raise InputError(
                "ids, mask and word_of have one shape [sequence, pos], with a document and a unit "
                f"for each sequence; got {self.ids.shape}, {self.mask.shape}, "
                f"{self.word_of.shape}, {n} documents and {len(self.unit)} units."
            )
        if set(self.unit.tolist()) != set(range(int(self.unit.max()) + 1)):
            raise InputError("units are numbered from 0 without a gap.")
        if (self.word_of[~self.mask] != _NO_WORD).any():
            raise InputError("padding has a word; word_of is −1 there.")
        most = np.array([len(document.spans) for document in self.documents])
        if (self.word_of >= most[:, None]).any():
            raise InputError("word_of names a word that its document does not have.")

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def n_units(self) -> int:
        """How many documents there are for the bootstrap."""
        return int(self.unit.max()) + 1

    @cached_property
    def first(self) -> Int[np.ndarray, " sequence"]:
        """Column of each sequence's first token."""
        return self.mask.argmax(1)

    @cached_property
    def n_tokens(self) -> Int[np.ndarray, "sequence word"]:
        """How many tokens each word has; 0 beyond a document's words."""
        counts = np.zeros((len(self), max(len(d.spans) for d in self.documents)), np.int64)
        rows, columns = np.nonzero(self.word_of >= 0)
        np.add.at(counts, (rows, self.word_of[rows, columns]), 1)
        return counts

    @cached_property
    def last_token(self) -> Int[np.ndarray, "sequence word"]:
        """Column of each word's last token; −1 without one."""
        last = np.full(self.n_tokens.shape, -1, np.int64)
        rows, columns = np.nonzero(self.word_of >= 0)  # columns ascend: the last one stays
        last[rows, self.word_of[rows, columns]] = columns
        return last

    @cached_property
    def usable(self) -> Bool[np.ndarray, "sequence word"]:
        """Words that instances may name: with tokens of their own, sharing their span with none."""
        usable = self.n_tokens > 0
        for sequence, document in enumerate(self.documents):
            spans, counts = np.unique(np.array(document.spans), axis=0, return_counts=True)
            if (counts > 1).any():
                shared = {tuple(span) for span in spans[counts > 1].tolist()}
                for word, span in enumerate(document.spans):
                    usable[sequence, word] &= span not in shared
        return usable

    @cached_property
    def candidate(self) -> Bool[np.ndarray, "sequence word"]:
        """Words that a head may choose: with a token that is not, in a decoder, the first one."""
        counts = self.n_tokens.copy()
        if self.causal:
            rows = np.arange(len(self))
            word = self.word_of[rows, self.first]
            counts[rows[word >= 0], word[word >= 0]] -= 1
        return counts > 0

    @property
    def n_words(self) -> int:
        """Words of all sequences."""
        return sum(len(document.spans) for document in self.documents)

    @property
    def unaligned(self) -> int:
        """Words that are left out because no token is theirs alone."""
        return self.n_words - int(self.usable.sum())

    def visible(self, sequence: int, query: int, key: int) -> bool:
        """Whether a link from one word to another can show in the attention.

        Both have tokens of their own, they differ, and in a decoder the key comes first but does
        not stand on the first position alone.
        """
        usable = self.usable[sequence]
        if query == key or not (usable[query] and usable[key]):
            return False
        return not self.causal or (key < query and bool(self.candidate[sequence, key]))


def word_prompts(
    tokenizer: Any,
    documents: Iterable[Parsed],
    *,
    sentences: bool = False,
    seq_len: int | None = None,
    prepend_bos: bool | None = None,
    causal: bool = True,
    units: Sequence[Hashable] | None = None,
) -> WordPrompts:
    """Tokenize parsed documents, keeping the word of each token.

    Each document becomes one sequence, or as many as it takes to cut it at the ends of sentences
    into parts of at most `seq_len` tokens. Links between parts are lost. A sentence that alone is
    longer is left out and counted.

    Args:
        tokenizer: a fast tokenizer.
        documents: from `read_conllu`, `read_mentions`, `read_winogender`, `parse_text` or
            `from_grammar`.
        sentences: make each sentence a sequence of its own; those of one document still count as
            one in the bootstrap.
        seq_len: tokens per sequence, special ones included; None: no limit.
        prepend_bos: True, False, or None for the tokenizer's habit. Without a BOS, the first token
            of a sequence is what a decoder's heads rest on, and links to it are left out.
        causal: whether the model's queries see earlier keys only.
        units: what each document counts with in the bootstrap; None: those of one `group` together,
            any other with itself.

    Raises:
        InputError: no documents, a slow tokenizer, a length that leaves no room, or nothing but
            sentences that are too long.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.interp.grammar import Grammar
        >>> from headatlas.interp.parsed import from_grammar
        >>> documents = [from_grammar(d) for d in Grammar(0).documents(3)]
        >>> prompts = word_prompts(ha.load("tiny")[1], documents, sentences=True)
        >>> len(prompts) == sum(len(d.first_words) for d in documents), prompts.n_units
        (True, 3)
    """
    given = list(documents)
    _check(given, units, seq_len)
    numbers = _numbered(_units(given) if units is None else units)
    around = _around(tokenizer, prepend_bos)
    room = None if seq_len is None else seq_len - sum(map(len, around))
    if room is not None and room < 1:
        raise InputError(f"seq_len={seq_len} leaves no room for text beside the special tokens.")
    parts: list[tuple[Parsed, Aligned, int]] = []
    left_out = 0
    for document, unit in zip(given, numbers, strict=True):
        for part, aligned in _parts(tokenizer, document, room, sentences):
            if aligned is None:
                left_out += 1
            else:
                parts.append((part, aligned, unit))
    if not parts:
        raise InputError(
            f"every sentence has more than seq_len={seq_len} tokens; allow longer sequences."
        )
    return _assemble(tokenizer, parts, around, causal=causal, left_out=left_out)


def _check(documents: list[Parsed], units: Sequence[Hashable] | None, seq_len: Any) -> None:
    wrong = next((d for d in documents if not isinstance(d, Parsed)), None)
    if not documents or wrong is not None:
        got = "none" if wrong is None else type(wrong).__name__
        raise InputError(f"documents are Parsed values, at least one; got {got}.")
    if units is not None and len(units) != len(documents):
        raise InputError(f"{len(units)} units for {len(documents)} documents; give one for each.")
    if seq_len is not None:
        whole_number("seq_len", seq_len, 1)


def _units(documents: list[Parsed]) -> list[Hashable]:
    """The group of each document, or its place where it has none."""
    return [document.group or place for place, document in enumerate(documents)]


def _numbered(units: Sequence[Hashable]) -> list[int]:
    known: dict[Hashable, int] = {}
    return [known.setdefault(unit, len(known)) for unit in units]


def _around(tokenizer: Any, prepend_bos: bool | None) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    probe = "a"
    whole = tokenize(tokenizer, probe, prepend_bos=prepend_bos).ids[0].tolist()
    body = align(tokenizer, probe, [(0, 1)]).ids.tolist()
    start = next(i for i in range(len(whole)) if whole[i : i + len(body)] == body)
    return whole[:start], whole[start + len(body) :]


def _parts(
    tokenizer: Any, document: Parsed, room: int | None, sentences: bool
) -> Iterator[tuple[Parsed, Aligned | None]]:
    """A document in parts that fit, with their tokens; without for a sentence that does not."""
    numbers = sorted(set(document.sentences))
    lengths: list[int] = []  # of sentences that may stand together
    if not sentences:
        whole = align(tokenizer, document.text, document.spans)
        if room is None or len(whole.ids) <= room:
            yield document, whole
            return
        lengths = _lengths(whole, document, numbers)
    at = 0
    while at < len(numbers):
        stop = at + 1
        while stop < len(lengths) and sum(lengths[at : stop + 1]) <= (room or 0):
            stop += 1
        part, aligned = _aligned(tokenizer, document, numbers[at], numbers[stop - 1] + 1)
        while room is not None and len(aligned.ids) > room and stop > at + 1:
            stop -= 1  # cut off, a sentence may take a token more than within its document
            part, aligned = _aligned(tokenizer, document, numbers[at], numbers[stop - 1] + 1)
        fits = len(aligned.ids) > 0 and (room is None or len(aligned.ids) <= room)
        yield part, aligned if fits else None
        at = stop


def _lengths(aligned: Aligned, document: Parsed, numbers: list[int]) -> list[int]:
    """Tokens of each sentence."""
    own = np.array(document.sentences)[aligned.words[aligned.words >= 0]]
    return [int((own == number).sum()) for number in numbers]


def _aligned(tokenizer: Any, document: Parsed, first: int, stop: int) -> tuple[Parsed, Aligned]:
    part = passage(document, first, stop)
    return part, align(tokenizer, part.text, part.spans)


def _assemble(
    tokenizer: Any,
    parts: list[tuple[Parsed, Aligned, int]],
    around: tuple[list[int], list[int]],
    *,
    causal: bool,
    left_out: int,
) -> WordPrompts:
    before, after = around
    width = max(len(aligned.ids) for _, aligned, _ in parts) + len(before) + len(after)
    filler = 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ids = np.full((len(parts), width), filler, np.int64)
    words = np.full((len(parts), width), _NO_WORD, np.int64)
    mask = np.zeros((len(parts), width), bool)
    for row, (_, aligned, _) in enumerate(parts):
        start, stop = len(before), len(before) + len(aligned.ids)
        ids[row, : stop + len(after)] = [*before, *aligned.ids.tolist(), *after]
        words[row, start:stop] = aligned.words
        mask[row, : stop + len(after)] = True
    kept = [unit for _, _, unit in parts]
    return WordPrompts(
        documents=tuple(part for part, _, _ in parts),
        ids=ids,
        mask=mask,
        word_of=words,
        unit=np.array(_numbered(kept)),
        bos=bool(before),
        causal=causal,
        left_out=left_out,
    )
