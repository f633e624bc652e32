"""The Triton path of the probe: which kernels a call needs, in which order, and what they give."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from .. import cpu
from ..masks import Mask
from ..pool import entries
from ..values import ProbeOut, Request
from . import op as _registers_the_operators  # noqa: F401
from .configs import LEAST_ARCHITECTURE, architecture
from .forward import forward_kernel
from .plan import Sweep, plan_fused
from .rows import Labels, RowOutputs

INTERPRETED = isinstance(forward_kernel, InterpretedFunction)
"""Whether Triton was imported under TRITON_INTERPRET=1, and kernels run as Python on a CPU."""

_WIDEST = 576, 512  # DeepSeek's absorbed MLA; what the gate compiles
_STEEPEST = 1e6
_ops = torch.ops.headatlas


def why_not(request: Request) -> str | None:
    """Why these kernels cannot take a call; None where they can.

    Args:
        request: The validated call.

    Returns:
        One sentence, without a full stop.

    Example:
        >>> from ..values import Scores
        >>> x = torch.zeros(1, 1, 2, 16, dtype=torch.float64)
        >>> why_not(Request(q=x, k=x, v=x, scores=Scores()))
        'its kernels compute in float32, and q is torch.float64'
    """
    q = request.q
    if q.dtype == torch.float64:
        return f"its kernels compute in float32, and q is {q.dtype}"
    if q.device.type == "cpu" and not INTERPRETED:
        return (
            "the tensors are on a CPU. To run them in Triton's interpreter, slowly, set "
            "TRITON_INTERPRET=1 before Python starts"
        )
    if q.device.type not in ("cpu", "cuda"):
        return f"its kernels run on NVIDIA GPUs; the tensors are on {q.device.type}"
    if INTERPRETED and q.dtype == torch.bfloat16:
        return "Triton's interpreter multiplies the bits of bfloat16. Use float32 or float16 there"
    d_value = 0 if request.v is None else request.v.shape[-1]
    if q.shape[-1] > _WIDEST[0] or d_value > _WIDEST[1]:
        return (
            f"its kernels take heads of up to {_WIDEST[0]} (keys) and {_WIDEST[1]} (values); got "
            f"{q.shape[-1]} and {d_value}"
        )
    if abs(request.scale) > _STEEPEST:
        return f"its kernels compute in float32, and a scale of {request.scale} leaves its range"
    if q.device.type == "cuda":
        if torch.version.hip:
            return "its kernels were never checked on AMD GPUs"
        found = architecture(q.device)
        if found is not None and found < LEAST_ARCHITECTURE:
            return f"its kernels need compute capability 8.0; {q.device} has {found / 10}"
    return None


def probe(request: Request, mask: Mask) -> ProbeOut:
    """Attention and the statistics asked for, from Triton kernels.

    Args:
        request: The validated call.
        mask: Which keys a query may see.

    Returns:
        See `ProbeOut`.

    Raises:
        RuntimeError: The kernels cannot take the call; the text says why.
    """
    reason = why_not(request)
    if reason is not None:
        raise RuntimeError(
            f"backend 'triton' cannot take this call: {reason}. Or leave the choice to "
            "backend='auto', outside of use_backend('triton')."
        )
    if 0 in (*request.q.shape, *request.k.shape, *(() if request.v is None else request.v.shape)):
        return cpu.probe(request, mask)  # nothing to launch a kernel for
    plan = plan_fused(request, mask)
    call = _Call.of(request, mask)
    batch, heads, n_query = request.q.shape[:3]
    n_match = len(request.matches)
    mass = request.q.new_empty(batch, n_match, heads, n_query, dtype=torch.float32)
    rows = _first_sweep(request, call, plan.sweeps[0], mass)
    call = replace(call, lse=rows.lse)
    for sweep in plan.sweeps[1:]:
        _put(mass, sweep, call.rows(sweep.labels))
    if plan.keys is not None:
        mass[:, list(plan.few)] = call.few(plan.keys)
    sinks, entropy, sink_mass = request.scores.sinks, rows.entropy, None
    if sinks is not None:
        sink_mass = torch.exp(sinks.detach().float()[:, None] - call.lse)
        entropy = entropy + torch.special.entr(sink_mass) if request.entropy else entropy
    return ProbeOut(
        out=rows.out if request.lse is None else None,
        lse=call.lse,
        mass=mass.permute(0, 2, 3, 1) if n_match else None,
        entropy=entropy if request.entropy else None,
        top_weight=rows.top_weight if request.top else None,
        top_key=rows.top_key.long() if request.top else None,
        sink_mass=sink_mass,
        weights=_weights(request, call),
        received=call.received() if request.received else None,
    )


def _first_sweep(request: Request, call: _Call, sweep: Sweep, mass: Tensor) -> RowOutputs:
    """Attention with the statistics that come along; with a known lse only what is needed."""
    if request.lse is None:
        rows = call.rows(sweep.labels, (request.q, request.k, request.value), request)
    elif request.entropy or request.top or sweep.compared or sweep.columns:
        rows = replace(call.rows(sweep.labels, wants=request), lse=call.lse)
    else:
        none = call.lse.new_empty(0)
        rows = RowOutputs(none, call.lse, none, none, none, none, none)
    _put(mass, sweep, rows)
    return rows


def _put(mass: Tensor, sweep: Sweep, rows: RowOutputs) -> None:
    """The masses of a sweep where the call's own order has them."""
    if sweep.compared:
        mass[:, list(sweep.compared)] = rows.mass
    if sweep.columns and sweep.looking is not None:
        found = rows.column_mass[..., : len(sweep.columns)] * sweep.looking[:, None]
        mass[:, list(sweep.columns)] = found.movedim(-1, 1)


