"""The probe on torch's own operators: O(N) memory per head in every path.

Attention itself goes through the fused CPU operator (`attend`). Masses of few keys per row cost
one dot product per matching pair (`pairs`); everything else is read off tiles of A that never
leave the cache (`sweep`); weights are computed for the chosen rows alone (`export`), or for a few
rows at a time and pooled at once (`pool`). The same code runs on other devices with larger tiles
and without the fused operators.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .attend import attend
from .blocks import row_norm
from .export import export_weights
from .masks import Mask
from .pairs import add_pairs
from .plan import Plan
from .planning import plan_matches
from .pool import pool_weights
from .sweep import Sums, sweep
from .values import ProbeOut, Request


def probe(request: Request, mask: Mask) -> ProbeOut:
    """Attention and the statistics asked for.

    Args:
        request: The validated call.
        mask: Which keys a query may see.

    Returns:
        See `ProbeOut`.

    Example:
        >>> from .values import Scores
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> probe(Request(q=x, k=x, v=x, scores=Scores(), entropy=True), Mask()).entropy.shape
        torch.Size([1, 1, 2])
    """
    if request.lse is None:
        out, lse = attend(request, mask)
    else:
        out, lse = None, request.lse.detach().to(request.stat_dtype)
    wants = (
        request.entropy or request.top or request.received or request.matches
        or request.weights is not None
    )  # fmt: skip
    sinks = request.scores.sinks
    if not wants and sinks is None:
        return ProbeOut(out=out, lse=lse)
    with torch.no_grad():
        return _statistics(request, mask, out, lse)


def _statistics(request: Request, mask: Mask, out: Tensor | None, lse: Tensor) -> ProbeOut:
    sinks, stat = request.scores.sinks, request.stat_dtype
    lo, hi = mask.intervals(*request.sizes, request.q.device)
    norm = row_norm(lse, lo, hi)
    wanted = request.weights
    if wanted is not None:
        wanted = replace(wanted, dtype=wanted.dtype or request.q.dtype)
    q, k = request.q.detach().to(stat), request.k.detach().to(stat)
    request = replace(request, q=q, k=k, v=None, weights=wanted)
    mass, sums = _gather(request, mask, norm)
    spoilt = lse.isnan()
    if mass is not None and bool(spoilt.any()):
        mass.masked_fill_(spoilt[..., None], float("nan"))  # rows without listed pairs as well
    sink_mass = None
    if sinks is not None:
        sink_mass = torch.exp(sinks.detach().to(stat)[:, None] - lse)
    entropy = sums.entropy
    if entropy is not None:
        entropy = entropy.clamp_(min=0.0)
        entropy = entropy if sink_mass is None else entropy + torch.special.entr(sink_mass)
    return ProbeOut(
        out=out,
        lse=lse,
        mass=mass,
        entropy=entropy,
        top_weight=sums.top_weight,
        top_key=sums.top_key,
        sink_mass=sink_mass,
        weights=_weights(request, mask, norm),
        received=None if sums.received is None else sums.received.to(stat),
    )


def _weights(request: Request, mask: Mask, norm: Tensor) -> Tensor | None:
    if request.weights is None:
        return None
    write = export_weights if request.weights.pool is None else pool_weights
    return write(request, mask, norm)


def _gather(request: Request, mask: Mask, norm: Tensor) -> tuple[Tensor | None, Sums]:
    """Run what the call needs: single pairs, or one sweep for everything."""
    (batch, n_query, n_key), heads = request.sizes, request.q.shape[1]
    plan = plan_matches(request, mask) if request.matches else None
    wants = request.entropy or request.top or request.received
    swept = wants or (plan is not None and plan.needs_tiles)
    new = norm.new_zeros
    columns = None if plan is None else plan.columns
    sums = Sums(
        mass=None if plan is None else new(heads, batch, plan.shape[1], n_query),
        column=None if columns is None else new(heads, batch, n_query, len(columns.match)),
        entropy=new(norm.shape) if request.entropy else None,
        top_weight=new(norm.shape) if request.top else None,
        top_key=torch.full_like(norm, -1, dtype=torch.int64) if request.top else None,
        received=new(batch, heads, n_key, dtype=torch.float64) if request.received else None,
    )
    if swept:
        sweep(request, mask, plan, norm, sums)
    elif plan is not None and sums.mass is not None:
        add_pairs(request, plan, norm.transpose(0, 1).flatten(1), sums.mass.flatten(1))
    if plan is None or sums.mass is None:
        return None, sums
    return _assemble(plan, sums, len(request.matches)), sums


def _assemble(plan: Plan, sums: Sums, n_match: int) -> Tensor:
    """Masses as [batch, head, query, match]."""
    mass, columns = sums.mass, plan.columns
    if mass is None:
        raise ValueError("no masses were summed")
    if columns is not None and sums.column is not None:
        found = sums.column * columns.rows
        if columns.own is not None:
            found = (found - columns.own * mass[:, :, -1, :, None]).clamp_(min=0.0)
        mass[:, :, list(columns.match)] = found.transpose(-1, -2)
    return mass[:, :, :n_match].permute(1, 0, 3, 2)
