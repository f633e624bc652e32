"""Attention from ordinary operators in row chunks: what the fused operator cannot do."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int32
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .values import Request

_ROWS = 256
_DEAD = float("-inf")


def bias_block(
    request: Request, batch: slice, rows: slice, keys: slice
) -> Float[Tensor, "batch _ row key"]:
    """A block of the caller's bias with batch and rows expanded (no copy), in stat dtype.

    Args:
        request: A call whose scores hold a bias.
        batch: Which sequences.
        rows: Which query rows.
        keys: Which keys.

    Returns:
        The slice, at most rows × keys per head large; detached unless autograd needs it.

    Example:
        >>> from .values import Scores
        >>> x = torch.zeros(1, 1, 3, 2)
        >>> call = Request(q=x, k=x, v=x, scores=Scores(bias=torch.ones(1, 1, 1, 3)))
        >>> bias_block(call, slice(0, 1), slice(1, 3), slice(0, 2)).shape
        torch.Size([1, 1, 2, 2])
    """
    bias = request.scores.bias
    if bias is None:
        raise ValueError("bias_block needs a bias")
    size, n_query, n_key = request.sizes
    bias = bias.expand(size, bias.shape[1], n_query, n_key)
    return bias[batch, :, rows, keys].to(request.stat_dtype)


def attend_in_chunks(
    request: Request, lo: Int32[Tensor, "batch query"], hi: Int32[Tensor, "batch query"]
) -> tuple[Float[Tensor, "batch head query d_value"], Float[Tensor, "batch head query"]]:
    """out = A v and lse from ordinary operators, 256 rows at a time, recomputed in backward.

    Differentiable in q, k, v, the bias and the sinks.

    Args:
        request: The validated call, with v and nothing empty.
        lo: First visible key of each row.
        hi: One past the last.

    Returns:
        out in v's dtype, lse in the statistics' dtype without gradient.

    Example:
        >>> from .values import Scores
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> call = Request(q=x, k=x, v=x, scores=Scores(sinks=torch.zeros(1)))
        >>> lo, hi = torch.tensor([[[0, 0]], [[1, 2]]], dtype=torch.int32)
        >>> attend_in_chunks(call, lo, hi)[1][0, 0].exp().round()
        tensor([2., 3.])
    """
    outs, norms = [], []
    for first in range(0, request.sizes[1], _ROWS):
        rows = slice(first, min(first + _ROWS, request.sizes[1]))
        if torch.is_grad_enabled():
            o, norm = checkpoint(
                _chunk, request, lo, hi, rows, use_reentrant=False, preserve_rng_state=False
            )
        else:
            o, norm = _chunk(request, lo, hi, rows)
        outs.append(o)
        norms.append(norm)
    return torch.cat(outs, 2), torch.cat(norms, 2)


def _chunk(request: Request, lo: Tensor, hi: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """Plain differentiable attention of some rows over the keys they touch."""
    q, k, v, scores = request.q[:, :, rows], request.k, request.value, request.scores
    batch, heads, n, _ = q.shape
    los, his = lo[:, rows], hi[:, rows]
    live = his > los
    keys = slice(int(los[live].min()), int(his.max())) if live.any() else slice(0, 1)
    k, v = k[:, :, keys].to(request.stat_dtype), v[:, :, keys].to(request.stat_dtype)
    grouped = q.to(request.stat_dtype).reshape(batch, k.shape[1], request.group * n, -1)
    s = (grouped @ k.mT).view(batch, heads, n, -1) * request.scale
    if scores.softcap is not None:
        s = scores.softcap * torch.tanh(s / scores.softcap)
    if scores.bias is not None:
        s = s + bias_block(request, slice(None), rows, keys)
    j = torch.arange(keys.start, keys.stop, device=lo.device)
    hidden = (j < los[..., None]) | (j >= his[..., None])
    s = s.masked_fill(hidden[:, None], _DEAD)
    hidden = s.detach() == _DEAD
    top = s.detach().amax(-1, keepdim=True)
    sinks = None if scores.sinks is None else scores.sinks.to(s.dtype)[None, :, None, None]
    top = top if sinks is None else top.maximum(sinks.detach())
    top = torch.where(top == _DEAD, 0.0, top)
    p = torch.exp((s - top).clamp(min=-80.0)).masked_fill(hidden, 0.0)  # see exp_weights
    total = p.sum(-1, keepdim=True)
    total = total if sinks is None else total + torch.exp(sinks - top)
    A = p / torch.where(total == 0, 1.0, total)
    out = A.view(batch, k.shape[1], request.group * n, -1) @ v
    lse = (top + torch.log(total)).detach()[..., 0]
    return out.view(batch, heads, n, -1).to(request.value.dtype), lse