def _weights(request: Request, call: _Call) -> Tensor | None:
    wanted = request.weights
    if wanted is None:
        return None
    heads = list(range(request.q.shape[1]) if wanted.heads is None else wanted.heads)
    dtype = wanted.dtype or request.q.dtype
    _, n_query, n_key = request.sizes
    if wanted.pool is None:
        return call.weights(heads, wanted.rows, dtype)[..., :n_key]
    high, wide = min(wanted.pool[0], n_query), min(wanted.pool[1], n_key)
    largest = wanted.reduce == "max"
    grid = call.pooled(heads, (high, wide), largest)
    if not largest:
        device = grid.device
        grid = grid.double() / (
            entries(n_query, high, device)[:, None] * entries(n_key, wide, device)
        )
    return grid.to(dtype)


@dataclass(frozen=True, eq=False)
class _Call:
    """What all operators take; statistics carry no gradient.

    q and k are detached, lse is the known one, as soon as it is known; of the bias only `rows`
    with its own q, k and v sees the graph.
    """

    q: Tensor
    k: Tensor
    lse: Tensor
    bias: Tensor | None
    lo: Tensor
    hi: Tensor
    scale: float
    softcap: float | None

    @classmethod
    def of(cls, request: Request, mask: Mask) -> _Call:
        lo, hi = mask.intervals(*request.sizes, request.q.device)
        lse = request.q.new_empty(0) if request.lse is None else request.lse.detach().float()
        bias = request.scores.bias
        return cls(
            request.q.detach(), request.k.detach(), lse, None if bias is None else bias.detach(),
            lo, hi, request.scale, request.scores.softcap,
        )  # fmt: skip

    @property
    def scores(self) -> tuple[Tensor | None, Tensor, Tensor, float, float | None]:
        return self.bias, self.lo, self.hi, self.scale, self.softcap

    def rows(
        self,
        labels: Labels,
        attend: tuple[Tensor, Tensor, Tensor] | None = None,
        wants: Request | None = None,
    ) -> RowOutputs:
        """The forward kernel: `attend` to v with gradients, or statistics from the known lse."""
        q, k, v = attend or (self.q, self.k, None)
        known, sinks, (bias, *others) = self.lse, None, self.scores
        if attend is not None and wants is not None:
            known, sinks, bias = None, wants.scores.sinks, wants.scores.bias
        found = _ops.probe_rows(
            q, k, v, known, sinks, labels.own, labels.q_code, labels.k_code, labels.columns,
            labels.strict, bias, *others, wants is not None and wants.entropy,
            wants is not None and wants.top,
        )  # fmt: skip
        return RowOutputs(*found)

    def few(self, keys: Tensor) -> Tensor:
        return _ops.probe_few(self.q, self.k, self.lse, keys, *self.scores)

    def weights(self, heads: list[int], rows: Tensor | None, dtype: torch.dtype) -> Tensor:
        rows = None if rows is None else rows.to(self.q.device)
        return _ops.probe_weights(self.q, self.k, self.lse, heads, rows, dtype, *self.scores)

    def pooled(self, heads: list[int], cell: tuple[int, int], largest: bool) -> Tensor:
        return _ops.probe_pooled(self.q, self.k, self.lse, heads, cell, largest, *self.scores)

    def received(self) -> Tensor:
        return _ops.probe_received(self.q, self.k, self.lse, *self.scores)
