"""What a layer remembers of earlier tokens when it decodes, as values: adding returns a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..brief import Brief
from ..errors import InputError
from .checks import check_count

C = TypeVar("C", bound="TokenCache")


@dataclass(frozen=True, eq=False, repr=False)
class TokenCache(Brief):
    """What caches of any layout do: tensors whose last axis but one counts the tokens kept.

    Args:
        dropped: tokens before the first kept one, which no later query can see.
    """

    dropped: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_count("dropped", self.dropped, least=0)
        shapes = {name: getattr(getattr(self, name), "shape", ()) for name in self._names()}
        counts = {tuple(shape[:-1]) for shape in shapes.values()}
        if len(counts) > 1 or () in counts:
            listed = " and ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise InputError(
                f"a {type(self).__name__} holds tensors that differ at most in their last axis; "
                f"got {listed}."
            )

    @property
    def n_keys(self) -> int:
        """Tokens kept."""
        return self._tensors()[0].shape[-2]

    @property
    def n_seen(self) -> int:
        """Tokens seen, the dropped ones included: the position of the next."""
        return self.dropped + self.n_keys

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the tensors hold, read off their storages."""
        tensors = [t for t in self._tensors() if t.numel()]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
        return sum(storage.nbytes() for storage in storages.values())

    def extend(self: C, new: TokenCache) -> C:
        """This cache and the next tokens behind it.

        Raises:
            InputError: a cache of another layout, shape, dtype or device.
        """
        if type(new) is not type(self):
            raise InputError(f"cannot add a {type(new).__name__} to a {type(self).__name__}.")
        pairs = zip(self._tensors(), new._tensors(), strict=True)
        return self._holding([_append(old, behind) for old, behind in pairs])

    def keep(self: C, n_keys: int) -> C:
        """The newest `n_keys` tokens alone; the memory of the others is free."""
        gone = max(0, self.n_keys - n_keys)
        if gone == 0:
            return self
        kept = [t[..., gone:, :].clone() for t in self._tensors()]
        return self._holding(kept, dropped=self.dropped + gone)

    def to(self: C, dtype: torch.dtype) -> C:
        """The same tokens in another dtype."""
        return self._holding([t.to(dtype) for t in self._tensors()])

    def _names(self) -> list[str]:
        return [f.name for f in fields(self) if f.name != "dropped"]

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, name) for name in self._names()]

    def _holding(self: C, tensors: Sequence[Tensor], **changes: Any) -> C:
        return replace(self, **dict(zip(self._names(), tensors, strict=True)), **changes)


@dataclass(frozen=True, eq=False, repr=False)
class KVCache(TokenCache):
    """Rotated keys and values of the tokens so far; 2 · kv_head · d_head numbers per token.

    Args:
        k: keys, after QK-norm and RoPE.
        v: values.
        dropped: tokens before the first kept one, which no later query can see.

    Example:
        >>> cache = KVCache(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
        >>> cache.n_seen, cache.nbytes == 2 * 2 * 3 * 4 * 4
        (3, True)
        >>> cache.keep(2).k.shape, cache.keep(2).n_seen
        (torch.Size([1, 2, 2, 4]), 3)

    Reference: Shazeer 2019 for its size; Ainslie et al. 2023.
    """

    k: Float[Tensor, "batch kv_head key d_key"]
    v: Float[Tensor, "batch kv_head key d_value"]


@dataclass(frozen=True, eq=False, repr=False)
class LatentCache(TokenCache):
    """The latent and the shared rotary key of the tokens so far; d_c + d_R numbers per token.

    Args:
        latent: normalised latents c.
        k_rope: rotary keys after RoPE.
        dropped: tokens before the first kept one, which no later query can see.

    Example:
        >>> cache = LatentCache(torch.zeros(1, 3, 16), torch.zeros(1, 3, 4))
        >>> cache.nbytes == 3 * (16 + 4) * 4
        True

    Reference: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.
    """

    latent: Float[Tensor, "batch key d_latent"]
    k_rope: Float[Tensor, "batch key d_rope"]


AnyCache = KVCache | LatentCache


def _append(old: Tensor, new: Tensor) -> Tensor:
    if old.dtype != new.dtype or old.device != new.device:
        raise InputError(
            f"the cache holds {old.dtype} on {old.device}, the layer now gives {new.dtype} on "
            f"{new.device}. Start from an empty cache."
        )
    if (*old.shape[:-2], old.shape[-1]) != (*new.shape[:-2], new.shape[-1]):
        raise InputError(
            f"the cache holds tensors {list(old.shape)}, the layer now gives {list(new.shape)}: "
            "batch, heads and widths must be the same. Start from an empty cache."
        )
    return torch.cat([old, new], -2)
