"""What a layer's description may hold: counts, numbers, flags and parts."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InputError

MOST = 2**31 - 1  # past it, sums of key indices leave 64 bits, and windows would wrap in silence
WIDEST = torch.finfo(torch.float32).max  # what layers compute in
FINEST = torch.finfo(torch.float32).tiny


def check_count(name: str, value: object) -> None:
    """Refuse what is no whole number from 1 to 2³¹ − 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InputError(
            f"{name} must be a whole number, at least 1 and at most 2³¹ − 1; got {value!r:.80}."
        )


def check_number(name: str, value: Any, *, least: float = FINEST, most: float = WIDEST) -> None:
    """Refuse what is no number from `least` to `most`, by default the positive ones of float32."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not least <= value <= most:
        kind = "positive" if least > 0 else "0 or positive" if least == 0 else "finite"
        raise InputError(
            f"{name} must be {kind}, a number from {least:.3g} to {most:.3g}; got {value!r:.80}."
        )


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False; got {value!r:.80}.")


def check_part(name: str, value: object, kind: type, *, optional: bool = True) -> None:
    """Refuse what is no `kind`, and None where the part is not optional."""
    if not isinstance(value, kind) and not (optional and value is None):
        ending = " or None" if optional else ""
        raise InputError(f"{name} must be a {kind.__name__}{ending}; got {value!r:.80}.")
