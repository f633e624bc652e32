"""Gradients of attention: torch's own flash backward from our out and lse, or recomputation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..spans import Piece, pieces
from .launch import Inputs

_ROWS = 256


def gradients(
    grad: Float[Tensor, "batch head query d_value"],
    inputs: Inputs,
    v: Float[Tensor, "batch kv_head key d_value"],
    sinks: Float[Tensor, " head"] | None,
    attended: tuple[Float[Tensor, "batch head query d_value"], Float[Tensor, "batch head query"]],
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, sinks and bias; None for one that is absent or not needed.

    Causal and unmasked attention of plain scores goes through aten's flash backward, which needs
    no more than out and lse. All else (softcap, window, padding, sinks, a bias, a width or dtype
    that the operator does not take) is recomputed in row chunks, in O(N) memory per head.

    Args:
        grad: Gradient of the output.
        inputs: Scores and mask.
        v: Values.
        sinks: Sink logits.
        attended: The output and its log-sum-exp.
        needs: Which of q, k, v, sinks and bias to differentiate in.

    Returns:
        dq, dk, dv, dsinks, dbias in the types of what they belong to.

    Reference: Dao 2023, algorithm 2.
    """
    causal = _causal(inputs, v, sinks)
    if causal is not None:
        found = *_flash(grad, inputs, v, *attended, causal=causal), None, None
        return tuple(x if need else None for x, need in zip(found, needs, strict=True))
    return _recomputed(grad, inputs, v, sinks, attended, needs)


def _causal(inputs: Inputs, v: Tensor, sinks: Tensor | None) -> bool | None:
    """Whether the call is causal attention; None where aten's operator does not apply."""
    q, plain = inputs.q, inputs.bias is None and inputs.softcap is None and sinks is None
    on_cpu = q.device.type == "cpu"
    width = max(q.shape[-1], v.shape[-1])
    taken = on_cpu or (q.dtype in (torch.float16, torch.bfloat16) and width <= 256)
    if not (plain and taken and inputs.scale > 0):
        return None
    batch, _, n_query, n_key = inputs.sizes
    found = pieces(inputs.lo, inputs.hi)
    whole = Piece("full", (0, batch), (0, n_query), (0, n_key))
    if found == [whole]:
        return False
    square = Piece("causal", (0, batch), (0, n_query), (0, n_key))
    return True if found == [square] else None


def _flash(
    grad: Tensor, inputs: Inputs, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, group = inputs.q, inputs.k, inputs.group
    widths = q.shape[-1], v.shape[-1]
    wide = -(-max(widths) // 8) * 8
    grad, q, k, v, out = (
        pad(x, (0, wide - x.shape[-1])).contiguous() for x in (grad, q, k, v, out)
    )
    kv_heads = k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if q.device.type == "cpu":
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, scale=inputs.scale
        )
    else:
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # no dropout: never read
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal,
            seed, seed[:1], scale=inputs.scale,
        )  # fmt: skip
    dk, dv = (x.unflatten(1, (kv_heads, group)).sum(2) if group > 1 else x for x in (dk, dv))
    return dq[..., : widths[0]], dk[..., : widths[0]], dv[..., : widths[1]]


def _recomputed(
    grad: Tensor,
    inputs: Inputs,
    v: Tensor,
    sinks: Tensor | None,
    attended: tuple[Tensor, Tensor],
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """All gradients, some rows at a time; written out, since autograd cannot see into an operator.

    With D = Σ dOut · out per row:  dS = A (dOut Vᵀ − D),  dV = Aᵀ dOut,  dsink = −Σ p_sink D,
    and through the softcap, dX = dS (1 − tanh²).
    """
    out, lse = attended
    given = inputs.q, inputs.k, v, sinks, inputs.bias
    sums = [
        torch.zeros_like(x, dtype=torch.float32) if need and x is not None else None
        for x, need in zip(given, needs, strict=True)
    ]
    D = (grad.float() * out.float()).sum(-1)
    for first in range(0, grad.shape[2], _ROWS):
        rows = slice(first, min(first + _ROWS, grad.shape[2]))
        _add_rows(inputs, v, (grad[:, :, rows].float(), lse[:, :, rows], D[:, :, rows]), rows, sums)
    if sums[3] is not None and sinks is not None:
        share = torch.exp(sinks.float()[:, None] - lse)
        sums[3] = -(share * D).sum((0, 2))
    return tuple(
        None if x is None or total is None else total.to(x.dtype)
        for x, total in zip(given, sums, strict=True)
    )


def _add_rows(
    inputs: Inputs,
    v: Tensor,
    per_row: tuple[Tensor, Tensor, Tensor],
    rows: slice,
    sums: list[Tensor | None],
) -> None:
    """Add what some rows give to the gradients of q, k, v and the bias."""
    grad, lse, D = per_row
    lo, hi = inputs.lo[:, rows], inputs.hi[:, rows]
    live = hi > lo
    if not live.any():
        return
    keys = slice(int(lo[live].min()), int(hi.max()))
    kv_heads, group = inputs.k.shape[1], inputs.group

    def grouped(x: Tensor) -> Tensor:
        return x.float().unflatten(1, (kv_heads, group)).flatten(2, 3)

    q, g = grouped(inputs.q[:, :, rows]), grouped(grad)
    k, v = inputs.k[:, :, keys].float(), v[:, :, keys].float()
    shape = (*lse.shape, k.shape[2])
    s = (q @ k.mT).view(shape) * inputs.scale
    slope = None
    if inputs.softcap is not None:
        bent = torch.tanh(s / inputs.softcap)
        s, slope = inputs.softcap * bent, 1 - bent.square()
    if inputs.bias is not None:
        full = inputs.bias.expand(shape[0], -1, inputs.q.shape[2], -1)
        s = s + full[:, :, rows, keys].float()
    j = torch.arange(keys.start, keys.stop, device=s.device)
    hidden = ((j < lo[..., None]) | (j >= hi[..., None]))[:, None] | (s < -1e30)
    A = torch.exp(s - lse[..., None]).masked_fill(hidden, 0.0)
    dA = (g @ v.mT).view(shape)
    dS = A * (dA - D[..., None])
    dq, dk, dv, _, dbias = sums
    if dv is not None:
        dv[:, :, keys] += grouped(A).mT @ g
    if dbias is not None:
        part = dbias[:, :, rows if dbias.shape[2] > 1 else slice(None), keys]
        part += dS.sum_to_size(part.shape)
    dX = grouped(dS if slope is None else dS * slope) * inputs.scale
    if dq is not None:
        dq[:, :, rows] = (dX @ k).view(*shape[:3], -1)
    if dk is not None:
        dk[:, :, keys] += dX.mT @ q
