"""The oracle: the probe written out as its definition, in float64, with the whole N × N matrix.

Slow and large on purpose. Every other backend is tested against it, so it shares no code with
them beyond the values that describe the call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .masks import Mask
from .values import ProbeOut, Request

_NEVER = float("-inf")


def probe(request: Request, mask: Mask) -> ProbeOut:
    """Attention and its statistics by the book, in O(N²) memory.

    s = cap(scale * q kᵀ) + bias, hidden entries minus infinity; A = exp(s - lse); then sums.

    Args:
        request: The validated call.
        mask: Which keys a query may see.

    Returns:
        The same fields as every backend, rounded from float64 at the very end.

    Example:
        >>> from .values import Scores
        >>> x = torch.eye(2)[None, None]
        >>> probe(Request(q=x, k=x, v=x, scores=Scores()), Mask()).out[0, 0, 0].tolist()
        [1.0, 0.0]

    Reference: Vaswani et al. 2017, equation 1.
    """
    s = _scores(request, mask)
    lse = _lse(s, request)
    # A dead row is hidden everywhere: exp(-inf - 0) = 0
    A = torch.exp(s - torch.where(lse == _NEVER, 0.0, lse)[..., None])
    stat = request.stat_dtype
    sinks = request.scores.sinks
    sink_mass = None
    if sinks is not None:
        sink_mass = torch.exp(sinks.detach().double()[None, :, None] - lse)
    top_weight, top_key = _top(A.detach(), s) if request.top else (None, None)
    return ProbeOut(
        out=_output(request, A),
        lse=lse.detach().to(stat),
        mass=_masses(request, mask, A.detach()),
        entropy=_entropy(A.detach(), sink_mass).to(stat) if request.entropy else None,
        top_weight=None if top_weight is None else top_weight.to(stat),
        top_key=top_key,
        sink_mass=None if sink_mass is None else sink_mass.detach().to(stat),
        weights=_export(request, mask, A.detach()),
        received=_shown(request, mask, A.detach()).sum(-2).to(stat) if request.received else None,
    )


def _scores(request: Request, mask: Mask) -> Tensor:
    q, k = request.q.double(), request.k.double().repeat_interleave(request.group, 1)
    s = q @ k.mT * request.scale
    scores = request.scores
    if scores.softcap is not None:
        s = scores.softcap * torch.tanh(s / scores.softcap)
    if scores.bias is not None:
        s = s + scores.bias.double()
    return s.masked_fill(~_visible(request, mask)[:, None], _NEVER)


def _visible(request: Request, mask: Mask) -> Tensor:
    """The mask's conditions one by one, [batch, query, key]."""
    batch, n_query, n_key = request.sizes
    j = torch.arange(n_key, device=request.q.device)[None, None]
    q_pos = _own_key(request, mask)
    ok = torch.ones(batch, n_query, n_key, dtype=torch.bool, device=request.q.device)
    if mask.causal:
        ok = ok & (j <= q_pos)
    if mask.window is not None:
        ok = ok & (j > q_pos - mask.window)
    if mask.k_range is not None:
        bounds = mask.k_range.to(j.device)
        bounds = bounds[:, None] if bounds.ndim == 2 else bounds
        ok = ok & (j >= bounds[..., :1]) & (j < bounds[..., 1:])
    return ok


def _own_key(request: Request, mask: Mask) -> Tensor:
    batch, n_query, n_key = request.sizes
    if mask.q_pos is not None:
        return mask.q_pos.to(request.q.device, torch.int64)[..., None]
    here = torch.arange(n_query, device=request.q.device) + n_key - n_query
    return here[None, :, None].expand(batch, n_query, 1)


def _lse(s: Tensor, request: Request) -> Tensor:
    if request.lse is not None:
        return request.lse.double()
    sinks = request.scores.sinks
    if sinks is not None:
        s = torch.cat([s, sinks.double()[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    return torch.logsumexp(s, -1)


def _output(request: Request, A: Tensor) -> Tensor | None:
    if request.lse is not None or request.v is None:
        return None
    v = request.v.double().repeat_interleave(request.group, 1)
    return (A @ v).to(request.v.dtype)


def _entropy(A: Tensor, sink_mass: Tensor | None) -> Tensor:
    total = torch.special.entr(A).sum(-1)
    return total if sink_mass is None else total + torch.special.entr(sink_mass.detach())


def _top(A: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """The largest weight, and the lowest key of the largest score."""
    if A.shape[-1] == 0:
        return A.new_zeros(A.shape[:-1]), torch.full(A.shape[:-1], -1, device=A.device)
    keys = torch.arange(s.shape[-1], device=s.device)
    top = s.amax(-1, keepdim=True)
    lowest = torch.where(s == top, keys, s.shape[-1]).amin(-1)
    return A.amax(-1), torch.where((top[..., 0] == _NEVER) | top[..., 0].isnan(), -1, lowest)


def _masses(request: Request, mask: Mask, A: Tensor) -> Tensor | None:
    if not request.matches:
        return None
    own = torch.arange(A.shape[-1], device=A.device) == _own_key(request, mask)
    columns = []
    for match in request.matches:
        equal = match.q_label.to(A.device)[..., None] == match.k_label.to(A.device)[:, None]
        if match.strict:
            equal = equal & ~own
        columns.append((A * equal[:, None]).sum(-1))
    return torch.stack(columns, -1).to(request.stat_dtype)


def _shown(request: Request, mask: Mask, A: Tensor) -> Tensor:
    """A, 0 where the mask hides a key even if the row is NaN."""
    return A.masked_fill(~_visible(request, mask)[:, None], 0.0)


def _pool(A: Tensor, size: int, axis: int, *, largest: bool) -> Tensor:
    """Mean or maximum of each stretch of `size` along an axis; the last may be shorter."""
    starts = range(0, A.shape[axis], size)
    parts = [A.narrow(axis, i, min(size, A.shape[axis] - i)) for i in starts]
    if not parts:
        return A
    return torch.stack([x.amax(axis) if largest else x.mean(axis) for x in parts], axis)


def _export(request: Request, mask: Mask, A: Tensor) -> Tensor | None:
    wanted = request.weights
    if wanted is None:
        return None
    if wanted.pool is not None:
        A, largest = _shown(request, mask, A), wanted.reduce == "max"
        for axis, size in zip((-2, -1), wanted.pool, strict=True):
            # Cells are rectangles: the mean of a cell is the mean of its columns' means
            A = _pool(A, size, axis, largest=largest)
    if wanted.heads is not None:
        A = A[:, list(wanted.heads)]
    if wanted.rows is not None:
        rows = wanted.rows.to(A.device, torch.int64)
        taken = torch.stack([A[b][:, rows[b].clamp(min=0)] for b in range(A.shape[0])])
        A = taken * (rows >= 0)[:, None, :, None]
    return A.to(wanted.dtype or request.q.dtype)
