"""Attention output and log-sum-exp on torch's own operators, in O(N) memory."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from .chunks import attend_in_chunks, bias_block
from .masks import Mask
from .spans import Piece, pieces
from .values import Request

_ROWS = 256  # rows per masked call
_DEAD = float("-inf")


def attend(
    request: Request, mask: Mask
) -> tuple[Float[Tensor, "batch head query d_value"], Float[Tensor, "batch head query"]]:
    """out = A v and lse; `out` is differentiable, `lse` is not.

    Plain scores go through the fused CPU attention operator, piece by piece so that no mask
    larger than rows × 256 is ever built. What it cannot express or differentiate (softcap, a
    trained bias, sinks under autograd, a scale of 0 or less, other devices) goes through row
    chunks of ordinary operators, recomputed in the backward pass. So does a call whose q or k
    turn out not to be finite: the fused operator returns lse 0 for a row with NaN, which would
    look like a result. It is found by the sums of out and lse and by that 0, at O(N) cost.

    Args:
        request: The validated call, with v.
        mask: Which keys a query may see.

    Returns:
        out in v's dtype, lse in the statistics' dtype.

    Example:
        >>> from .values import Scores
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> out, lse = attend(Request(q=x, k=x, v=x, scores=Scores()), Mask())
        >>> lse[0, 0].exp()
        tensor([1., 2.])

    Reference: Dao 2023 for the operator's algorithm.
    """
    v = request.value
    batch, n_query, n_key = request.sizes
    if 0 in (*request.sizes, *request.q.shape, v.shape[-1]):
        return v.new_zeros(*request.q.shape[:3], v.shape[-1]), _sink_only(request)
    lo, hi = mask.intervals(batch, n_query, n_key, request.q.device)
    if _needs_chunks(request):
        return attend_in_chunks(request, lo, hi)
    if request.scores.bias is not None:
        plan = [Piece("masked", (0, batch), (0, n_query), (0, n_key))]
    else:
        key = ("pieces", batch, n_query, n_key)
        plan = mask.remember(key, lambda: pieces(lo, hi))
    out, lse = _fused(request, plan, lo, hi)
    if _spoilt(request, out, lse):
        return attend_in_chunks(request, lo, hi)
    return _add_sinks(request, out, lse)


def _sink_only(request: Request) -> Tensor:
    lse = torch.full(request.q.shape[:3], _DEAD, dtype=request.stat_dtype, device=request.q.device)
    sinks = request.scores.sinks
    return lse if sinks is None else torch.logaddexp(lse, sinks.detach()[None, :, None].to(lse))


def _needs_chunks(request: Request) -> bool:
    scores, v = request.scores, request.v
    if scores.softcap is not None or request.scale <= 0 or request.q.device.type != "cpu":
        return True
    if not torch.is_grad_enabled():
        return False
    if scores.bias is not None and scores.bias.requires_grad:
        return True
    tensors = (request.q, request.k, v, scores.sinks)
    return scores.sinks is not None and any(x is not None and x.requires_grad for x in tensors)


def _fused(request: Request, plan: list[Piece], lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = _same_width(request)
    width = request.value.shape[-1]
    whole = (0, q.shape[0]), (0, q.shape[2])
    if len(plan) == 1 and (plan[0].batch, plan[0].rows) == whole and plan[0].kind != "masked":
        keys = slice(*plan[0].keys)
        out, lse = _call(request, q, k[:, :, keys], v[:, :, keys], plan[0].kind == "causal")
        return out[..., :width], lse.to(request.stat_dtype)
    out = v.new_zeros(*q.shape[:3], width)
    lse = torch.full(q.shape[:3], _DEAD, dtype=request.stat_dtype, device=q.device)
    for piece in plan:
        batch, rows, keys = slice(*piece.batch), slice(*piece.rows), slice(*piece.keys)
        if piece.kind == "masked":
            _masked(request, piece, (q, k, v), (lo, hi), (out, lse))
            continue
        part = q[batch, :, rows], k[batch, :, keys], v[batch, :, keys]
        o, norm = _call(request, *part, piece.kind == "causal")
        out[batch, :, rows], lse[batch, :, rows] = o[..., :width], norm
    return out, lse


def _spoilt(request: Request, out: Tensor, lse: Tensor) -> bool:
    """Whether q or k hold NaN or infinity that reached a row; NaN in v alone is no matter."""
    total = float(out.detach().sum(dtype=request.stat_dtype) + lse.sum())
    # minus infinity comes from dead rows; NaN fails; a row of nothing but NaN leaves out = lse = 0
    if total < math.inf and not bool((lse == 0).any()):
        return False
    return not bool(request.q.isfinite().all() and request.k.isfinite().all())


def _same_width(request: Request) -> tuple[Tensor, Tensor, Tensor]:
    """Zero columns up to one common head width, and unit stride in it: the operator needs both."""
    q, k, v = request.q, request.k, request.value
    wide = max(q.shape[-1], v.shape[-1])
    parts = [x if x.shape[-1] == wide else pad(x, (0, wide - x.shape[-1])) for x in (q, k, v)]
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in parts)
    return q, k, v


def _call(
    request: Request, q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=bias, scale=request.scale
    )


def _masked(
    request: Request,
    piece: Piece,
    qkv: tuple[Tensor, Tensor, Tensor],
    spans: tuple[Tensor, Tensor],
    into: tuple[Tensor, Tensor],
) -> None:
    """Row blocks of one piece with an explicit float mask of 256 rows × the keys they touch."""
    (q, k, v), (lo, hi), (out, lse) = qkv, spans, into
    batch = slice(*piece.batch)
    for first in range(*piece.rows, _ROWS):
        rows = slice(first, min(first + _ROWS, piece.rows[1]))
        los, his = lo[batch, rows], hi[batch, rows]
        live = his > los
        if not live.any():
            continue
        keys = slice(int(los[live].min()), int(his.max()))
        bias, dead = _float_mask(request, los, his, (batch, rows, keys))
        o, norm = _call(
            request, q[batch, :, rows], k[batch, :, keys], v[batch, :, keys], False, bias
        )
        out[batch, :, rows] = o[..., : out.shape[-1]]
        lse[batch, :, rows] = norm.masked_fill(dead, _DEAD)  # the operator says 0


def _float_mask(
    request: Request, lo: Tensor, hi: Tensor, where: tuple[slice, slice, slice]
) -> tuple[Tensor, Tensor]:
    """0, the caller's bias, or minus infinity, [batch, head or 1, row, key]; and dead rows."""
    j = torch.arange(where[2].start, where[2].stop, dtype=lo.dtype, device=lo.device)
    hidden = ((j < lo[..., None]) | (j >= hi[..., None]))[:, None]
    dtype, bias = request.stat_dtype, request.scores.bias
    if bias is None:
        zeros = torch.zeros(hidden.shape, dtype=dtype, device=lo.device)
        return zeros.masked_fill_(hidden, _DEAD), (hi <= lo)[:, None]
    part = bias_block(request, *where)
    full = part.masked_fill(hidden, _DEAD)
    return full, (full == _DEAD).all(-1)


def _add_sinks(request: Request, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    sinks = request.scores.sinks
    if sinks is None:
        return out, lse
    total = torch.logaddexp(lse, sinks.detach().to(lse)[None, :, None])
    kept = torch.exp(lse - torch.where(total == _DEAD, 0.0, total))
    return (out * kept[..., None]).to(out.dtype), total
