"""What a user gives as text, as documents: windows of tokens that losses are measured on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .dataset_rows import array_ids, file_text, listed_texts, row_ids, row_texts
from .errors import InputError, shown
from .forward import check_ids
from .inputs import read_inputs
from .plain_numbers import as_index, as_seed
from .plain_text import counted, printable
from .probes import Prompts
from .sampling import sample_documents
from .signals import reads_signal
from .sites import attention_sites, unbridged
from .tokens import Tokens, bos_token, context_length, windows

_Rows = Iterable[np.ndarray]  # ids of windows, without padding


@dataclass(frozen=True, eq=False, repr=False)
class Documents:
    """Windows of text, each of them a document; what evaluation and training read.

    Args:
        prompts: the tokens.
        origin: where they come from, in words.
    """

    prompts: Prompts
    origin: str

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        longest, tokens = self.prompts.ids.shape[1], int(self.prompts.mask.sum())
        bos = "with a BOS" if self.prompts.bos else "without a BOS"
        count = f"{counted(len(self), 'document')} of up to {counted(longest, 'token')}"
        return f"<{count}, {tokens} in all, {bos}; {self.origin}>"

    def __add__(self, other: Documents) -> Documents:
        """The documents of both, such as text and repeated tokens to learn from.

        Raises:
            InputError: one begins with a BOS and the other does not.

        Example:
            >>> ids, longer = np.array([[0, 5, 6]]), np.array([[0, 7, 8, 9]])
            >>> one = Documents(Prompts("text", ids, ids >= 0, bos=True), "a")
            >>> one + Documents(Prompts("text", longer, longer >= 0, bos=True), "b")
            <2 documents of up to 4 tokens, 7 in all, with a BOS; a; b>
        """
        if not isinstance(other, Documents):
            return NotImplemented
        both = self.prompts, other.prompts
        if both[0].bos != both[1].bos or both[0].causal != both[1].causal:
            raise InputError(
                f"{self!r} and {other!r} do not go together: read both with the same prepend_bos, "
                "for the same model."
            )
        width = max(own.ids.shape[1] for own in both)
        ids, mask = (_stacked([getattr(own, name) for own in both], width) for name in _ARRAYS)
        counted = None
        if any(own.counted is not None for own in both):
            known = [own.mask if own.counted is None else own.counted for own in both]
            counted = _stacked(known, width)
        prompts = Prompts("text", ids, mask, both[0].bos, causal=both[0].causal, counted=counted)
        return Documents(prompts, f"{self.origin}; {other.origin}")

    def fingerprints(self) -> frozenset[str]:
        """One hash per document of its tokens, BOS and padding aside, to find the same text again.

        Example:
            >>> ids, other = np.array([[0, 5, 6]]), np.array([[5, 6, 0]])
            >>> one = Documents(Prompts("text", ids, ids >= 0, bos=True), "a")
            >>> two = Documents(Prompts("text", other, other > 0, bos=False), "b")
            >>> one.fingerprints() == two.fingerprints()
            True
        """
        content = zip(self.prompts.ids, self.prompts.content, strict=True)
        return frozenset(
            hashlib.sha256(row[own].astype("<i8").tobytes()).hexdigest()[:32]
            for row, own in content
        )


_ARRAYS = ("ids", "mask")


def _stacked(arrays: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Below one another, with zeros behind the shorter ones."""
    return np.concatenate([np.pad(own, ((0, 0), (0, width - own.shape[1]))) for own in arrays])


