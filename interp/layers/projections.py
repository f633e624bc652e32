"""From the residual stream to heads: fused projections, biases, QK-norm, RoPE."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .config import AttentionConfig
from .kv_cache import AnyCache, KVCache
from .rope import Rotation, rotate


@dataclass(frozen=True, eq=False)
class Projected:
    """The new tokens' queries, and what the cache keeps of them.

    Attributes:
        q: queries before RoPE [batch, head, pos, d_key].
        rot_q: queries as attention receives them.
        unrotated: what `cache` would hold without RoPE.
        cache: keys and values, or latents, of the new tokens.
    """

    q: Float[Tensor, "batch head pos d_key"]
    rot_q: Float[Tensor, "batch head pos d_key"]
    unrotated: AnyCache
    cache: AnyCache

    def to(self, dtype: torch.dtype) -> Projected:
        """The same in another dtype."""
        q, rot_q = self.q.to(dtype), self.rot_q.to(dtype)
        return Projected(q, rot_q, self.unrotated.to(dtype), self.cache.to(dtype))


class HeadProjections(nn.Module):
    """The input projections of MHA, MQA and GQA: q = X W_Q + b_Q, and so k and v.

    Attributes:
        W_Q: [d_model, n_heads · d_head]; columns head by head.
        W_K, W_V: [d_model, kv_heads · d_head].
        b_Q, b_K, b_V: biases, or None.
        q_gain, k_gain: weights of the QK-norm [d_head], or None.

    Reference: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023.
    """

    def __init__(self, config: AttentionConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        d_model, d_head = config.d_model, config.d_key
        n_q, n_kv = config.n_heads * d_head, config.kv_heads * d_head
        self.W_Q = random_matrix(d_model, n_q, generator)
        self.W_K = random_matrix(d_model, n_kv, generator)
        self.W_V = random_matrix(d_model, n_kv, generator)
        biased = config.traits.bias != "none"
        self.b_Q = zeros(n_q) if biased else None
        self.b_K = zeros(n_kv) if biased else None
        self.b_V = zeros(n_kv) if biased else None
        norm = config.traits.qk_norm
        gain = 0.0 if norm is not None and norm.unit_offset else 1.0
        self.q_gain = None if norm is None else nn.Parameter(torch.full((d_head,), gain))
        self.k_gain = None if norm is None else nn.Parameter(torch.full((d_head,), gain))

    def rotation(self, positions: Int[Tensor, "batch pos"], dtype: torch.dtype) -> Rotation | None:
        """RoPE's angles at `positions`, or None without RoPE."""
        rope = self.config.rope
        return None if rope is None else rope.rotation(positions, self.config.d_key, dtype)

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], rotation: Rotation | None
    ) -> Projected:
        """Queries, keys and values of the tokens in `x`."""
        config = self.config
        q = split_heads(affine(x, self.W_Q, self.b_Q), config.n_heads)
        k = split_heads(affine(x, self.W_K, self.b_K), config.kv_heads)
        v = split_heads(affine(x, self.W_V, self.b_V), config.kv_heads)
        norm = config.traits.qk_norm
        if norm is not None and self.q_gain is not None and self.k_gain is not None:
            q = rms_norm(q, self.q_gain, norm.eps, unit_offset=norm.unit_offset)
            k = rms_norm(k, self.k_gain, norm.eps, unit_offset=norm.unit_offset)
        unrotated = KVCache(k, v)
        if rotation is None or config.rope is None:
            return Projected(q, q, unrotated, unrotated)
        interleaved = config.rope.interleaved
        rot_q = rotate(q, rotation, interleaved=interleaved)
        rot_k = rotate(k, rotation, interleaved=interleaved)
        return Projected(q, rot_q, unrotated, KVCache(rot_k, v))

    def keys_values(self, cache: AnyCache) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, kv_head, key, d_head] of all tokens in the cache."""
        if not isinstance(cache, KVCache):
            raise TypeError(f"expected a KVCache; got {type(cache).__name__}")
        return cache.k, cache.v


def random_matrix(n_in: int, n_out: int, generator: torch.Generator) -> nn.Parameter:
    """Entries of variance 1 / n_in, so that unit-variance inputs give unit-variance outputs."""
    return nn.Parameter(torch.randn(n_in, n_out, generator=generator) * n_in**-0.5)


def zeros(n: int) -> nn.Parameter:
    """A bias before training."""
    return nn.Parameter(torch.zeros(n))


def affine(
    x: Float[Tensor, "batch pos n_in"],
    weight: Float[Tensor, "n_in n_out"],
    bias: Float[Tensor, " n_out"] | None,
) -> Float[Tensor, "batch pos n_out"]:
    """x W + b."""
    y = x @ weight
    return y if bias is None else y + bias.to(y.dtype)  # autocast narrows the product alone


def split_heads(
    x: Float[Tensor, "batch pos width"], n_heads: int
) -> Float[Tensor, "batch {n_heads} pos d_head"]:
    """T × d viewed as T × h × d_head, heads in front: [batch, pos, h · d] → [batch, h, pos, d]."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def rms_norm(
    x: Float[Tensor, "*shape width"],
    gain: Float[Tensor, " width"],
    eps: float,
    *,
    unit_offset: bool = False,
) -> Float[Tensor, "*shape width"]:
    """x / √(mean x² + eps) · gain, in at least float32; the gain is 1 + `gain` with unit_offset.

    Example:
        >>> rms_norm(torch.tensor([3.0, 4.0]), torch.ones(2), 0.0)
        tensor([0.8485, 1.1314])

    Reference: Zhang and Sennrich 2019.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    unit = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if unit_offset:
        return (unit * (1 + gain.to(wide.dtype))).to(x.dtype)
    return gain * unit.to(x.dtype)
