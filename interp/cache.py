"""What a capture kept: tensors by TransformerLens's names, in memory or in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from .errors import InputError
from .heads import HeadId
from .hook_names import full_name, what_exists


class Cache(Mapping[str, Tensor]):
    """What `capture` kept: a read-only mapping from names to tensors.

    `cache["blocks.5.attn.hook_pattern"]`, or short `cache["pattern", 5]`; in an encoder-decoder
    model `cache["enc.blocks.5.attn.hook_pattern"]` or `cache["pattern", 5, "enc"]`. A cache loaded
    from a file reads a tensor each time it is asked for.

    Attributes:
        tokens: the visible strings of each sequence.
        token_ids: token ids [batch, pos] (the encoder's, in an encoder-decoder model).
        mask: True where a token stands, False at padding [batch, pos].
        heads: the heads it was narrowed to, or None for all. Tensors with a head axis then hold
            only a layer's heads among these, in this order; k and v keep all their heads.
        rows: the query positions it was narrowed to, or None for all. The query axis of patterns
            and scores, and the pos axis of q, z and result, then hold these, in this order.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        *,
        tokens: list[list[str]],
        token_ids: Int[Tensor, "batch pos"],
        mask: Bool[Tensor, "batch pos"],
        heads: tuple[HeadId, ...] | None,
        rows: tuple[int, ...] | None = None,
    ) -> None:
        self._tensors = tensors
        self.tokens, self.token_ids, self.mask = tokens, token_ids, mask
        self.heads, self.rows = heads, rows

    def __getitem__(self, name: str | tuple[Any, ...]) -> Tensor:
        full = _full(name)
        if full is None:
            raise InputError(
                f"a key is a name such as 'blocks.5.attn.hook_z', or (kind, layer), or in an "
                f"encoder-decoder model (kind, layer, stack); got {name!r}."
            )
        if full not in self._tensors:
            raise InputError(f"{full!r} was not captured. {what_exists(self._tensors, full)}")
        return self._tensors[full]

    def n_bytes(self, name: str) -> int:
        """The size of a tensor in bytes; one in a file is not read for it."""
        known = getattr(self._tensors, "n_bytes", None)
        return self[name].nbytes if known is None else known(name)

    def __contains__(self, name: object) -> bool:
        full = _full(name)
        return full is not None and full in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Cache of {len(self)} tensors: {', '.join(list(self)[:3])}, …"


def _full(key: object) -> str | None:
    """The name that a key stands for; None: it is not of a key's form."""
    if isinstance(key, str):
        return key
    return full_name(*key) if isinstance(key, tuple) and len(key) in (2, 3) else None
