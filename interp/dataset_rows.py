"""Texts and ids out of files, lists, arrays and rows of datasets, checked as they are read."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from .errors import InputError, shown
from .files import read_text
from .plain_text import checked_text

# files of records, whose markup would be read as if it were the text
_RECORDS = frozenset({".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow"})


def file_text(path: str | Path) -> str:
    """The text of a file; a string that names none may be meant as the text itself.

    Raises:
        InputError: no such file, a file of records, or one that `read_text` refuses.
    """
    if isinstance(path, str) and ("\n" in path or len(path) > 4096):
        raise _no_file(path)
    if Path(path).suffix.lower() in _RECORDS:
        raise InputError(
            f"{str(path)!r} holds records, not plain text; pass its texts as a list of strings, or "
            "a Hugging Face dataset of it."
        )
    if isinstance(path, str) and _is_nothing(path):
        raise _no_file(path)
    return read_text(path)


def _is_nothing(path: str) -> bool:
    """Whether no file is or can be called so."""
    try:
        return not Path(path).exists()
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG


def _no_file(path: str) -> InputError:
    return InputError(
        f"no file {shown(path)}; a string is the path of a text file. Text itself is passed as a "
        "list of strings, [text]."
    )


def listed_texts(texts: Sequence[Any]) -> list[str]:
    """Texts of a list, none of them empty.

    Raises:
        InputError: none, an empty one, or something else than a string; ids are told where to go.
    """
    if not len(texts):
        raise InputError("no texts; give at least one.")
    for number, text in enumerate(texts):
        if _is_ids(text):
            raise InputError(
                f"text {number} is of type {type(text).__name__}, not a string. Pass token ids as "
                "an array or a tensor [batch, pos]; rows of unequal length as the input_ids of a "
                "Hugging Face dataset."
            )
        if not checked_text(text, f"text {number}").strip():
            raise InputError(f"text {number} is empty; give some text.")
    return list(texts)


def _is_ids(value: Any) -> bool:
    """Whether a list that holds it seems to hold ids."""
    return isinstance(value, int | np.integer | list | tuple | np.ndarray | Tensor)


def array_ids(array: np.ndarray) -> Int64[Tensor, "batch pos"]:
    """Ids of a NumPy array.

    Raises:
        InputError: no whole numbers [batch, pos].

    Example:
        >>> array_ids(np.array([[5, 6]], dtype=np.uint16))
        tensor([[5, 6]])
    """
    hidden = isinstance(array, np.ma.MaskedArray)  # what it hides would be read
    if array.dtype.kind not in "iu" or array.ndim != 2 or hidden:
        what = f"{'masked ' * hidden}{array.dtype} {array.shape}"
        raise InputError(
            f"an array holds token ids, whole numbers [batch, pos]; got {what}. Texts are passed "
            "as a list of strings."
        )
    return torch.from_numpy(array.astype(np.int64))


def row_texts(rows: Iterator[Any]) -> Iterator[str]:
    """Texts of a dataset; blank ones, which many have between paragraphs, are passed over."""
    for number, row in enumerate(rows):
        text = row.get("text") if isinstance(row, Mapping) else None
        if text is not None and checked_text(text, f"text of row {number}").strip():
            yield text


def row_ids(rows: Iterator[Any]) -> Iterator[np.ndarray]:
    """Ids of a dataset, those of its padding left out."""
    for number, row in enumerate(rows):
        ids = _integers(row.get("input_ids") if isinstance(row, Mapping) else None)
        mask = row.get("attention_mask") if isinstance(row, Mapping) else None
        real = None if mask is None else _integers(mask)
        if ids is None or (mask is not None and (real is None or real.shape != ids.shape)):
            raise InputError(
                f"row {number} of the dataset: input_ids, and attention_mask where there is one, "
                "are lists of whole numbers of one length."
            )
        yield ids if real is None else ids[real != 0]


def _integers(value: Any) -> np.ndarray | None:
    try:
        numbers = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    except (ValueError, OverflowError):
        return None
    if numbers.ndim == 1 and not numbers.size:
        return numbers.astype(np.int64)
    whole = numbers.ndim == 1 and numbers.dtype.kind in "iu"
    return numbers.astype(np.int64) if whole else None
