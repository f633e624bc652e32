"""Write out chosen attention weights: only the chosen rows of the chosen heads are computed."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .blocks import Rows, log_weights, weigh
from .masks import Mask
from .sweep import TILE
from .values import Request


def export_weights(
    request: Request, mask: Mask, norm: Float[Tensor, "batch head query"]
) -> Float[Tensor, "batch chosen_head chosen_row key"]:
    """A[b, heads, rows[b]] = exp(s - lse); hidden keys, dead rows and unused slots are 0.

    Args:
        request: The call, with `weights` set; q and k already in the statistics' type.
        mask: Its mask.
        norm: lse, plus infinity on dead rows.

    Returns:
        The weights in the type asked for.

    Example:
        >>> from .values import Scores, Weights
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> chosen = Weights(heads=(1,), rows=torch.tensor([[1, -1]]), dtype=torch.float32)
        >>> call = Request(q=x, k=x, v=x, scores=Scores(), weights=chosen)
        >>> norm = torch.tensor([1.0, 2.0, 3.0]).log().expand(1, 2, 3)
        >>> export_weights(call, Mask(), norm)[0, 0].tolist()
        [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    wanted = request.weights
    if wanted is None:
        raise ValueError("export_weights needs weights")
    batch, n_query, n_key = request.sizes
    device, heads = request.q.device, request.q.shape[1]
    chosen = None if wanted.heads is None else torch.tensor(wanted.heads, dtype=torch.int64)
    n_head = heads if chosen is None else len(chosen)
    rows = None if wanted.rows is None else wanted.rows.to(device, torch.int64)
    n_row = n_query if rows is None else rows.shape[1]
    dtype = wanted.dtype or request.q.dtype
    out = torch.zeros(batch, n_head, n_row, n_key, dtype=dtype, device=device)
    step = max(TILE // max(batch * n_head * n_key, 1), 8)
    for first in range(0, n_row if out.numel() else 0, step):
        part = slice(first, min(first + step, n_row))
        index = torch.arange(n_query, device=device)[part].expand(batch, -1)
        index = index if rows is None else rows[:, part]
        block, edges = chosen_rows(request, mask, norm, index, chosen)
        if edges is not None:
            keys = slice(block.key0, block.key0 + block.k.shape[2])
            out[:, :, part, keys] = weigh(log_weights(block, request), block, edges)[0].to(dtype)
    return out


def chosen_rows(
    request: Request,
    mask: Mask,
    norm: Float[Tensor, "batch head query"],
    index: Int[Tensor, "batch row"],
    chosen: Int[Tensor, " chosen_head"] | None,
) -> tuple[Rows, tuple[int, int] | None]:
    """Some rows of some heads, over the keys that any of them sees.

    Args:
        request: The call; q and k already in the statistics' type.
        mask: Its mask.
        norm: lse, plus infinity on dead rows.
        index: Query rows per sequence; -1: unused.
        chosen: Query heads; None: all.

    Returns:
        The rows, and the range of keys visible to all of them (see `weigh`); None in its place
        when every row is dead or unused.

    Example:
        >>> from .values import Scores
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> call = Request(q=x, k=x, v=x, scores=Scores())
        >>> rows, edges = chosen_rows(call, Mask(), x[..., 0], torch.tensor([[1, 0]]), None)
        >>> rows.k.shape, edges
        (torch.Size([1, 2, 2, 4]), (0, 1))
    """
    used = index >= 0
    at = index.clamp(min=0)
    lo, hi = mask.intervals(*request.sizes, index.device)
    lo, hi = lo.gather(1, at) * used, hi.gather(1, at) * used
    live = hi > lo
    any_live = bool(live.any())
    edges = (int(lo.max()), int(hi.min())) if any_live else None  # dead rows make it empty
    keys = slice(int(lo[live].min()), int(hi.max())) if any_live else slice(0, 0)
    sequence = torch.arange(len(at), device=at.device)[:, None]
    q = request.q[sequence, :, at].transpose(1, 2)
    lse = norm[sequence, :, at].transpose(1, 2).masked_fill(~used[:, None], float("inf"))
    k, bias = request.k[:, :, keys], request.scores.bias
    if bias is not None:
        full = bias.detach().expand(len(at), bias.shape[1], *request.sizes[1:])[..., keys]
        bias = full[sequence, :, at].transpose(1, 2).to(q.dtype)
    if chosen is not None:
        chosen = chosen.to(at.device)
        q, lse, k = q[:, chosen], lse[:, chosen], k[:, chosen // request.group]
        bias = bias if bias is None or bias.shape[1] == 1 else bias[:, chosen]
    return Rows(q, k, lse, lo, hi, keys.start, bias), edges
