"""What one pass through a layer computed."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..brief import Brief


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Brief):
    """Everything a layer computed in one pass, under TransformerLens's names and shapes.

    Attributes:
        q, k: before RoPE, after QK-norm [batch, pos, head or kv_head, d_key].
        rot_q, rot_k: as attention received them; without RoPE the same as q and k.
        v: [batch, pos, kv_head, d_value].
        attn_scores: before the softmax, −inf where hidden [batch, head, query, key].
        pattern: attention weights [batch, head, query, key].
        z: pattern-weighted values [batch, pos, head, d_value].
        result: z W_O of each head [batch, pos, head, d_model].
        out: the layer's output [batch, pos, d_model], the sum of `result` and b_O.
    """

    q: Float[Tensor, "batch pos head d_key"]
    k: Float[Tensor, "batch pos kv_head d_key"]
    rot_q: Float[Tensor, "batch pos head d_key"]
    rot_k: Float[Tensor, "batch pos rot_kv_head d_key"]
    v: Float[Tensor, "batch pos v_head d_value"]
    attn_scores: Float[Tensor, "batch head pos pos"]
    pattern: Float[Tensor, "batch head pos pos"]
    z: Float[Tensor, "batch pos head d_value"]
    result: Float[Tensor, "batch pos head d_model"]
    out: Float[Tensor, "batch pos d_model"]
