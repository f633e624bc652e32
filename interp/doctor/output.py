"""What a run of a model gave, token by token, and how far two runs are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..closeness import apart

_FEW = 0.1  # of the tokens, that rounding may send elsewhere


@dataclass(frozen=True, eq=False)
class Output:
    """A run of one sequence.

    Attributes:
        values: logits or hidden states [1, pos, width].
        choices: what the model's routers chose [pos, k], in order; empty without routers.
    """

    values: Tensor
    choices: tuple[Tensor, ...] = ()

    @staticmethod
    def joined(parts: Sequence[Output]) -> Output:
        """Consecutive parts of one sequence as one."""
        pairs = zip(*(part.choices for part in parts), strict=False)
        choices = tuple(torch.cat(pair) for pair in pairs if len({p.shape[1] for p in pair}) == 1)
        return Output(torch.cat([part.values for part in parts], 1), choices)


def record(run: Callable[[], Tensor]) -> Output:
    """A run and what its routers chose meanwhile."""
    choices = _Choices()
    with choices:
        values = run()
    return Output(values, tuple(choices.found))


def gap(seen: Output, own: Output) -> tuple[float, int]:
    """How far two runs are apart, and how many tokens were left out of that.

    A token whose experts differ between the runs gives another output altogether, because of a tie
    that rounding decided. Up to a tenth of the tokens may be left out for it; where more differ,
    none is.
    """
    moved = _moved(seen, own)
    if moved is None or not 0 < int(moved.sum()) <= _FEW * len(moved):
        return apart(seen.values, own.values), 0
    return apart(seen.values[:, ~moved], own.values[:, ~moved]), int(moved.sum())


def left_out(tokens: int) -> str:
    """How reports tell of tokens left out.

    Example:
        >>> left_out(2), left_out(0)
        (' (2 tokens whose experts changed left out)', '')
    """
    return f" ({tokens} tokens whose experts changed left out)" if tokens else ""


def _moved(seen: Output, own: Output) -> Tensor | None:
    """Which tokens went to other experts; None where that cannot be said."""
    if seen.values.ndim != 3 or len(seen.choices) != len(own.choices):
        return None
    n = seen.values.shape[1]
    moved = torch.zeros(n, dtype=torch.bool, device=seen.values.device)
    for one, other in zip(seen.choices, own.choices, strict=True):
        if len(one) == n and one.shape == other.shape:
            moved |= (one.sort(-1)[0] != other.sort(-1)[0]).any(-1).to(moved.device)
    return moved


class _Choices(TorchFunctionMode):
    """Notes the indices of each `topk` over the last axis, which is how routers choose."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in (torch.topk, Tensor.topk):
            self.found.append(made[1].reshape(-1, made[1].shape[-1]))
        return made
