"""What a capture kept: tensors by TransformerLens's names, in memory or in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from .errors import InputError, shown
from .heads import HeadId
from .hook_names import full_name, last_layer, what_exists
from .plain_numbers import as_index

_MOST_LAYERS = 2**31  # numbers beyond it cannot even be written out


class Cache(Mapping[str, Tensor]):
    """What `capture` kept: a read-only mapping from names to tensors.

    `cache["blocks.5.attn.hook_pattern"]`, or short `cache["pattern", 5]`; in an encoder-decoder
    model `cache["enc.blocks.5.attn.hook_pattern"]` or `cache["pattern", 5, "enc"]`. A negative
    layer counts from the last one that was captured of its stack. A cache loaded from a file reads
    a tensor each time it is asked for.

    Attributes:
        tokens: the visible strings of each sequence.
        token_ids: token ids [batch, pos] (the encoder's, in an encoder-decoder model).
        mask: True where a token stands, False at padding [batch, pos].
        heads: the heads it was narrowed to, or None for all. Tensors with a head axis then hold
            only a layer's heads among these, in this order; k, rot_k and v keep all of theirs.
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
        return self._tensors[self._known(name)]

    def _known(self, name: object) -> str:
        """The name of a tensor that is there."""
        full = self._full(name)
        if full is None:
            raise InputError(
                f"a key is a name such as 'blocks.5.attn.hook_z', or (kind, layer), or in an "
                f"encoder-decoder model (kind, layer, stack); got {shown(name)}."
            )
        if full not in self._tensors:
            raise InputError(f"{full!r} was not captured. {what_exists(self._tensors, full)}")
        return full

    def n_bytes(self, name: str | tuple[Any, ...]) -> int:
        """The size of a tensor in bytes; one in a file is not read for it.

        Raises:
            InputError: it was not captured.
        """
        full = self._known(name)
        stored = getattr(self._tensors, "n_bytes", None)
        if stored is not None:
            return stored(full)
        tensor = self._tensors[full]
        return tensor.numel() * tensor.element_size()

    def __contains__(self, name: object) -> bool:
        full = self._full(name)
        return full is not None and full in self._tensors

    def _full(self, key: object) -> str | None:
        """The name that a key stands for; None: it is not of a key's form."""
        if isinstance(key, str):
            return key
        if not isinstance(key, tuple) or len(key) not in (2, 3):
            return None
        kind, layer, *stack = key
        if not isinstance(layer, str):
            number = as_index(layer)
            if number is None or abs(number) > _MOST_LAYERS:
                return None
            layer = number + last_layer(self._tensors, *stack) + 1 if number < 0 else number
        return full_name(kind, layer, *stack)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Cache of {len(self)} tensors: {', '.join(list(self)[:3])}, …"
