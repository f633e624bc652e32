"""Attention weights as plots take them: checked, of one sequence, blank where there are none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError, shown
from ..plain_numbers import as_index

MAX_HEADS = 64
MAX_CELLS = 16 * 2**20  # some 22 MB of HTML
# How far rows may sum from 1. Weights that were rounded to bfloat16 on the way are each wrong by
# up to 2⁻⁹ of themselves, which a dtype of more bits no longer shows.
_FULL, _HALF = 2e-3, 1e-2
_MOST_ROWS = 2**31


def read_pattern(
    pattern: Any, *, sinks: bool = False, rows: Any = None, name: str = "pattern"
) -> Float[np.ndarray, "head query key"]:
    """Weights after the softmax as float64, NaN where a causal mask or a dead query leaves none.

    Args:
        pattern: [query, key], [head, query, key] or [1, head, query, key], a tensor or an array.
        sinks: rows may sum to less than 1.
        rows: as `own_keys` takes them.
        name: what messages call it.

    Raises:
        InputError: not weights (NaN, negative, rows that do not sum to 1), more than one sequence,
            more than 64 heads, more cells than fit on a page, or rows that do not fit.

    Example:
        >>> read_pattern(torch.tensor([[1.0, 0.0], [0.25, 0.75]])).tolist()
        [[[1.0, nan], [0.25, 0.75]]]
    """
    weights = _read(pattern, name)
    own = own_keys(weights.shape[1], weights.shape[2], rows)
    _check_rows(weights, sinks, _FULL if _is_precise(pattern) else _HALF)
    return _blanked(weights, own)


def own_keys(n_query: int, n_key: int, rows: Any = None) -> Int[np.ndarray, " query"]:
    """The key that each query stands on.

    Args:
        n_query: of a pattern.
        n_key: likewise.
        rows: the position of each query, such as `Cache.rows`; None: the last query stands on the
            last key, as with a cache of keys.

    Raises:
        InputError: rows are not one whole number of at least 0 per query.

    Example:
        >>> own_keys(2, 4).tolist(), own_keys(2, 4, rows=[3, 0]).tolist()
        ([2, 3], [3, 0])
    """
    if rows is None:
        return np.arange(n_query) + (n_key - n_query)
    given = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str | bytes) else None
    places = [as_index(row) for row in given or ()]
    known = [place for place in places if place is not None and 0 <= place < _MOST_ROWS]
    if len(known) != n_query or len(places) != n_query:
        raise InputError(
            f"rows= names the position of each of the {n_query} queries, whole numbers of at least "
            f"0, such as cache.rows; got {shown(rows)}."
        )
    return np.array(known)


def as_array(values: Any, what: str) -> np.ndarray:
    """A tensor's or an array's numbers as float64.

    Raises:
        InputError: something else, or an array that holds no numbers.
    """
    if isinstance(values, Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    if not isinstance(values, np.ndarray):
        raise InputError(f"{what} is a tensor or an array; got {type(values).__name__}.")
    if values.dtype.kind not in "fiub":
        raise InputError(f"{what} holds real numbers; got an array of {values.dtype}.")
    return values.astype(np.float64)


def check_max_weight(max_weight: Any) -> float:
    """The weight that gets the last colour.

    Raises:
        InputError: not in (0, 1].
    """
    if isinstance(max_weight, bool) or not isinstance(max_weight, int | float):
        raise InputError(f"max_weight is a number in (0, 1]; got {type(max_weight).__name__}.")
    if not 0 < max_weight <= 1:
        raise InputError(f"max_weight must lie in (0, 1]; got {max_weight}.")
    return float(max_weight)


def _is_precise(pattern: Any) -> bool:
    return pattern.dtype not in (torch.float16, torch.bfloat16, np.dtype(np.float16))


def _read(pattern: Any, name: str) -> np.ndarray:
    """The pattern as float64 [head, query, key]."""
    weights = as_array(pattern, f"a {name}")
    shape = tuple(weights.shape)
    if weights.ndim == 4:
        if shape[0] != 1:
            raise InputError(f"one sequence at a time; the {name} is {shape}. Pass {name}[0], say.")
        weights = weights[0]
    if weights.ndim == 2:
        weights = weights[None]
    if weights.ndim != 3 or 0 in weights.shape:
        raise InputError(f"a {name} is [query, key] or [head, query, key]; got the shape {shape}.")
    if weights.shape[0] > MAX_HEADS:
        raise InputError(
            f"{weights.shape[0]} heads do not fit on one page; pass at most {MAX_HEADS}."
        )
    if weights.size > MAX_CELLS:
        raise InputError(
            f"{weights.size:,} weights make too large a page (at most {MAX_CELLS:,}); "
            f"pass fewer heads or a shorter text."
        )
    return weights


def _check_rows(weights: np.ndarray, sinks: bool, tolerance: float) -> None:
    def place(bad: np.ndarray) -> str:
        index = np.unravel_index(bad.argmax(), bad.shape)
        return f"({', '.join(str(int(i)) for i in index)})"

    bad = ~np.isfinite(weights)
    if bad.any():
        raise InputError(
            f"pattern weights must be finite; (head, query, key) {place(bad)} is not. "
            f"Pass post-softmax weights of a model without NaN."
        )
    bad = weights < 0
    if bad.any():
        raise InputError(
            f"pattern weights must not be negative; (head, query, key) {place(bad)} is. "
            f"Pass post-softmax weights, not scores."
        )
    sums = weights.sum(axis=-1)
    bad = sums > 1 + tolerance
    if not sinks:
        bad |= (sums < 1 - tolerance) & (sums > 0)
    if bad.any():
        total = sums.reshape(-1)[bad.argmax()]
        less = " (sinks=True allows less than 1, for models with sink logits)" if total < 1 else ""
        raise InputError(
            f"pattern rows must sum to 1; row (head, query) {place(bad)} sums to {total:.4g}. "
            f"Pass post-softmax weights, not scores{less}."
        )


def _blanked(weights: np.ndarray, own: np.ndarray) -> np.ndarray:
    """NaN where a causal mask forbids a key, and in the rows of dead queries."""
    later = np.arange(weights.shape[-1])[None] > own[:, None]
    dead = weights.sum(axis=-1, keepdims=True) == 0
    causal = not weights[:, later].any()
    return np.where(dead | (later if causal else False), np.nan, weights)
