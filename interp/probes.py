"""Prompt sets: the texts on which heads are scored.

Three sets carry most of the default battery. `random_prompts` repeat spans of random tokens with
random lengths, fillers and gaps, so that no fixed offset predicts where the earlier copy stands.
`classic_prompts` are the field's [BOS] + S + S, kept for the legacy verdicts only.
`natural_prompts` are windows of running text. Sets made for one kind of head are in
`made_prompts`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool, Float, Int

from .errors import InputError
from .frequency import frequency_ranks, sentence_numbers
from .grammar import natural_text
from .tokens import Tokens, windows

MIN_PROMPTS = 16
"""Fewer documents than this leave the bootstrap over documents without meaning."""

MIN_TOKENS = 16
"""Shorter documents leave too few rows to score."""

PROMPT_SETS = ("random", "natural", "classic", "ngrams", "topics")
"""Names of the sets that the default battery makes."""

SIGNAL_SET = "signals"
"""The one set of a model that reads images or sounds."""

TEXT_SETS = ("natural", "topics")
"""Those of them that are made of words, and so need a tokenizer."""

# Sennrich 2016: BPE ids follow merge order, so the ends of the id range hold the most and the
# least common tokens; both have attention habits of their own.
_COMMON_SHARE, _RARE_SHARE = 0.1, 0.1


@dataclass(frozen=True, eq=False)
class Prompts:
    """A batch of documents of tokens; what the label builders of the kinds of head see.

    Args:
        name: the set's name, one of `PROMPT_SETS`, or `SIGNAL_SET`.
        ids: token ids, [document, pos].
        mask: true on real tokens, [document, pos]; padding may stand on either side.
        bos: whether each document starts with a BOS (or CLS) token, the usual sink column.
        delimiter: true on punctuation and newlines, [document, pos]; None without a tokenizer.
        causal: whether the model's queries see earlier keys only.
        marks: what else is known of each token, whole numbers [document, pos] by name: `sentence`
            and `rarity` on natural text, `topic`, `word` and `partner` on the set `topics`, `row`
            and `column` of tokens in an image (see `token_cells`).
        numbers: each document's number in its set, which its random draws follow; None counts
            from 0.
        counted: true on tokens whose prediction of the next one counts, in losses and in training,
            [document, pos]; None: all.
        signal: the images or sounds that the model reads instead of ids, [document, …].
    """

    name: str
    ids: Int[np.ndarray, "document pos"]
    mask: Bool[np.ndarray, "document pos"]
    bos: bool
    delimiter: Bool[np.ndarray, "document pos"] | None = None
    causal: bool = True
    marks: Mapping[str, Int[np.ndarray, "document pos"]] = field(default_factory=dict)
    numbers: Int[np.ndarray, " document"] | None = None
    counted: Bool[np.ndarray, "document pos"] | None = None
    signal: Float[np.ndarray, "document ..."] | None = None

    def __post_init__(self) -> None:
        ids, mask = self.ids, self.mask
        if ids.ndim != 2 or ids.shape != mask.shape or not len(ids):
            raise InputError(
                f"prompts are ids and mask of one shape [document, pos]; got {ids.shape} and "
                f"{mask.shape}."
            )
        edges = np.abs(np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)).sum(1)
        if (edges != 2).any():
            raise InputError(
                f"each document's tokens stand together, padding only before or after them; "
                f"document {int(np.flatnonzero(edges != 2)[0])} has a hole or is empty."
            )
        marks = dict(self.marks)
        if self.counted is not None:
            if self.counted.dtype != np.bool_:
                raise InputError(f"counted holds true and false; got {self.counted.dtype}.")
            marks["counted"] = self.counted
        for name, mark in marks.items():
            if mark.shape != ids.shape:
                raise InputError(
                    f"marks have the shape of the ids, {ids.shape}; {name} has {mark.shape}."
                )
        if self.numbers is None:
            object.__setattr__(self, "numbers", np.arange(len(ids)))
        elif len(self.numbers) != len(ids):
            raise InputError(f"{len(ids)} documents have {len(self.numbers)} numbers.")
        if self.signal is not None and (len(self.signal) != len(ids) or not mask.all()):
            raise InputError(
                f"a signal is one image or sound per document, without padding; got "
                f"{len(self.signal)} for {len(ids)} documents."
            )

    @property
    def start(self) -> Int[np.ndarray, " document"]:
        """Index of each document's first real token."""
        return self.mask.argmax(1)

    @property
    def position(self) -> Int[np.ndarray, "document pos"]:
        """Position within the document, counted from its first real token; −1 on padding."""
        index = np.arange(self.ids.shape[1])[None] - self.start[:, None]
        return np.where(self.mask, index, -1)

    @property
    def content(self) -> Bool[np.ndarray, "document pos"]:
        """Real tokens other than a BOS in the first position."""
        return self.mask & (self.position >= int(self.bos))

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Any) -> Prompts:
        """The documents `rows` (a slice or an index array), cut to their longest."""
        cut = self.columns(rows)
        delimiter = None if self.delimiter is None else self.delimiter[rows][:, cut]
        numbers = None if self.numbers is None else self.numbers[rows]
        return replace(
            self,
            ids=self.ids[rows][:, cut],
            mask=self.mask[rows][:, cut],
            delimiter=delimiter,
            marks={name: mark[rows][:, cut] for name, mark in self.marks.items()},
            numbers=numbers,
            counted=None if self.counted is None else self.counted[rows][:, cut],
            signal=None if self.signal is None else self.signal[rows],
        )

    def read_only(self) -> Prompts:
        """The same prompts, in arrays that cannot be written to through them."""
        arrays = {"ids": self.ids.view(), "mask": self.mask.view()}
        for name in ("delimiter", "counted", "signal"):
            if (array := getattr(self, name)) is not None:
                arrays[name] = array.view()
        marks = {name: mark.view() for name, mark in self.marks.items()}
        for array in (*arrays.values(), *marks.values()):
            array.flags.writeable = False
        return replace(self, **arrays, marks=marks)

    def columns(self, rows: Any) -> slice:
        """The columns that some of the documents `rows` use."""
        used = np.flatnonzero(self.mask[rows].any(0))
        return slice(int(used[0]), int(used[-1]) + 1)


