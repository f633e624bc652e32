"""Whole numbers that callers pass, of whatever type."""

from __future__ import annotations

import operator
from typing import Any

from .errors import InputError, shown


def as_index(value: Any) -> int | None:
    """The whole number that a value stands for; None: it stands for none.

    True and False stand for none, nor do tensors and arrays of anything but one whole number.

    Example:
        >>> import torch
        >>> as_index(torch.tensor(3)), as_index(torch.tensor(1.5)), as_index(True)
        (3, None, None)
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    if getattr(value, "ndim", 0) > 0:  # an array of one number still is no number
        return None
    try:
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return None if str(getattr(value, "dtype", "")).endswith("bool") else number


def as_seed(seed: Any) -> int:
    """A seed that torch's generators take.

    Raises:
        InputError: no integer, or one of more than 64 bits.
    """
    value = as_index(seed)
    if value is None or not 0 <= value < 1 << 64:
        raise InputError(f"seed must be an integer, 0 to 2^64 - 1; got {shown(seed)}.")
    return value
