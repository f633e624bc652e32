"""Multi-head latent attention: keys and values of all heads from one latent per token."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .config import AttentionConfig, Latent
from .kv_cache import AnyCache, LatentCache
from .projections import Projected, affine, random_matrix, rms_norm, split_heads, zeros
from .rope import Rotation, rotate


class LatentProjections(nn.Module):
    """The input projections of MLA.

        c = norm(X W_DKV + b_DKV),  k_rope = rope(X W_KR + b_KR)        (kept in the cache)
        k_h = [c W_UK_h ; k_rope],  v_h = c W_UV_h
        q_h = columns of norm(X W_DQ + b_DQ) W_Q, or of X W_Q + b_Q without a query latent;
              its last d_rope dimensions are turned

    Attributes:
        W_DKV, W_KR: [d_model, d_latent], [d_model, d_rope]; b_DKV, b_KR: biases, or None.
        W_UK, W_UV: [d_latent, n_heads · d_nope], [d_latent, n_heads · d_value].
        W_DQ: [d_model, q_rank], or None; b_DQ: its bias, or None.
        W_Q: [q_rank or d_model, n_heads · (d_nope + d_rope)]; b_Q: bias where W_Q reads x, or None.
        kv_gain, q_gain: weights of the latents' norms.

    Reference: DeepSeek-AI 2024 (DeepSeek-V2), equations 9 to 19.
    """

    def __init__(self, config: AttentionConfig, generator: torch.Generator) -> None:
        super().__init__()
        if config.latent is None:
            raise TypeError("LatentProjections needs a config with a latent")
        self.config, self.latent = config, config.latent
        latent, d_model, heads = self.latent, config.d_model, config.n_heads
        biased = config.traits.bias != "none"
        self.W_DKV = random_matrix(d_model, latent.d_latent, generator)
        self.W_KR = random_matrix(d_model, latent.d_rope, generator)
        self.W_UK = random_matrix(latent.d_latent, heads * latent.d_nope, generator)
        self.W_UV = random_matrix(latent.d_latent, heads * latent.d_value, generator)
        self.b_DKV = zeros(latent.d_latent) if biased else None
        self.b_KR = zeros(latent.d_rope) if biased else None
        self.kv_gain = nn.Parameter(torch.ones(latent.d_latent))
        rank, n_q = latent.q_rank, heads * config.d_key
        self.W_DQ = None if rank is None else random_matrix(d_model, rank, generator)
        self.b_DQ = zeros(rank) if biased and rank is not None else None
        self.q_gain = None if rank is None else nn.Parameter(torch.ones(rank))
        self.W_Q = random_matrix(d_model if rank is None else rank, n_q, generator)
        self.b_Q = zeros(n_q) if biased and rank is None else None

    def rotation(self, positions: Int[Tensor, "batch pos"], dtype: torch.dtype) -> Rotation | None:
        """RoPE's angles at `positions`, or None without RoPE."""
        rope = self.config.rope
        return None if rope is None else rope.rotation(positions, self.latent.d_rope, dtype)

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], rotation: Rotation | None
    ) -> Projected:
        """Queries of the tokens in `x`, and their latents and rotary keys."""
        source = x
        if self.W_DQ is not None and self.q_gain is not None:
            source = rms_norm(affine(x, self.W_DQ, self.b_DQ), self.q_gain, self.latent.norm_eps)
        q = split_heads(affine(source, self.W_Q, self.b_Q), self.config.n_heads)
        latent = rms_norm(affine(x, self.W_DKV, self.b_DKV), self.kv_gain, self.latent.norm_eps)
        k_rope = affine(x, self.W_KR, self.b_KR)
        unrotated = LatentCache(latent, k_rope)
        if rotation is None or self.config.rope is None:
            return Projected(q, q, unrotated, unrotated)
        interleaved, d_nope = self.config.rope.interleaved, self.latent.d_nope
        turned = rotate(q[..., d_nope:], rotation, interleaved=interleaved)
        rot_q = torch.cat([q[..., :d_nope], turned], -1)
        turned = rotate(k_rope[:, None], rotation, interleaved=interleaved)[:, 0]
        return Projected(q, rot_q, unrotated, LatentCache(latent, turned))

    def keys_values(self, cache: AnyCache) -> tuple[Tensor, Tensor]:
        """Keys [batch, head, key, d_key] and values [.., d_value] written out by up-projection."""
        held, heads = _latents(cache), self.config.n_heads
        nope = split_heads(held.latent @ self.W_UK, heads)
        rope = held.k_rope[:, None].expand(-1, heads, -1, -1)
        return torch.cat([nope, rope], -1), split_heads(held.latent @ self.W_UV, heads)

    def absorbed(
        self, q: Float[Tensor, "batch head pos d_key"], cache: AnyCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same attention as one shared key head over the latents: W_UK moves into the query.

            q_h · k_h = q_nope_h · (c W_UK_h) + q_rope_h · k_rope = [q_nope_h W_UK_hᵀ ; q_rope_h]
                        · [c ; k_rope]

        Args:
            q: queries after RoPE.
            cache: the latents.

        Returns:
            queries [batch, head, pos, d_latent + d_rope], keys [batch, 1, key, d_latent + d_rope]
            and values [batch, 1, key, d_latent]. What attention makes of them goes through
            `from_latent`.
        """
        held, d_nope = _latents(cache), self.latent.d_nope
        inner = torch.einsum("bhnd,chd->bhnc", q[..., :d_nope], per_head(self.W_UK, self.config))
        q = torch.cat([inner, q[..., d_nope:]], -1)
        k = torch.cat([held.latent, held.k_rope], -1)
        return q, k[:, None], held.latent[:, None]

    def from_latent(
        self, z: Float[Tensor, "batch head pos d_latent"]
    ) -> Float[Tensor, "batch head pos d_value"]:
        """z of each head from its mixture of latents: W_UV, moved behind attention."""
        return torch.einsum("bhnc,chv->bhnv", z, per_head(self.W_UV, self.config))


def per_head(
    weight: Float[Tensor, "n_in width"], config: AttentionConfig
) -> Float[Tensor, "n_in head d_head"]:
    """A fused matrix with its columns split by head."""
    return weight.unflatten(-1, (config.n_heads, -1))


def absorbed_widths(latent: Latent) -> tuple[int, int]:
    """Widths of a query and of a value under absorption."""
    return latent.d_latent + latent.d_rope, latent.d_latent


def _latents(cache: AnyCache) -> LatentCache:
    if not isinstance(cache, LatentCache):
        raise TypeError(f"expected a LatentCache; got {type(cache).__name__}")
    return cache
