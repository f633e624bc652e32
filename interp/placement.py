"""Where in the sequence the queries and keys of one attention call stand, cached decoding included.

A step of cached decoding holds the last queries only, and a sliding cache has dropped its first
keys. transformers knows both offsets when it builds a mask; they are noted with the mask here.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from ..kernels.api import Mask
from .masks import AS_TENSOR, NAME, visible_keys


@dataclass(frozen=True)
class Placement:
    """The columns of the sequence, padding included, that the first query and key stand on.

    Example:
        >>> Placement(query=7, key=0).query
        7
    """

    query: int
    key: int


_NOTED: MutableMapping[Any, Placement] = WeakIdKeyDictionary()  # mask -> Placement

# First column of the decoder's queries in its latest self-attention: cross-attention has the same
# queries, but its mask counts from 0 also in cached decoding.
_DECODER: ContextVar[int | None] = ContextVar("headatlas_decoder_column", default=None)


@torch.compiler.disable
def placed_visible_keys(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    **options: Any,
) -> Mask | Tensor:
    """`visible_keys`, with a note of where its queries and keys stand."""
    build: Any = visible_keys  # torch types what `disable` returns as a decorator
    made = build(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, **options)
    if isinstance(made, Tensor) and AS_TENSOR.get():
        made = made.contiguous()  # as `generate` does, which would make another object of it
    _NOTED[made] = Placement(int(q_offset), int(kv_offset))
    return made


def placement(mask: Any, n_query: int, n_key: int, stack: str) -> Placement | None:
    """Where the queries and keys of a call stand; None where its mask does not tell.

    Args:
        mask: what the attention module received as its mask.
        n_query: queries of the call.
        n_key: keys of the call.
        stack: `"cross"` for cross-attention, whose queries are those of the decoder's
            self-attention just before.
    """
    if stack == "cross":
        column = _DECODER.get()
        return None if column is None else Placement(column, 0)
    known = None if mask is None else _NOTED.get(mask)
    if known is None and n_query == n_key:
        known = Placement(0, 0)
    if stack == "dec":
        _DECODER.set(None if known is None else known.query)
    return known


def note_decoder(column: int) -> None:
    """Where the decoder's queries stand, for the cross-attention that comes next."""
    _DECODER.set(column)


def register() -> None:
    """Enter `placed_visible_keys` into transformers' mask registry; repeating changes nothing."""
    AttentionMaskInterface.register(NAME, placed_visible_keys)
