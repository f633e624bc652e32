"""Attention that stays within each token, among states of several layers: no head of a sequence.

Some models let every token choose among what earlier layers made of it, by attention over layers.
It goes through transformers' registry like any other, with the tokens where heads lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from .attach import hooked
from .frames import WITHIN_TOKENS, Frame

_Calls = dict[nn.Module, list[tuple[Tensor, Tensor]]]


def note_within_tokens(
    model: PreTrainedModel, run: Callable[[int], Any], lengths: tuple[int, int]
) -> bool:
    """Look for modules that attend within each token, and have frames let their calls pass.

    In runs on different numbers of tokens, the axis of their heads is as long as the sequence, and
    those of their queries and keys stay what they are: no number moves between tokens there.

    Args:
        model: the model.
        run: runs it on so many tokens.
        lengths: two numbers of tokens.

    Returns:
        Whether there are any that were not known.
    """
    one, other = (_calls(model, run, length) for length in lengths)
    found = {
        module
        for module, calls in one.items()
        if len(calls) == len(other.get(module, ()))
        and all(
            _heads(mine) == {lengths[0]}
            and _heads(its) == {lengths[1]}
            and [x.shape[2:] for x in mine] == [x.shape[2:] for x in its]
            for mine, its in zip(calls, other[module], strict=True)
        )
    }
    new = found - set(WITHIN_TOKENS)
    WITHIN_TOKENS.update(new)
    return bool(new)


def _heads(tensors: tuple[Tensor, Tensor]) -> set[int]:
    return {x.shape[1] for x in tensors}


def _calls(model: PreTrainedModel, run: Callable[[int], Any], length: int) -> _Calls:
    """The queries and keys of each call of a run, by module."""
    calls: _Calls = {}

    def note(module: nn.Module, q: Tensor, k: Tensor, _: Tensor) -> None:
        calls.setdefault(module, []).append((q, k))

    with hooked(model, Frame(note, (), (), model)):
        run(length)
    return calls