def read_documents(
    source: Any,
    model: Any,
    tokenizer: Any,
    *,
    n: int | None,
    seq_len: int,
    prepend_bos: bool | None = None,
    seed: int = 0,
) -> Documents:
    """Cut what a user gives as text into windows of `seq_len` tokens.

    Windows do not overlap, and each begins with a BOS where one is asked for. A rest that is too
    short for a window is left out unless it is all that a text has; so are windows of a single
    token, and those that repeat an earlier one, because documents are resampled as if they were
    independent (`origin` says how many).

    A row of ids with the BOS inside, as packed rows have it, is cut there into texts of their own,
    so that no window runs over from one text into the next or holds a second BOS.

    Args:
        source: the path of a UTF-8 text file; a list of strings, each a text of its own; `Tokens`;
            ids [batch, pos] in a tensor or a NumPy array; a Hugging Face dataset, each of whose
            rows holds a text of its own in `text`, or its `input_ids`; or None: text that the
            model writes itself (`sample_documents`).
        model: a transformers model.
        tokenizer: its tokenizer; None will do for ids.
        n: how many documents at most; None: all that there are.
        seq_len: tokens per document, special ones included.
        prepend_bos: True, False, or None: for text the tokenizer's habit, for ids as they are.
        seed: of text that the model writes.

    Returns:
        The documents, padded on the right where they are of unequal length.

    Raises:
        InputError: a file that is missing or no text, empty text, items of another sort, ids
            outside the vocabulary, a dataset without `text` and `input_ids`, text without a
            tokenizer, or numbers that do not fit.

    Example:
        >>> import headatlas as ha
        >>> read_documents(["the cat sat. " * 9, "a dog"], *ha.load("tiny"), n=None, seq_len=16)
        <4 documents of up to 16 tokens, 52 in all, with a BOS; 2 texts>
    """
    model = unbridged(model)
    causal = all(site.causal for site in attention_sites(model))
    if reads_signal(model):
        raise InputError(f"{type(model).__name__} reads {model.main_input_name}, not text.")
    n, seq_len = _numbers(model, n, seq_len)
    if prepend_bos is not None and not isinstance(prepend_bos, bool):
        raise InputError(f"prepend_bos is True, False or None; got {shown(prepend_bos)}.")
    if source is None:
        if n is None or not causal:
            why = "has no end; say how many documents" if causal else "takes a decoder; pass a text"
            raise InputError(f"text that the model writes itself {why}.")
        ids, bos = sample_documents(
            model, tokenizer, n=n, seq_len=seq_len, prepend_bos=prepend_bos, seed=as_seed(seed)
        )
        rows, origin = [*ids.numpy()], f"sampled from the model, seed {seed}"
    else:
        reader = _Reader(model, tokenizer, n, seq_len, prepend_bos)
        rows, bos, origin = reader.read(source)
    return _documents(model, _distinct(rows, n), bos, origin, causal)


@dataclass
class _Distinct:
    """Windows that say something new, and how many did not."""

    rows: list[np.ndarray]
    repeated: int = 0


def _distinct(rows: _Rows, n: int | None) -> _Distinct:
    found, seen = _Distinct([]), set[bytes]()
    for row in rows:
        if len(row) < 2:  # nothing is predicted in it
            continue
        key = row.tobytes()
        if key in seen:
            found.repeated += 1
            continue
        seen.add(key)
        found.rows.append(row)
        if len(found.rows) == n:
            break
    return found


def _documents(model: Any, found: _Distinct, bos: bool, origin: str, causal: bool) -> Documents:
    rows = found.rows
    if not rows:
        raise InputError(f"{origin}: nothing in it is two tokens long or more; give some text.")
    if found.repeated:
        origin += f", {counted(found.repeated, 'repeated window')} left out"
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max())[None] < lengths[:, None]
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate(rows)
    check_ids(model, torch.from_numpy(ids), "token ids")
    return Documents(Prompts("text", ids, mask, bos, causal=causal), origin)


def _numbers(model: Any, n: Any, seq_len: Any) -> tuple[int | None, int]:
    count, length = as_index(n), as_index(seq_len)
    if n is not None and (count is None or count < 1):
        raise InputError(f"n is a whole number of documents, at least 1, or None; got {shown(n)}.")
    if length is None or length < 2:
        raise InputError(f"seq_len is a whole number of tokens, at least 2; got {shown(seq_len)}.")
    context = context_length(model)
    if context is not None and length > context:
        raise InputError(
            f"windows of {length} tokens are longer than the model's context of {context}; pass "
            f"seq_len={context} or less."
        )
    return count, length


