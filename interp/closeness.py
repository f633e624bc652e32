"""How far two results of a model may be apart, and how far they are."""

from __future__ import annotations

import torch
from torch import Tensor


def half_digits(dtype: torch.dtype) -> float:
    """The limit on relative differences: half of the digits, √eps, of float32 at best.

    Models take norms and softmax in float32 even when their dtype is float64.

    Example:
        >>> half_digits(torch.float32) == half_digits(torch.float64) == 2**-11.5
        True
    """
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps) ** 0.5


def apart(seen: Tensor, own: Tensor) -> float:
    """How far two results are apart: ‖seen − own‖ / ‖own‖, over all of their entries.

    The norm, not the largest entry: in narrow dtypes a router's tie sends a token to another expert
    now and then, which moves all that this token says and nothing else.

    Example:
        >>> apart(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]))
        0.10000000149011612
    """
    if seen.shape != own.shape:
        return float("inf")
    wide = torch.promote_types(own.dtype, torch.float32)
    size = own.to(wide).norm().clamp(min=torch.finfo(wide).tiny)
    return ((seen.to(wide) - own.to(wide)).norm() / size).item()
