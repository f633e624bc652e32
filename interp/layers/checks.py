"""Numbers that a layer's description may hold."""

from __future__ import annotations

import math
from typing import Any

from ..errors import InputError


def check_count(name: str, value: object) -> None:
    """Refuse what is no whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number, at least 1; got {value!r}.")


def check_number(name: str, value: Any, *, zero: bool = False) -> None:
    """Refuse what is no positive finite number; 0 passes where `zero` says so."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        least = "0 or positive" if zero else "positive"
        raise InputError(f"{name} must be {least} and finite; got {value!r}.")
