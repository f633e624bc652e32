"""Checks of arguments that many functions take."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..interp.errors import InputError


def whole_number(name: str, value: Any, least: int) -> int:
    """The value as an int; NumPy's integers are taken, bools are not.

    Raises:
        InputError: it is no whole number, or below `least`; the message calls it `name`.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{name} is a whole number of at least {least}; got {value!r}.")
    return number
