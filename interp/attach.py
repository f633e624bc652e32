"""See and edit what attention heads do while a model runs.

One function of ours stands in transformers' attention registry. `attach` points a model at it for
the length of a `with` block (`switch`); who sees and edits what it computes is said by `frames`.
Classes that compute attention themselves are seen from inside their forward instead (`inline`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils import output_capturing

from ..kernels.api import Scores
from .attention_call import AttentionCall, Edit, Observer
from .autocast import as_attended, autocast_off
from .call_checks import refuse_empty_rows, refuse_unknown
from .errors import InputError
from .frames import FULL_ROWS, Frame, edits_of, entered, show, views_of
from .hook_requests import check_sites, read_requests
from .inline import in_view
from .masks import NAME, read_mask
from .placement import placement
from .placement import register as register_mask
from .site_table import SiteTable
from .sites import Site, attention_sites, check_model
from .switch import EAGER, switched

__all__ = ["AttentionCall", "Edit", "attach"]


@contextmanager
def attach(
    model: nn.Module,
    *,
    observers: Sequence[Observer] = (),
    edits: Sequence[Edit] = (),
) -> Iterator[tuple[Site, ...]]:
    """Let `observers` see, and `edits` change, every attention call of `model` inside the block.

    Edits act where their target comes up in

        S = softcap(scale · q kᵀ) + bias,   A = softmax(S),   z = A v,   output = W_O z:

    those of q, k and v first, then of the scores S, of the pattern A, of z; within a target in the
    order given, those of an outer block first. Gradients flow through all. q, k and v are what
    attention receives: after RoPE and QK-norm, and under a KV cache all keys and values so far,
    edited anew in each step while the cache keeps the unedited ones. Edits of the scores and the
    pattern write the pattern out at their sites; the others leave it unwritten. Observers come
    after all edits; they only look, and must not write into a call's tensors, which are the model's
    and its cache's own (an edit gets a copy). On exit, also by an exception, the model is as it
    was: its attention implementation is restored and nothing else was touched. The same model may
    be attached again inside the block, and by other threads at the same time: each sees its own
    observers and edits.

    A thread that runs the model without a block of its own while another thread observes or edits
    it gets an InputError, since it cannot tell whether it was meant to take part. Start it with
    `contextvars.copy_context().run` to take the block along, or attach in the thread, without
    arguments for the plain model.

    Under `torch.autocast` q, k and v come in its dtype, as attention would take them; edits and
    observers run with it off, so that what they compute is not rounded further.

    Where a class computes attention in its own code (`site.inline`), scores, pattern, v and z are
    seen and edited inside it, in that order of its own; q and k are not seen, and edits of them are
    refused.

    Layers that activation checkpointing runs again in the backward pass run there without the
    edits, since the block may be over, and gradients would be silently wrong. A model's own
    checkpointing is refused in training mode; that a caller wrapped its modules in
    `torch.utils.checkpoint` cannot be seen from inside: do not use the two together.

    A model in training mode runs with dropout, as without the block; `call.pattern` is the pattern
    before dropout, z comes after it.

    Args:
        model: a transformers model, or a `TransformerBridge` around one: calls of the bridge, or
            of its model, then run that model as a whole, without the bridge's hook points.
        observers: functions called with each `AttentionCall`.
        edits: changes to make.

    Returns:
        A context manager that yields the model's attention sites in call order.

    Raises:
        InputError: an observer that is no function, an edit that is no `Edit` or names a site that
            the model does not have; the model cannot be hooked faithfully (see `attention_sites`),
            or it passes its attention a keyword whose effect is unknown; it runs under gradient
            checkpointing, or as a copy made inside the block; on exit, its attention
            implementation was changed inside the block.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16,
        ...     num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
        >>> model, seen = LlamaForCausalLM(config).eval(), []
        >>> with attach(model, observers=[lambda call: seen.append(call.pattern.shape)]):
        ...     _ = model(torch.tensor([[1, 2, 3]]))
        >>> [tuple(shape) for shape in seen]
        [(1, 4, 3, 3), (1, 4, 3, 3)]
    """
    requests = read_requests(observers, edits)
    given, model = model, check_model(model)
    sites = attention_sites(model)
    check_sites(requests[1], sites)
    table = SiteTable(model, sites)
    frame = Frame(table, *requests, model)
    if given is model:
        with table.counting(), hooked(model, frame, table.inline):
            yield sites
        return
    from .bridge_calls import routed  # a bridge, whose own calls shall take part

    with routed(given, table.modules), table.counting(), hooked(model, frame, table.inline):
        yield sites


@contextmanager
def hooked(
    model: PreTrainedModel, frame: Frame, inline: Sequence[nn.Module] = ()
) -> Iterator[None]:
    """Have `model` show its attention to `frame` and those around; the machinery of `attach`.

    Args:
        model: the model.
        frame: who sees and edits it.
        inline: its modules that compute attention themselves; without any it goes by the registry.
    """
    register_mask()
    AttentionInterface.register(NAME, _attention)
    with switched(model, EAGER if inline else NAME), in_view(inline), entered(frame):
        yield


@torch.compiler.disable  # compiled models break their graph here, so that observers run each time
def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    output_attentions: bool | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """Our entry in transformers' attention registry: its signature, its layouts."""
    views = views_of(module, query, key, value)
    name = views[-1][1].module if views else type(module).__name__
    refuse_unknown(name, rest)
    query, key, value = as_attended(*_same_batch(query, key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask, bias = read_mask(attention_mask, query, key, causal=bool(causal))
    bias = _sum(bias, position_bias, query.shape[2], key.shape[2])
    if any(frame.model in FULL_ROWS for frame, _ in views):
        refuse_empty_rows(name, mask, bias, query.shape[2], key.shape[2])
    bias, sink = _with_sinks(bias, s_aux, sinks, query, key)
    scores = Scores(scale=scaling, softcap=softcap, bias=bias, sinks=sink)
    site = views[-1][1] if views else None
    stack = site.stack if site else ""
    where = partial(placement, attention_mask, query.shape[2], key.shape[2], stack)
    where = where() if stack in ("dec", "cross") else where  # there calls depend on one another
    call = AttentionCall(site, query, key, value, mask, scores, where)
    with autocast_off(query.device):
        call.compute(edits_of(views), dropout=dropout if module.training else 0.0)
        show(call, views)
        wanted = output_attentions or _pattern_wanted()
        return call.z.transpose(1, 2).contiguous(), call.pattern if wanted else None


def _sum(bias: Tensor | None, more: Tensor | None, n_query: int, n_key: int) -> Tensor | None:
    given = [term for term in (bias, more) if term is not None]
    return sum(given[1:], given[0]).expand(-1, -1, n_query, n_key) if given else None


def _with_sinks(
    bias: Tensor | None, by_head: Tensor | None, by_query: Tensor | None, q: Tensor, k: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The bias and one sink logit per head.

    Where each query has a sink logit of its own, scores are counted from it, so that it becomes 0:
    A = exp(S) / (Σ exp(S) + exp(s)) is the same for S − s and 0.

    Raises:
        InputError: both kinds at once, or sinks that are not one per query.
    """
    if by_query is None:
        return bias, None if by_head is None else by_head.reshape(-1)
    if by_head is not None or tuple(by_query.shape) != (*q.shape[:3], 1):
        raise InputError(
            f"a query's sink logits must be [batch, head, query, 1] = {(*q.shape[:3], 1)}, and the "
            f"only ones; got {tuple(by_query.shape)}. This way of attending is not supported."
        )
    wide = torch.promote_types(by_query.dtype, torch.float32)
    offset = -by_query.to(wide).expand(-1, -1, -1, k.shape[2])
    return offset if bias is None else bias + offset, by_query.new_zeros(q.shape[1])


def _same_batch(*tensors: Tensor) -> list[Tensor]:
    """Expand a batch of one (learned queries) to that of the others."""
    batch = max(t.shape[0] for t in tensors)
    return [t if t.shape[0] == batch else t.expand(batch, -1, -1, -1) for t in tensors]


def _pattern_wanted() -> bool:
    """Whether the caller asked the model for `attentions`.

    Most models collect them from module outputs and do not say so to the attention function.
    """
    collecting = output_capturing._active_collector.get()
    return any("attentions" in key for key in collecting or ())
