"""Values that hold tensors and print without them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


class Brief:
    """A dataclass's repr with the shape of each tensor in place of its numbers.

    Example:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> @dataclass(repr=False)
        ... class Pair(Brief):
        ...     head: int
        ...     W: torch.Tensor
        >>> Pair(3, torch.zeros(2, 4))
        Pair(head=3, W=[2, 4] float32)
    """

    def __repr__(self) -> str:
        if not is_dataclass(self):
            return super().__repr__()
        parts = (f"{one.name}={_brief(getattr(self, one.name))}" for one in fields(self))
        return f"{type(self).__name__}({', '.join(parts)})"


def _brief(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
