"""Attention masks in O(N) memory: each query's visible keys as one interval.

transformers builds masks through a registry keyed by the attention implementation's name, and hands
an implementation without an entry no mask at all. `visible_keys` is that entry for ours: it asks
transformers for the model's own mask a few rows at a time and keeps one key interval per row.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)

from ..kernels.api import Mask
from .errors import InputError

NAME = "headatlas"  # transformers reads meaning into names with eager, sdpa, flash, flex or paged

# Set while `generate` builds the masks of a static cache: it hands them back to the model, which
# takes ready masks only as tensors.
AS_TENSOR: ContextVar[bool] = ContextVar("headatlas_as_tensor", default=False)

# Mask elements evaluated at a time: some 16 MB of int64 temporaries.
CHUNK_ELEMENTS = 1 << 20


@torch.compiler.disable  # its steps depend on the mask's content, which no graph holds
def visible_keys(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_unused: Any,
) -> Mask | Tensor:
    """The model's own mask as key intervals: keys j with lo[b, i] ≤ j < hi[b, i].

    Args:
        batch_size: sequences.
        q_length: queries per sequence.
        kv_length: keys per sequence.
        q_offset: position of the first query (the length of the cache).
        kv_offset: position of the first key (a sliding cache has dropped earlier ones).
        mask_function: transformers' mask function, `(batch, head, query, key) -> bool`.
        attention_mask: 2-D padding mask over positions, True where a token stands.
        use_vmap: evaluate the function one index at a time; some are not written for tensors.
        device: where to build.

    Returns:
        A `Mask` with `k_range` [batch, query, 2] and `q_pos` [batch, query], or the dense boolean
        mask [batch, head, query, key] where some row is not one interval, and for static caches,
        whose masks `generate` prepares as tensors. Never None: transformers'
        None means "causal" to one implementation and "everything" to another.

    Example:
        >>> mask = visible_keys(1, 3, 3, attention_mask=torch.tensor([[False, True, True]]))
        >>> mask.k_range.tolist()
        [[[0, 0], [1, 2], [1, 3]]]
    """

    def rows(start: int, count: int) -> Any:
        return sdpa_mask(
            batch_size=batch_size,
            q_length=count,
            kv_length=kv_length,
            q_offset=q_offset + start,  # pyright: ignore[reportArgumentType] (a static cache's offset is a tensor)
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            use_vmap=use_vmap,
            device=device,
        )

    if AS_TENSOR.get():
        return rows(0, q_length)
    first = int(q_offset) - kv_offset
    q_pos = torch.arange(first, first + q_length, device=device).expand(batch_size, q_length)
    ranges = None
    if mask_function in (causal_mask_function, bidirectional_mask_function):
        causal = mask_function is causal_mask_function
        ranges = _closed_form(q_pos, kv_length, kv_offset, attention_mask, causal=causal)
    if ranges is not None:
        return Mask(causal=False, k_range=ranges, q_pos=q_pos)

    step = max(1, CHUNK_ELEMENTS // max(1, batch_size * kv_length))
    chunks = []
    for start in range(0, q_length, step):
        chunk = row_intervals(rows(start, min(step, q_length - start)))
        if chunk is None:
            return rows(0, q_length)
        chunks.append(chunk)
    return Mask(causal=False, k_range=torch.cat(chunks, 1), q_pos=q_pos)


def row_intervals(allowed: Bool[Tensor, "batch head query key"]) -> Tensor | None:
    """Half-open key intervals [batch, query, 2] of a boolean mask, or None where it has others.

    A row without keys is [0, 0). A mask that differs between heads has no interval per row.

    Example:
        >>> row_intervals(torch.tensor([[[[False, True, True]]]])).tolist()
        [[[1, 3]]]
    """
    if allowed.shape[1] != 1:
        return None
    dense = allowed[:, 0].to(torch.uint8)
    n_key = dense.shape[-1]
    count = dense.sum(-1, dtype=torch.int64)
    lo = dense.argmax(-1)
    hi = n_key - dense.flip(-1).argmax(-1)
    live = count > 0
    if bool((live & (hi - lo != count)).any()):
        return None
    zero = torch.zeros_like(lo)
    return torch.stack([torch.where(live, lo, zero), torch.where(live, hi, zero)], -1)


def _closed_form(
    q_pos: Int[Tensor, "batch query"],
    n_key: int,
    kv_offset: int,
    padding: Tensor | None,
    *,
    causal: bool,
) -> Tensor | None:
    """Intervals of a plain causal or full mask, or None where padding leaves a gap."""
    batch, n_query = q_pos.shape
    lo = torch.zeros_like(q_pos)
    hi = (q_pos + 1).clamp(0, n_key) if causal else torch.full_like(q_pos, n_key)
    if padding is not None:
        present = padding[:, kv_offset : kv_offset + n_key].to(
            device=q_pos.device, dtype=torch.bool
        )
        if present.shape[0] != batch:
            return None
        # Positions past the end of the 2-D mask are keys a static cache has yet to fill.
        present = nn.functional.pad(present, (0, n_key - present.shape[1]))
        ends = row_intervals(present[:, None, None])
        if ends is None:
            return None
        lo = ends[:, :, 0].expand(batch, n_query)
        hi = hi.minimum(ends[:, :, 1])
    return torch.stack([torch.where(hi > lo, lo, 0), torch.where(hi > lo, hi, 0)], -1)


def read_mask(
    attention_mask: Any, q: Tensor, k: Tensor, *, causal: bool
) -> tuple[Mask, Tensor | None]:
    """What an attention module received as its mask, as (mask, additive bias).

    Args:
        attention_mask: our `Mask`; a 4-D tensor, boolean (True = visible) or additive; or None.
        q: queries [batch, head, query, d_head].
        k: keys [batch, kv_head, key, d_head].
        causal: what None means when there is more than one query. transformers aligns it at the
            upper left: query i sees keys 0..i.

    Returns:
        The mask, and a bias [#batch, #head, query, key] with −inf at forbidden keys, or None.

    Raises:
        InputError: a mask of another kind or shape.
    """
    batch, _, n_query, _ = q.shape
    n_key = k.shape[2]
    if isinstance(attention_mask, Mask):
        return attention_mask, None
    if attention_mask is None:
        if not causal or n_query == 1:
            return Mask(causal=False), None
        q_pos = torch.arange(n_query, device=q.device).expand(batch, n_query)
        return Mask(causal=True, q_pos=q_pos), None
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 4:
        got = getattr(attention_mask, "shape", type(attention_mask).__name__)
        raise InputError(
            f"an attention mask must be 4-D, [batch, head, query, key]; got {got}. "
            "Pass the model a 2-D padding mask [batch, pos] and let it build its own."
        )
    if attention_mask.shape[-1] != n_key or attention_mask.shape[-2] not in (1, n_query):
        raise InputError(
            f"the attention mask has shape {tuple(attention_mask.shape)}, but there are {n_query} "
            f"queries and {n_key} keys. Pass a mask of shape [batch, 1, {n_query}, {n_key}]."
        )
    return Mask(causal=False), _additive(attention_mask, q.dtype).expand(-1, -1, n_query, n_key)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(
            ~mask, float("-inf")
        )
    if not mask.is_floating_point():
        raise InputError(
            f"a 4-D attention mask must be boolean or additive floats; got {mask.dtype}. "
            "Convert it with .bool() if 1 means visible."
        )
    # Models write "forbidden" as the most negative number of their dtype; sums may fall just short.
    forbidden = mask <= torch.finfo(mask.dtype).min / 2
    return mask.masked_fill(forbidden, float("-inf")).to(dtype)
