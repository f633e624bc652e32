"""What a layer remembers of earlier tokens when it decodes, as values: adding returns a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError


@dataclass(frozen=True, eq=False)
class KVCache:
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
    dropped: int = 0

    @property
    def n_keys(self) -> int:
        """Tokens kept."""
        return self.k.shape[2]

    @property
    def n_seen(self) -> int:
        """Tokens seen, the dropped ones included: the position of the next."""
        return self.dropped + self.n_keys

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the tensors hold, read off their storages."""
        return _bytes_held((self.k, self.v))

    def extend(self, new: KVCache) -> KVCache:
        """This cache and the next tokens behind it."""
        k, v = _append((self.k, self.v), (new.k, new.v), axis=2)
        return KVCache(k, v, self.dropped)

    def keep(self, n_keys: int) -> KVCache:
        """The newest `n_keys` tokens alone; the memory of the others is free."""
        gone = max(0, self.n_keys - n_keys)
        if gone == 0:
            return self
        k, v = self.k[:, :, gone:].clone(), self.v[:, :, gone:].clone()
        return replace(self, k=k, v=v, dropped=self.dropped + gone)


@dataclass(frozen=True, eq=False)
class LatentCache:
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
    dropped: int = 0

    @property
    def n_keys(self) -> int:
        """Tokens kept."""
        return self.latent.shape[1]

    @property
    def n_seen(self) -> int:
        """Tokens seen, the dropped ones included: the position of the next."""
        return self.dropped + self.n_keys

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the tensors hold, read off their storages."""
        return _bytes_held((self.latent, self.k_rope))

    def extend(self, new: LatentCache) -> LatentCache:
        """This cache and the next tokens behind it."""
        latent, k_rope = _append((self.latent, self.k_rope), (new.latent, new.k_rope), axis=1)
        return LatentCache(latent, k_rope, self.dropped)

    def keep(self, n_keys: int) -> LatentCache:
        """The newest `n_keys` tokens alone; the memory of the others is free."""
        gone = max(0, self.n_keys - n_keys)
        if gone == 0:
            return self
        latent, k_rope = self.latent[:, gone:].clone(), self.k_rope[:, gone:].clone()
        return replace(self, latent=latent, k_rope=k_rope, dropped=self.dropped + gone)


AnyCache = KVCache | LatentCache


def _bytes_held(tensors: Sequence[Tensor]) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors if t.numel()}
    return sum(storage.nbytes() for storage in storages.values())


def _append(old: Sequence[Tensor], new: Sequence[Tensor], *, axis: int) -> list[Tensor]:
    for before, after in zip(old, new, strict=True):
        if before.dtype != after.dtype or before.device != after.device:
            raise InputError(
                f"the cache holds {before.dtype} on {before.device}, the layer now gives "
                f"{after.dtype} on {after.device}. Start from an empty cache."
            )
        kept = [n for i, n in enumerate(before.shape) if i != axis]
        if kept != [n for i, n in enumerate(after.shape) if i != axis]:
            raise InputError(
                f"the cache holds tensors {list(before.shape)}, the layer now gives "
                f"{list(after.shape)}: batch, heads and widths must be the same. Start from an "
                "empty cache."
            )
    return [torch.cat(pair, axis) for pair in zip(old, new, strict=True)]
