"""Which keys the queries of a layer may see: causality, window and padding as one mask."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...kernels.api import Mask
from ..errors import InputError
from ..masks import row_intervals
from .checks import check_tensor
from .config import Traits

Padding = Bool[Tensor, "batch seen"] | Int[Tensor, "batch seen"]


def visible_keys(
    traits: Traits,
    size: tuple[int, int, int],
    *,
    dropped: int,
    padding: Padding | None,
    like: Tensor,
) -> tuple[Mask, Tensor | None]:
    """The mask of one call, and a bias of −inf where padding leaves gaps that no interval can say.

    Args:
        traits: the layer's causality and window.
        size: sequences, queries, and keys kept; the last query stands on the last key.
        dropped: tokens before the first kept key.
        padding: True (1) where a token stands, over all tokens so far.
        like: tensor whose dtype and device the bias takes.

    Returns:
        (mask, bias [batch, 1, 1, key] or None).

    Raises:
        InputError: padding of another shape.
    """
    batch, n_query, n_key = size
    bounds, bias = None, None
    present = None
    if padding is not None:
        present = _present(padding, batch, dropped + n_key, like.device)[:, dropped:]
    if present is not None and n_key > 0:
        rows = row_intervals(present[:, None, None])
        if rows is None:
            hidden = torch.zeros(batch, 1, 1, n_key, dtype=like.dtype, device=like.device)
            bias = hidden.masked_fill(~present[:, None, None], float("-inf"))
        else:
            bounds = rows[:, 0]
    if traits.causal or traits.window is None:
        return Mask(causal=traits.causal, window=traits.window, k_range=bounds), bias
    here = torch.arange(n_key - n_query, n_key, device=like.device).expand(batch, n_query)
    lo, hi = here - traits.window + 1, here + traits.window
    if bounds is not None:
        lo, hi = lo.maximum(bounds[:, :1]), hi.minimum(bounds[:, 1:])
    return Mask(causal=False, k_range=torch.stack([lo, hi], -1)), bias


def _present(padding: Tensor, batch: int, n_seen: int, device: torch.device) -> Tensor:
    check_tensor("padding", padding, whole=True)
    if tuple(padding.shape) != (batch, n_seen):
        raise InputError(
            f"padding must be [batch, tokens so far] = [{batch}, {n_seen}], the cached tokens "
            f"included; got {list(padding.shape)}."
        )
    return padding.to(device=device, dtype=torch.bool)
