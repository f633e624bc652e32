"""Weights of a block of rows: the one place where the probe touches N × N numbers, in tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .values import Request

_FAR = {torch.float32: 80.0, torch.float64: 700.0}


def clip(t: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """t, overwritten, within the range on which exp is fast and finite; NaN stays NaN.

    Args:
        t: Log-weights.

    Returns:
        t itself.

    Example:
        >>> clip(torch.tensor([-1e9, 1.0, torch.nan])).tolist()
        [-80.0, 1.0, nan]
    """
    far = _FAR[t.dtype]
    return t.clamp_(-far, far)


def exp_weights(t: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """exp(t), overwriting t, for log-weights; far out they are clipped to ±80 (float64: ±700).

    The vectorised exp is 20 to 200 times slower where its result leaves the normal numbers, and
    sharp heads put most keys there; exp(-80) is 2e-35, below anything a sum of weights can show.

    Args:
        t: Log-weights; minus infinity also gives 2e-35, hide those keys afterwards.

    Returns:
        t itself.

    Example:
        >>> exp_weights(torch.tensor([0.0, -1e9])) < 1e-30
        tensor([False,  True])
    """
    return clip(t).exp_()


def row_norm(
    lse: Float[Tensor, "batch head query"],
    lo: Int[Tensor, "batch query"],
    hi: Int[Tensor, "batch query"],
) -> Float[Tensor, "batch head query"]:
    """lse with plus infinity on dead rows, so that exp(s - lse) vanishes there.

    Args:
        lse: Log-sum-exp.
        lo: First visible key of each row.
        hi: One past the last visible key.

    Returns:
        A new tensor.

    Example:
        >>> at = torch.tensor([[0]])
        >>> row_norm(torch.tensor([[[1.0]]]), at, at).item()
        inf
    """
    dead = (hi <= lo)[:, None] | (lse == float("-inf"))
    return lse.masked_fill(dead, float("inf"))


@dataclass(frozen=True)
class Rows:
    """Query rows of some sequences, with all that their scores need.

    Args:
        q: The rows' queries, in the statistics' type.
        k: Keys key0 .. key0 + n of the same sequences.
        lse: Log-sum-exp of the rows; a dead or unused row may hold plus infinity.
        lo: First visible key of each row.
        hi: One past the last visible key of each row.
        key0: Index of the first key in k.
        bias: What to add to the scores.

    Example:
        >>> x, at = torch.zeros(1, 1, 2, 4), torch.tensor([[0, 0]])
        >>> Rows(x, x, torch.zeros(1, 1, 2), at, at + 1, key0=0).k.shape
        torch.Size([1, 1, 2, 4])
    """

    q: Float[Tensor, "batch head row d_key"]
    k: Float[Tensor, "batch kv_head key d_key"]
    lse: Float[Tensor, "batch head row"]
    lo: Int[Tensor, "batch row"]
    hi: Int[Tensor, "batch row"]
    key0: int
    bias: Float[Tensor, "batch _ row key"] | None = None


def weigh(
    t: Float[Tensor, "batch head row key"],
    rows: Rows,
    edges: tuple[int, int],
    *,
    logs: bool = False,
) -> tuple[Float[Tensor, "batch head row key"], Float[Tensor, "batch head row key"] | None]:
    """A = exp(t) of a block, clipped as `exp_weights` says, exactly 0 where a key is hidden.

    Args:
        t: `log_weights` of the rows; overwritten.
        rows: The rows.
        edges: Keys from edges[0] up to edges[1] are visible to every row: no mask is needed
            there. An empty range masks the whole block.
        logs: Keep ln A as well.

    Returns:
        A, and ln A (clipped, meaningless where a key is hidden) or None.

    Example:
        >>> from .values import Scores
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> call = Request(q=x, k=x, v=x, scores=Scores())
        >>> at = torch.tensor([[0, 0]])
        >>> rows = Rows(x, x, torch.tensor([[[0.0, 0.0]]]), at, at + 1, 0)
        >>> weigh(log_weights(rows, call), rows, (0, 1))[0][0, 0].tolist()
        [[1.0, 0.0], [1.0, 0.0]]
    """
    gone = None if rows.bias is None else t == float("-inf")
    kept = clip(t).clone() if logs else None
    A = exp_weights(t) if kept is None else t.exp_()
    if gone is not None:
        A.masked_fill_(gone, 0.0)
    return hide(A, rows, edges, 0.0), kept


def log_weights(rows: Rows, request: Request) -> Float[Tensor, "batch head row key"]:
    """t = s - lse of a block: neither clipped nor masked by the rows' intervals.

    Args:
        rows: The rows.
        request: Scale and softcap.

    Returns:
        A fresh tensor.

    Example:
        >>> from .values import Scores
        >>> x, at = torch.ones(1, 1, 1, 4), torch.tensor([[0]])
        >>> call = Request(q=x, k=x, v=x, scores=Scores())
        >>> log_weights(Rows(x, x, torch.full((1, 1, 1), 500.0), at, at + 1, 0), call).item()
        -498.0
    """
    batch, heads, n, _ = rows.q.shape
    n_kv, n_key = rows.k.shape[1:3]
    grouped = rows.q.reshape(batch * n_kv, heads // n_kv * n, -1)
    keys = rows.k.reshape(batch * n_kv, n_key, -1).mT
    cap = request.scores.softcap
    if cap is None and rows.bias is None:
        norm = rows.lse.reshape(batch * n_kv, -1, 1)
        t = torch.baddbmm(norm, grouped, keys, beta=-1, alpha=request.scale)
        return t.view(batch, heads, n, n_key)
    t = torch.bmm(grouped, keys).view(batch, heads, n, n_key).mul_(request.scale)
    if cap is not None:
        t.div_(cap).tanh_().mul_(cap)
    if rows.bias is not None:
        t.add_(rows.bias)
    return t.sub_(rows.lse[..., None])


def hide(
    A: Float[Tensor, "batch head row key"], rows: Rows, edges: tuple[int, int], fill: float
) -> Float[Tensor, "batch head row key"]:
    """Overwrite the keys outside each row's interval, looking only where there can be any.

    Args:
        A: Weights or log-weights of the rows; written in place.
        rows: The rows.
        edges: As for `weigh`.
        fill: What a hidden key gets.

    Returns:
        A itself.

    Example:
        >>> x, at = torch.zeros(1, 1, 1, 4), torch.tensor([[0]])
        >>> hide(torch.ones(1, 1, 1, 3), Rows(x, x, x[..., 0], at, at + 1, 0), (0, 1), 0.0)
        tensor([[[[1., 0., 0.]]]])
    """
    n_key = A.shape[-1]
    left, right = edges[0] - rows.key0, edges[1] - rows.key0
    j = torch.arange(rows.key0, rows.key0 + n_key, dtype=rows.lo.dtype, device=A.device)
    if left >= right:
        outside = (j < rows.lo[..., None]) | (j >= rows.hi[..., None])
        A.masked_fill_(outside[:, None], fill)
        return A
    if left > 0:
        A[..., :left].masked_fill_((j[:left] < rows.lo[..., None])[:, None], fill)
    if right < n_key:
        A[..., right:].masked_fill_((j[right:] >= rows.hi[..., None])[:, None], fill)
    return A
