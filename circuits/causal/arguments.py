"""Checks of arguments that several causal measurements take."""

from __future__ import annotations

from numbers import Real
from typing import Any

from ...interp.errors import InputError, shown
from .stand_in import ABLATIONS, check_ablations


def one_ablation(ablation: Any) -> str:
    """The one way to remove a head.

    Raises:
        InputError: none, more than one, or one that is not known.

    Example:
        >>> one_ablation("mean")
        'mean'
    """
    one, *others = check_ablations(ablation)
    if others:
        raise InputError(
            f"ablation is one of {', '.join(ABLATIONS)} here; got {shown([one, *others])}. "
            "Measure each in a call of its own."
        )
    return one


def mass_margin(margin: Any) -> float:
    """The margin that a fall of attention mass must exceed.

    Raises:
        InputError: no number from 0 to below 1.

    Example:
        >>> mass_margin(0.05)
        0.05
    """
    real = isinstance(margin, Real) and not isinstance(margin, bool)
    value: Any = margin
    if not real or not 0 <= value < 1:
        raise InputError(f"margin is a mass, a number from 0 to below 1; got {shown(margin)}.")
    return float(value)
