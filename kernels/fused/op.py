"""The kernels as torch operators: traceable by torch.compile, and `out` with gradients.

Every operator allocates what it returns, in full and contiguous; what was not asked for is a tensor
without elements. Gradients of `out` are those of `gradients`; statistics carry none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.library import custom_op, register_autograd, register_fake

from .autotune import search
from .gradients import gradients
from .launch import Inputs
from .reads import ReadCall
from .rows import Labels, RowCall, RowOutputs

_N_INPUTS = 17
_SCORES = "Tensor? bias, Tensor lo, Tensor hi, float scale, float? softcap"


def _inputs(
    q: Tensor,
    k: Tensor,
    bias: Tensor | None,
    lo: Tensor,
    hi: Tensor,
    scale: float,
    softcap: float | None,
) -> Inputs:
    """The kernels take positive scales; the sign goes to the queries."""
    if scale <= 0:
        q, scale = (-q, -scale) if scale < 0 else (q * 0, 1.0)
    return Inputs(_near(q), _near(k), lo.contiguous(), hi.contiguous(), bias, scale, softcap)


def _near(x: Tensor) -> Tensor:
    """A copy, where offsets within a block of keys or features would not fit 32 bits."""
    return x if max(x.stride()[2:]) < 2**20 else x.contiguous()


def _dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _call(
    q: Tensor, k: Tensor, v: Tensor | None, known: Tensor | None, sinks: Tensor | None,
    own: Tensor | None, q_code: Tensor | None, k_code: Tensor | None, columns: Tensor | None,
    strict: int, bias: Tensor | None, lo: Tensor, hi: Tensor, scale: float,
    softcap: float | None, entropy: bool, top: bool,
) -> RowCall:  # fmt: skip
    return RowCall(
        inputs=_inputs(q, k, bias, lo, hi, scale, softcap),
        v=None if v is None else _near(v),
        known=None if known is None else known.float().contiguous(),
        sinks=_dense(sinks),
        labels=Labels(_dense(q_code), _dense(k_code), _dense(own), strict, _dense(columns)),
        entropy=entropy,
        top=top,
    )


@custom_op(
    "headatlas::probe_rows",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor? v, Tensor? known, Tensor? sinks, Tensor? own, "
    "Tensor? q_code, Tensor? k_code, Tensor? columns, int strict, " + _SCORES + ", bool entropy, "
    "bool top) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def probe_rows(*arguments):
    """Attention and row statistics; see `RowCall` and `RowOutputs`."""
    return run_rows(_call(*arguments)).all()


def run_rows(call: RowCall) -> RowOutputs:
    """Allocate the outputs of a call and fill them.

    Args:
        call: With v or with a known lse; nothing empty.

    Returns:
        Every element written.
    """
    search(call)
    into = call.outputs()
    for launch in call.launches(into):
        launch.run()
    return into


@register_fake("headatlas::probe_rows")
def _(*arguments):
    return _call(*arguments).outputs().all()


def _remember(ctx, inputs, output) -> None:
    q, k, v, known, sinks, *_, bias, lo, hi, scale, softcap, _, _ = inputs
    out, lse, *_ = output
    ctx.save_for_backward(q, k, v, bias, sinks, out, lse, lo, hi)
    ctx.scale, ctx.softcap, ctx.attends = scale, softcap, known is None
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, grad, *_):
    q, k, v, bias, sinks, out, lse, lo, hi = ctx.saved_tensors
    if not ctx.attends:
        return (None,) * _N_INPUTS
    places = 0, 1, 2, 4, 10  # q, k, v, sinks, bias
    needs = [ctx.needs_input_grad[at] for at in places]
    found = torch.ops.headatlas.probe_rows_backward(
        grad, q, k, v, sinks, out, lse, needs, bias, lo, hi, ctx.scale, ctx.softcap
    )
    back: list[Tensor | None] = [None] * _N_INPUTS
    for at, needed, gradient in zip(places, needs, found, strict=True):
        back[at] = gradient if needed else None
    return tuple(back)


register_autograd("headatlas::probe_rows", _backward, setup_context=_remember)


@custom_op(
    "headatlas::probe_rows_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor out, Tensor lse, "
    "bool[] needs, " + _SCORES + ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def probe_rows_backward(grad, q, k, v, sinks, out, lse, needs, bias, lo, hi, scale, softcap):
    """Gradients of q, k, v, sinks and bias, as far as needed; see `gradients`."""
    inputs = Inputs(q, k, lo, hi, bias, scale, softcap)
    with torch.autocast(q.device.type, enabled=False):  # of which a backward pass may be part
        found = gradients(grad, inputs, v, sinks, (out, lse), needs)
    return tuple(grad.new_empty(0) if x is None else x.contiguous() for x in found)


@register_fake("headatlas::probe_rows_backward")
def _(grad, q, k, v, sinks, out, lse, needs, bias, lo, hi, scale, softcap):
    given = zip((q, k, v, sinks, bias), needs, strict=True)
    return tuple(
        x.new_empty(x.shape) if needed and x is not None else grad.new_empty(0)
        for x, needed in given
    )


@custom_op(
    "headatlas::probe_weights",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor lse, int[] heads, Tensor? rows, ScalarType dtype, "
    + _SCORES
    + ") -> Tensor",
)
def probe_weights(q, k, lse, heads, rows, dtype, bias, lo, hi, scale, softcap):
    """A of the chosen heads and rows; each row padded with zeros to a multiple of 16 keys."""
    call = _read(q, k, lse, bias, lo, hi, scale, softcap)
    rows = None if rows is None else rows.int().contiguous()
    into = _empty_weights(call, heads, rows, dtype)
    call.weights(_index(heads, q), rows, into).run()
    return into


@register_fake("headatlas::probe_weights")
def _(q, k, lse, heads, rows, dtype, bias, lo, hi, scale, softcap):
    return _empty_weights(_read(q, k, lse, bias, lo, hi, scale, softcap), heads, rows, dtype)


def _empty_weights(
    call: ReadCall, heads: Sequence[int], rows: Tensor | None, dtype: torch.dtype
) -> Tensor:
    n_row = call.inputs.q.shape[2] if rows is None else rows.shape[1]
    return call.empty_weights(len(heads), n_row, dtype)


@custom_op(
    "headatlas::probe_pooled",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor lse, int[] heads, int[] cell, bool largest, "
    + _SCORES
    + ") -> Tensor",
)
def probe_pooled(q, k, lse, heads, cell, largest, bias, lo, hi, scale, softcap):
    """Sums or maxima of A over cells, [batch, chosen_head, band, column]."""
    call = _read(q, k, lse, bias, lo, hi, scale, softcap)
    into = call.empty_grid(len(heads), tuple(cell))
    call.pooled(_index(heads, q), tuple(cell), largest=largest, into=into).run()
    return into


@register_fake("headatlas::probe_pooled")
def _(q, k, lse, heads, cell, largest, bias, lo, hi, scale, softcap):
    return _read(q, k, lse, bias, lo, hi, scale, softcap).empty_grid(len(heads), tuple(cell))


@custom_op(
    "headatlas::probe_received",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor lse, " + _SCORES + ") -> Tensor",
)
def probe_received(q, k, lse, bias, lo, hi, scale, softcap):
    """Column sums of A, [batch, head, key]."""
    into = q.new_empty(*q.shape[:2], k.shape[2], dtype=torch.float32)
    _read(q, k, lse, bias, lo, hi, scale, softcap).received(into).run()
    return into


@register_fake("headatlas::probe_received")
def _(q, k, lse, bias, lo, hi, scale, softcap):
    return q.new_empty(*q.shape[:2], k.shape[2], dtype=torch.float32)


@custom_op(
    "headatlas::probe_few",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor lse, Tensor keys, " + _SCORES + ") -> Tensor",
)
def probe_few(q, k, lse, keys, bias, lo, hi, scale, softcap):
    """Masses of listed keys [batch, match, query, most], as [batch, match, head, query]."""
    into = _empty_few(q, keys)
    _read(q, k, lse, bias, lo, hi, scale, softcap).few(keys.int().contiguous(), into).run()
    return into


@register_fake("headatlas::probe_few")
def _(q, k, lse, keys, bias, lo, hi, scale, softcap):
    return _empty_few(q, keys)


def _empty_few(q: Tensor, keys: Tensor) -> Tensor:
    return q.new_empty(*keys.shape[:2], *q.shape[1:3], dtype=torch.float32)


def _read(
    q: Tensor, k: Tensor, lse: Tensor, bias: Tensor | None, lo: Tensor, hi: Tensor, scale: float,
    softcap: float | None,
) -> ReadCall:  # fmt: skip
    return ReadCall(_inputs(q, k, bias, lo, hi, scale, softcap), lse.float().contiguous())


def _index(heads: Sequence[int], q: Tensor) -> Tensor:
    return torch.tensor(list(heads), dtype=torch.int32, device=q.device)