def token_pool(vocab_size: int, tokenizer: Any = None, *, special: tuple[int, ...] = ()) -> Any:
    """Ids that random prompts draw from: no special tokens, no most or least common ones.

    Args:
        vocab_size: number of ids that the model embeds.
        tokenizer: names its special and added tokens; None where there is none.
        special: further ids to leave out (a config's bos, eos, pad).

    Returns:
        Int array of ids, ascending.

    Example:
        >>> token_pool(100, special=(50,)).tolist()[:3], 50 in token_pool(100, special=(50,))
        ([9, 10, 11], False)
    """
    banned = set(special)
    size = vocab_size
    if tokenizer is not None:
        banned |= set(tokenizer.all_special_ids) | set(
            getattr(tokenizer, "added_tokens_decoder", {})
        )
        size = min(vocab_size, len(tokenizer))
    ids = np.array([i for i in range(size) if i not in banned], dtype=np.int64)
    pool = ids[int(len(ids) * _COMMON_SHARE) : len(ids) - int(len(ids) * _RARE_SHARE)]
    if len(pool) < 2:
        raise InputError(
            f"random prompts need at least 2 ordinary tokens; the vocabulary of {vocab_size} "
            f"leaves {len(pool)}. Pass a model with a larger vocabulary."
        )
    return pool


