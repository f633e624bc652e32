"""What autocast means for attention: which dtype it takes its inputs in, and that it ends there."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype that `torch.autocast` narrows to on this device; None where it is off.

    Example:
        >>> cpu = torch.device("cpu")
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     autocast_dtype(cpu)
        torch.bfloat16
        >>> autocast_dtype(cpu) is None
        True
    """
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def narrowed(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What autocast makes of a dtype: float64 stays, as in its matrix products.

    Example:
        >>> narrowed(torch.float32, torch.device("cpu"))
        torch.float32
    """
    narrow = autocast_dtype(device)
    return dtype if narrow is None or dtype == torch.float64 else narrow


def as_attended(*tensors: Tensor) -> list[Tensor]:
    """What autocast makes of an attention's inputs: RoPE leaves q and k wider than v."""
    return [t.to(narrowed(t.dtype, t.device)) for t in tensors]


def autocast_off(device: torch.device) -> AbstractContextManager[Any]:
    """For what follows its casts: left on, it would round scores and statistics as well."""
    on = autocast_dtype(device) is not None
    return torch.autocast(device.type, enabled=False) if on else nullcontext()
