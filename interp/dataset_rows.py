"""Texts and ids out of lists and the rows of datasets, each one checked as it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from .errors import InputError
from .plain_text import checked_text


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
