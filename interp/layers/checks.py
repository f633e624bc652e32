"""What a layer's description may hold: counts, numbers, flags and parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, shown

MOST = 2**31 - 1  # past it, sums of key indices leave 64 bits, and windows would wrap in silence
WIDEST = torch.finfo(torch.float32).max  # what layers compute in
FINEST = torch.finfo(torch.float32).tiny


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is no whole number from `least` to 2³¹ − 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise InputError(
            f"{name} must be a whole number, at least {least} and at most 2³¹ − 1; got "
            f"{shown(value)}."
        )


def check_number(name: str, value: Any, *, least: float = FINEST, most: float = WIDEST) -> None:
    """Refuse what is no number from `least` to `most`, by default the positive ones of float32."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not least <= value <= most:
        kind = "positive" if least > 0 else "0 or positive" if least == 0 else "finite"
        raise InputError(
            f"{name} must be {kind}, a number from {least:.3g} to {most:.3g}; got {shown(value)}."
        )


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False; got {shown(value)}.")


def check_part(name: str, value: object, kind: type, *, optional: bool = True) -> None:
    """Refuse what is no `kind`, and None where the part is not optional."""
    if not isinstance(value, kind) and not (optional and value is None):
        ending = " or None" if optional else ""
        raise InputError(f"{name} must be a {kind.__name__}{ending}; got {shown(value)}.")


def check_tensor(name: str, value: object, *, whole: bool = False) -> None:
    """Refuse what is no tensor, or where `whole` is asked no tensor of whole numbers or bools."""
    odd = isinstance(value, Tensor) and whole and (value.is_floating_point() or value.is_complex())
    if odd or not isinstance(value, Tensor):
        got = f"{value.dtype}" if isinstance(value, Tensor) else shown(value)
        raise InputError(
            f"{name} must be a tensor{' of whole numbers' if whole else ''}; got {got}."
        )