def random_prompts(
    pool: Int[np.ndarray, " ids"],
    n_prompts: int,
    seq_len: int,
    *,
    bos_id: int | None = None,
    seed: int = 0,
    causal: bool = True,
) -> Prompts:
    """Random tokens with repeated spans: filler, S, gap, S again, until the sequence is full.

    The lengths of S (8 to 64 tokens), of the filler before it and of the gap between the copies
    (0 to 48) are drawn anew for every repeat, several repeats to a sequence: a head that looks at
    a fixed offset cannot pass for an induction head (SCIENCE: the classic S + S puts every match
    at one offset). Tokens of one document are drawn without replacement as long as the pool
    lasts, so the copies are the only matches.

    Args:
        pool: ids to draw from (`token_pool`).
        n_prompts: number of documents.
        seq_len: tokens per document, BOS included.
        bos_id: id to start each document with; None for no BOS.
        seed: seed of the draw.
        causal: passed on to the label builders.

    Example:
        >>> prompts = random_prompts(np.arange(1000), 2, 64, bos_id=1000, seed=0)
        >>> prompts.ids.shape, prompts.ids[:, 0].tolist()
        ((2, 64), [1000, 1000])
    """
    rng = np.random.default_rng((seed, 1))
    room = seq_len - (bos_id is not None)
    rows = []
    for _ in range(n_prompts):
        fresh = fresh_tokens(pool, rng)
        body: list[int] = []
        while len(body) < room:
            longest = max(2, min(64, room // 3))
            length = int(rng.integers(min(8, longest), longest + 1))
            filler, gap = (int(rng.integers(0, min(48, room // 4) + 1)) for _ in range(2))
            span = [next(fresh) for _ in range(length)]
            body += [next(fresh) for _ in range(filler)] + span
            body += [next(fresh) for _ in range(gap)] + span
        rows.append(([] if bos_id is None else [bos_id]) + body[:room])
    ids = np.array(rows, dtype=np.int64)
    return Prompts("random", ids, np.ones_like(ids, bool), bos_id is not None, causal=causal)


def classic_prompts(
    pool: Int[np.ndarray, " ids"],
    n_prompts: int,
    seq_len: int,
    *,
    bos_id: int | None = None,
    seed: int = 0,
    causal: bool = True,
) -> Prompts:
    """The field's battery [BOS] + S + S, for the legacy verdicts (Olsson et al. 2022).

    S holds 50 tokens, or half of `seq_len` where that is less.

    Example:
        >>> ids = classic_prompts(np.arange(1000), 1, 256, bos_id=1000).ids
        >>> ids.shape, bool((ids[:, 1:51] == ids[:, 51:]).all())
        ((1, 101), True)
    """
    rng = np.random.default_rng((seed, 2))
    length = min(50, (seq_len - (bos_id is not None)) // 2)
    rows = []
    for _ in range(n_prompts):
        fresh = fresh_tokens(pool, rng)
        span = [next(fresh) for _ in range(length)]
        rows.append(([] if bos_id is None else [bos_id]) + span + span)
    ids = np.array(rows, dtype=np.int64)
    return Prompts("classic", ids, np.ones_like(ids, bool), bos_id is not None, causal=causal)


def natural_prompts(
    tokenizer: Any,
    n_prompts: int,
    seq_len: int,
    *,
    text: str | None = None,
    prepend_bos: bool | None = None,
    seed: int = 0,
    causal: bool = True,
) -> Prompts:
    """Windows of running text: the user's, or else text generated by the built-in grammar.

    Args:
        tokenizer: turns the text into tokens and names its punctuation.
        n_prompts: number of distinct windows wanted; a short `text` gives fewer.
        seq_len: tokens per window, BOS included.
        text: running text; None generates as much as is needed.
        prepend_bos: True, False, or None for the tokenizer's habit.
        seed: seed of the generated text.
        causal: passed on to the label builders.

    Raises:
        InputError: the text, the generated one included, has fewer than `MIN_PROMPTS` distinct
            windows (or fewer than `n_prompts`, where that is less).
    """
    running = natural_text(n_prompts * seq_len, seed=seed) if text is None else text
    tokens, distinct = _distinct_windows(tokenizer, running, n_prompts, seq_len, prepend_bos)
    ids, mask = tokens.ids.numpy()[distinct], tokens.mask.numpy()[distinct]
    if len(ids) < min(MIN_PROMPTS, n_prompts):
        _refuse_text(tokens, len(ids), seq_len, generated=text is None)
    delimiter = delimiters(tokenizer, ids) & mask
    marks = {
        "sentence": sentence_numbers(tokenizer, ids),
        "rarity": frequency_ranks(tokenizer, ids, text),
    }
    return Prompts("natural", ids, mask, tokens.bos, delimiter, causal, marks)


def _distinct_windows(
    tokenizer: Any, text: str, n_prompts: int, seq_len: int, prepend_bos: bool | None
) -> tuple[Tokens, Int[np.ndarray, " window"]]:
    """Windows of the text, and the first `n_prompts` of them that say something new."""
    limit = 2 * n_prompts
    while True:
        tokens = windows(tokenizer, text, seq_len=seq_len, prepend_bos=prepend_bos, limit=limit)
        ids, full = tokens.ids.numpy(), tokens.mask.numpy().sum(1) >= max(2, seq_len // 2)
        _, first = np.unique(ids[full], axis=0, return_index=True)
        distinct = np.flatnonzero(full)[np.sort(first)][:n_prompts]
        if len(distinct) == n_prompts or len(ids) < limit:  # enough, or the text has ended
            return tokens, distinct
        limit *= 4


def _refuse_text(tokens: Tokens, found: int, seq_len: int, *, generated: bool) -> NoReturn:
    what = f"{found} distinct window{'' if found == 1 else 's'} of {seq_len} tokens"
    need = f"statistics over documents need {MIN_PROMPTS}"
    if generated:
        raise InputError(
            f"under this tokenizer the generated English text gives {what}; {need}. Pass a text "
            "in a language that the tokenizer knows."
        )
    total = int(tokens.mask.sum())
    shorter = total // MIN_PROMPTS
    helps = MIN_TOKENS <= shorter < seq_len  # where windows repeat, no length helps
    raise InputError(
        f"the text gives {what} ({total} tokens in {len(tokens.ids)} windows, those that say the "
        f"same counted once); {need}. Pass a longer or more varied text"
        + (f", or a sequence length of {shorter} or less." if helps else ".")
    )


def delimiters(
    tokenizer: Any, ids: Int[np.ndarray, "document pos"]
) -> Bool[np.ndarray, "document pos"]:
    """True where a token is punctuation, a line break, or a separator token such as [SEP]."""
    unique, inverse = np.unique(ids, return_inverse=True)
    separators = {tokenizer.sep_token_id, tokenizer.eos_token_id} - {tokenizer.bos_token_id, None}
    flags = [int(i) in separators or is_delimiter(tokenizer.decode([int(i)])) for i in unique]
    return np.array(flags, bool)[inverse].reshape(ids.shape)


def is_delimiter(text: str) -> bool:
    r"""Whether a token's text is only punctuation (Unicode categories P*) or line breaks.

    Example:
        >>> is_delimiter(" ,"), is_delimiter("\n"), is_delimiter(" the"), is_delimiter(" ")
        (True, True, False, False)
    """
    bare = text.strip()
    if not bare:
        return "\n" in text
    return all(unicodedata.category(char).startswith("P") for char in bare)


def fresh_tokens(pool: Int[np.ndarray, " ids"], rng: np.random.Generator) -> Iterator[int]:
    """Endless draw without replacement; starts over when the pool is used up."""
    while True:
        yield from rng.permutation(pool).tolist()