@dataclass(frozen=True)
class _Reader:
    """Reads a source into rows of ids; how it cuts them, as in `read_documents`."""

    model: Any
    tokenizer: Any
    n: int | None
    seq_len: int
    prepend_bos: bool | None

    def read(self, source: Any) -> tuple[_Rows, bool, str]:
        """Rows, whether they begin with a BOS, and where they come from."""
        if isinstance(source, str | Path):
            return *self._of_texts([file_text(source)]), printable(Path(source).name)
        if isinstance(source, np.ndarray):
            source = array_ids(source)
        if isinstance(source, Tokens | Tensor):
            inputs = read_inputs(self.model, source)
            ids, mask = inputs.ids.cpu().numpy(), inputs.mask.cpu().numpy()
            rows = [row[own] for row, own in zip(ids, mask, strict=True)]
            return *self._of_ids(rows), f"{counted(len(rows), 'row')} of ids"
        if hasattr(source, "column_names"):
            return self._of_dataset(source)
        if isinstance(source, Mapping) or not isinstance(source, Sequence):
            raise InputError(
                "text is the path of a file, a list of strings, Tokens, a tensor or array of ids "
                f"[batch, pos], a Hugging Face dataset, or None; got {type(source).__name__}."
            )
        return *self._of_texts(listed_texts(source)), counted(len(source), "text")

    def _of_texts(self, texts: Iterable[str]) -> tuple[_Rows, bool]:
        if self.tokenizer is None:
            raise InputError("text needs the model's tokenizer; pass it, or pass ids [batch, pos].")
        bos = bos_token(self.tokenizer, self.prepend_bos) is not None
        return (row for text in texts for row in self._windows(text)), bos

    def _windows(self, text: str) -> Iterator[np.ndarray]:
        """Windows of a text, of which no more is encoded than is asked for."""
        given, limit = 0, None if self.n is None else 2 * self.n
        while True:
            tokens = windows(
                self.tokenizer, text, seq_len=self.seq_len, prepend_bos=self.prepend_bos,
                limit=limit,
            )  # fmt: skip
            yield from tokens.ids[given:].numpy()
            if limit is None or len(tokens.ids) < limit:  # the text has ended
                return
            given, limit = len(tokens.ids), 4 * limit

    def _of_ids(self, rows: Iterable[np.ndarray]) -> tuple[_Rows, bool]:
        """Windows of rows of ids, the first of which says whether they begin with a BOS."""
        known, rows = self._bos(), iter(rows)
        first = next((row for row in rows if len(row)), None)
        if first is None:
            return [], False
        begins = known is not None and first[0] == known
        wanted = begins if self.prepend_bos is None else self.prepend_bos
        prefix = [known] if wanted and known is not None else []
        if len(prefix) >= self.seq_len:
            raise InputError(f"seq_len={self.seq_len} leaves no room beside the BOS.")
        return self._cut([first], rows, known, bool(begins), prefix), bool(prefix)

    def _cut(
        self,
        first: list[np.ndarray],
        rows: Iterator[np.ndarray],
        bos: int | None,
        begins: bool,
        prefix: list[int],
    ) -> Iterator[np.ndarray]:
        room = self.seq_len - len(prefix)
        for group in (first, rows):
            for row in group:
                own = bos is not None and len(row) > 0 and row[0] == bos
                if self.prepend_bos is None and len(row) and own != begins:
                    raise InputError(
                        f"some rows of ids begin with the BOS {bos} and others do not; say "
                        "prepend_bos=True or False."
                    )
                for body in _bodies(row, bos):
                    for start in range(0, max(len(body) // room, 1) * room, room):
                        yield np.array([*prefix, *body[start : start + room]], np.int64)

    def _bos(self) -> int | None:
        """The token that would begin a row of ids."""
        if self.tokenizer is not None and self.prepend_bos:
            return bos_token(self.tokenizer, True)
        names = ("bos_token_id", "cls_token_id")
        config = self.model.config.get_text_config()
        found = [getattr(self.tokenizer, name, None) for name in names]
        found.append(getattr(config, "bos_token_id", None))
        bos = next((one for one in found if isinstance(one, int)), None)
        if bos is None and self.prepend_bos:
            raise InputError("prepend_bos=True, but the model's config names no BOS; use False.")
        return bos

    def _of_dataset(self, source: Any) -> tuple[_Rows, bool, str]:
        """Rows of a Hugging Face dataset: `text` where there is a tokenizer, else `input_ids`."""
        names = source.column_names
        if isinstance(names, Mapping):
            splits = ", ".join(map(str, names))
            raise InputError(f"the dataset has the splits {splits}; pass one of them.")
        if not hasattr(source, "__len__") and self.n is None:
            raise InputError("a streamed dataset has no end; say how many documents.")
        rows = iter(source)
        first = next(rows, None)
        if first is None:
            raise InputError("the dataset has no rows.")
        columns = [*first] if isinstance(first, Mapping) else []
        every = _chained(first, rows)
        size = counted(len(source), "row") if hasattr(source, "__len__") else "rows"
        if "text" in columns and (self.tokenizer is not None or "input_ids" not in columns):
            texts = row_texts(every)
            return *self._of_texts(texts), f"{size} of a dataset"
        if "input_ids" in columns:
            return *self._of_ids(row_ids(every)), f"{size} of ids of a dataset"
        raise InputError(
            "the dataset has neither a column text nor input_ids; it has "
            f"{shown([str(name) for name in columns])}. Rename the column that holds the text."
        )


def _bodies(row: np.ndarray, bos: int | None) -> list[np.ndarray]:
    """The texts of a row of ids, each without its BOS."""
    if bos is None:
        return [row]
    is_bos = row == bos
    edges = [0, *np.flatnonzero(is_bos[1:]) + 1, len(row)]
    return [row[start + bool(is_bos[start]) : end] for start, end in pairwise(edges) if start < end]


def _chained(first: Any, rows: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rows
