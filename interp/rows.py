"""How many vectors modules take and give, which tells whether their rows are all of the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from .errors import InputError
from .watch import watch_modules


class Rows:
    """Of each module that ran, how many vectors it took first, and how many it gave first."""

    def __init__(self) -> None:
        self._seen: dict[nn.Module, set[int]] = {}

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch the modules that run inside the block."""
        with watch_modules(model.modules(), self.note):
            yield

    def note(self, module: nn.Module, inputs: Sequence[Any], output: Any) -> None:
        """A module ran."""
        found = self._seen.setdefault(module, set())
        for first in map(_first, (inputs, output)):
            if first is not None:  # vectors lie along the last axis, or the second (SqueezeBERT)
                found |= {first.numel() // first.shape[axis] for axis in (-1, 1)}

    def check(self, module: nn.Module, label: str, batch: int, places: int) -> None:
        """Refuse a module that attends from parts of the vectors that it takes or gives.

        Windows laid side by side with the heads would pass for more heads on fewer tokens.

        Args:
            module: it.
            label: what the message calls it.
            batch: how many inputs the model read.
            places: from how many places of each it attends.

        Raises:
            InputError: neither what it took nor what it gave has so many vectors.
        """
        if batch * places not in self._seen.get(module, set()):
            raise InputError(
                f"{label} attends from {places} places of each of {batch} inputs, and takes or "
                "gives no such number of vectors: these are parts of the tokens, such as windows. "
                "The model is not supported."
            )


def _first(value: Any) -> Tensor | None:
    """The first tensor with axes in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return value if value.ndim > 1 and value.numel() else None
    parts = value.values() if isinstance(value, Mapping) else value
    if not isinstance(parts, str) and isinstance(parts, Sequence | type({}.values())):
        return next((found for part in parts if (found := _first(part)) is not None), None)
    return None
