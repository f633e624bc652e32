"""What an intervention may be given: which values go with which action, and their limits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .errors import InputError, shown
from .reference import Reference

SETS = ("patch", "mean", "resample", "freeze")  # these put in the values of another run
ACTIONS = ("zero", "gate", "add", *SETS)


def check_values(
    action: Any, target: str, values: Any, n_heads: int | None, n_columns: int | None
) -> None:
    """Refuse values that are not what an action takes.

    Args:
        action: what is done.
        target: a target.
        values: a factor, a vector, a `Reference` or None.
        n_heads: how many heads are named; None: every head, which no list of values matches.
        n_columns: how many columns are named; None: all.

    Raises:
        InputError: an unknown action, or values of another kind, shape or type, or not finite.
    """
    if action not in ACTIONS:
        raise InputError(
            f"an intervention's action is one of {', '.join(ACTIONS)}; got {action!r}."
        )
    if action == "zero" and values is not None:
        raise InputError(f"zero takes no values; got {type(values).__name__}. Leave them out.")
    if action in SETS and not isinstance(values, Reference):
        raise InputError(
            f"{action} takes the values of another run; got {type(values).__name__}. Make it with "
            f"{action}(…)."
        )
    if action == "freeze" and target != "pattern":
        raise InputError(f"freeze holds the pattern; got target {target!r}. Use patch for others.")
    if action == "gate":
        _check_factor(values, n_heads)
    if action == "add":
        _check_vector(values, target, n_heads, n_columns)


def as_factor(factor: Any) -> Tensor:
    """A factor as a tensor, the same one if it is one.

    Raises:
        InputError: neither a number nor a tensor.
    """
    if isinstance(factor, Tensor):
        return factor
    try:
        return torch.tensor(float(factor))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"factor must be a number or a tensor; got {shown(factor)}.") from None


def _check_factor(factor: Any, n_heads: int | None) -> None:
    shapes = ((),) if n_heads is None else ((), (n_heads,))
    fits = isinstance(factor, Tensor) and factor.is_floating_point()
    if not fits or tuple(factor.shape) not in shapes:
        listed = "" if n_heads is None else f" or one per head, [{n_heads}]"
        raise InputError(
            f"factor must be a number{listed}, of floating point; got {_kind(factor)}."
        )
    _check_finite("factor", factor)


def _check_vector(vector: Any, target: str, n_heads: int | None, n_columns: int | None) -> None:
    if target == "pattern":
        raise InputError("add to the scores instead: a pattern plus a vector is no attention.")
    leading: list[tuple[int, ...]] = [()]
    if n_heads is not None:
        leading.append((n_heads,))
        if n_columns is not None:
            leading.append((n_heads, n_columns))
    fits = isinstance(vector, Tensor) and vector.is_floating_point() and vector.ndim >= 1
    if not fits or tuple(vector.shape[:-1]) not in leading:
        shapes = [f"[{', '.join([*map(str, shape), 'width'])}]" for shape in leading]
        raise InputError(
            f"vector must be floating point {' or '.join(shapes)} (with positions also one per "
            f"head and position); got {_kind(vector)}."
        )
    _check_finite("vector", vector)


def _check_finite(name: str, values: Tensor) -> None:
    if not bool(values.detach().isfinite().all()):
        raise InputError(f"{name} must be finite; it holds NaN or infinite numbers.")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return type(value).__name__
