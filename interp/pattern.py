"""The attention pattern written out in full, differentiable: the path of edits and of captures."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernels.api import Mask, Scores


def masked_scores(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    mask: Mask,
    scores: Scores,
) -> Float[Tensor, "batch head query key"]:
    """Pre-softmax scores S, −inf where a query may not see a key.

    S = softcap(scale · q kᵀ) + bias, in at least float32.

    Args:
        q: queries.
        k: keys; each key head serves `head / kv_head` consecutive query heads.
        mask: which keys a query may see.
        scores: scale, softcap and bias.

    Returns:
        The scores; a query without keys has a row of −inf.
    """
    group = q.shape[1] // k.shape[1]
    scale = q.shape[-1] ** -0.5 if scores.scale is None else scores.scale
    s = (q @ k.repeat_interleave(group, 1).transpose(2, 3)).to(_wide(q.dtype)) * scale
    if scores.softcap is not None:
        s = scores.softcap * torch.tanh(s / scores.softcap)
    if scores.bias is not None:
        s = s + scores.bias
    lo, hi = mask.intervals(q.shape[0], q.shape[2], k.shape[2], q.device)
    key = torch.arange(k.shape[2], device=q.device)
    visible = (key >= lo[:, :, None]) & (key < hi[:, :, None])
    return s.masked_fill(~visible[:, None], float("-inf"))


def softmax_rows(
    s: Float[Tensor, "batch head query key"], sinks: Float[Tensor, " head"] | None = None
) -> tuple[Float[Tensor, "batch head query key"], Float[Tensor, "batch head query"]]:
    """Attention weights A = exp(S − lse) and lse, the log of each row's sum of exponentials.

    Args:
        s: scores, −inf where masked.
        sinks: a logit per head that joins the sum but has no column.

    Returns:
        (A, lse). A row without keys is all zeros, not uniform.
    """
    none = torch.full((s.shape[1],), float("-inf"), dtype=s.dtype, device=s.device)
    sink = (none if sinks is None else sinks.to(s.dtype))[None, :, None, None]
    m = sink.detach()
    if s.shape[-1]:  # a call on an empty cache has no keys
        m = s.detach().amax(-1, keepdim=True).maximum(m)
    m = m.masked_fill(m == float("-inf"), 0.0)  # a dead row: exp(−inf − 0) = 0
    e = torch.exp(s - m)
    total = e.sum(-1, keepdim=True) + torch.exp(sink - m)
    lse = (m + total.log()).squeeze(-1)
    return e / total.masked_fill(total == 0, 1.0), lse


def mix_values(
    pattern: Float[Tensor, "batch head query key"], v: Float[Tensor, "batch kv_head key d_value"]
) -> Float[Tensor, "batch head query d_value"]:
    """z = A v, with each value head shared by its group of query heads."""
    return pattern @ v.repeat_interleave(pattern.shape[1] // v.shape[1], 1)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
