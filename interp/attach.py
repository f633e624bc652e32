"""See and edit what attention heads do while a model runs: the only file that installs hooks.

One function of ours stands in transformers' attention registry. `attach` points a model at it for
the length of a `with` block; what it shows and to whom lives in a context variable, so threads and
nested blocks keep to themselves.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import create_masks_for_generate
from transformers.utils import output_capturing

from ..kernels.api import Scores
from .attention_call import AttentionCall, Edit, Observer
from .call_checks import refuse_checkpointing, refuse_unknown
from .errors import InputError
from .masks import AS_TENSOR, NAME, read_mask
from .masks import register as register_mask
from .sites import Site, attention_sites

__all__ = ["AttentionCall", "Edit", "attach"]


@dataclass(frozen=True, eq=False)
class Frame:
    """What one `attach` asked for: whose modules, who watches, what is edited."""

    site_of: Callable[[nn.Module, Tensor, Tensor, Tensor], Site | None]
    observers: tuple[Observer, ...]
    edits: tuple[Edit, ...]
    model: nn.Module

    @cached_property
    def modules(self) -> frozenset[int]:
        """Ids of the model's modules."""
        return frozenset(id(module) for module in self.model.modules())

    @property
    def acts(self) -> bool:
        """Whether a forward pass that it does not reach would go unnoticed."""
        return bool(self.observers or self.edits)


_FRAMES: ContextVar[tuple[Frame, ...]] = ContextVar("headatlas_frames", default=())


@contextmanager
def attach(
    model: PreTrainedModel,
    *,
    observers: Sequence[Observer] = (),
    edits: Sequence[Edit] = (),
) -> Iterator[tuple[Site, ...]]:
    """Let `observers` see, and `edits` change, every attention call of `model` inside the block.

    An edit of the pattern A acts before z = A v, an edit of z after it and before W_O; gradients
    flow through both. Edits apply in the order given, those of an outer block first; observers
    come after all edits. On exit, also by an exception, the model is as it was: its attention
    implementation is restored and nothing else was touched. The same model may be attached again
    inside the block, and by other threads at the same time: each sees its own observers and edits.

    A thread that runs the model without a block of its own while another thread observes or edits
    it gets an InputError, since it cannot tell whether it was meant to take part. Start it with
    `contextvars.copy_context().run` to take the block along, or attach in the thread, without
    arguments for the plain model.

    A model in training mode runs with dropout, as without the block; `call.pattern` is the pattern
    before dropout, z comes after it.

    Args:
        model: a transformers model that uses the attention registry.
        observers: functions called with each `AttentionCall`.
        edits: changes to make.

    Returns:
        A context manager that yields the model's attention sites in call order.

    Raises:
        InputError: the model cannot be hooked faithfully (see `attention_sites`), or it passes its
            attention a keyword whose effect is unknown; when it runs under gradient checkpointing,
            or as a copy made inside the block; on exit, when its attention implementation was
            changed inside the block.

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
    sites = attention_sites(model)
    modules = dict(model.named_modules())
    table = {id(modules[site.module]): site for site in sites}

    def site_of(module: nn.Module, *_: Tensor) -> Site | None:
        return table.get(id(module))

    with hooked(model, Frame(site_of, tuple(observers), tuple(edits), model)):
        yield sites


@contextmanager
def hooked(model: PreTrainedModel, frame: Frame) -> Iterator[None]:
    """Point `model` at our attention function with `frame` on top; the machinery of `attach`."""
    register_mask()
    AttentionInterface.register(NAME, _attention)
    with _switched(model), _announced(frame):
        token = _FRAMES.set((*_FRAMES.get(), frame))
        try:
            yield
        finally:
            _FRAMES.reset(token)


@contextmanager
def unobserved(model: nn.Module) -> Iterator[None]:
    """Run `model` for ourselves: observers and edits of blocks around this one rest."""
    token = _FRAMES.set((Frame(lambda *_: None, (), (), model),))
    try:
        yield
    finally:
        _FRAMES.reset(token)


class _Hold:
    """An object changed for as long as some block needs it, and how to change it back."""

    def __init__(self, owner: Any, restore: Callable[[], Any]) -> None:
        self.owner, self.restore, self.count = owner, restore, 0  # the owner keeps its id taken
        self.implementation = getattr(owner, "_attn_implementation_internal", None)


# One entry per object, by id. Configs count, not models: a model and its base model share theirs.
_HELD: dict[int, _Hold] = {}
_LOCK = threading.Lock()


# The frames of all threads that observe or edit something at this moment.
_ACTING: list[Frame] = []


@contextmanager
def _announced(frame: Frame) -> Iterator[None]:
    if not frame.acts:
        yield
        return
    with _LOCK:
        _ACTING.append(frame)
    try:
        yield
    finally:
        with _LOCK:
            _ACTING.remove(frame)


@contextmanager
def _switched(model: PreTrainedModel) -> Iterator[None]:
    with _LOCK:
        owners = [model, *_configs(model)]
        for owner in owners:
            if id(owner) not in _HELD:
                _HELD[id(owner)] = _Hold(owner, _restorer(owner))
            _HELD[id(owner)].count += 1
        try:
            model.set_attn_implementation(NAME)
            if _HELD[id(model)].count == 1:
                model.__dict__[_PREPARE] = _preparing_tensors(model)
            ours = [owner for owner in owners[1:] if _implementation(owner) == NAME]
        except BaseException:
            _release(owners)
            raise
    try:
        yield
    except BaseException:
        with _LOCK:
            _release(owners)
        raise
    with _LOCK:
        changed = [config for config in ours if _implementation(config) != NAME]
        found = _implementation(changed[0]) if changed else None
        for config in changed:
            config._attn_implementation_internal = NAME  # an outer block still needs it
        _release(owners)
    if changed:
        raise InputError(
            f"the attention implementation of {type(model).__name__} was changed to {found!r} "
            "inside an attach block, so what ran after that went unseen; it now has again the one "
            "it had before the block. Call set_attn_implementation outside the block."
        )


def _implementation(config: Any) -> str | None:
    return config._attn_implementation_internal


def _release(owners: Iterable[Any]) -> None:
    for owner in owners:
        hold = _HELD[id(owner)]
        hold.count -= 1
        if hold.count == 0:
            hold.restore()
            del _HELD[id(owner)]


def _restorer(owner: Any) -> Callable[[], Any]:
    """How to give a config its implementation back, or a model its preparation of masks."""
    if not isinstance(owner, nn.Module):
        value = owner._attn_implementation_internal
        return lambda: setattr(owner, "_attn_implementation_internal", value)
    if _PREPARE in owner.__dict__:
        own = owner.__dict__[_PREPARE]
        return lambda: owner.__dict__.update({_PREPARE: own})
    return lambda: owner.__dict__.pop(_PREPARE, None)


# `generate` looks this name up on the model to build the masks of a static cache beforehand.
_PREPARE = "create_masks_for_generate"


def _preparing_tensors(model: nn.Module) -> Callable[..., Any]:
    prepare = getattr(model, _PREPARE, create_masks_for_generate)

    def create_masks(*args: Any, **kwargs: Any) -> Any:
        token = AS_TENSOR.set(True)
        try:
            return prepare(*args, **kwargs)
        finally:
            AS_TENSOR.reset(token)

    return create_masks


def _configs(model: nn.Module) -> Iterator[Any]:
    """Every config object that names an attention implementation, each once."""
    queue = [getattr(module, "config", None) for module in model.modules()]
    seen: set[int] = set()
    while queue:
        config = queue.pop()
        if id(config) in seen or not hasattr(config, "_attn_implementation_internal"):
            continue
        seen.add(id(config))
        queue += [getattr(config, key, None) for key in getattr(config, "sub_configs", ())]
        yield config


def is_switched(model: nn.Module) -> bool:
    """Whether some block holds one of the model's configs at this moment."""
    with _LOCK:
        return any(id(config) in _HELD for config in _configs(model))


def own_implementations(model: nn.Module) -> tuple[str | None, ...]:
    """The attention implementation of each of the model's configs, as it is outside any block."""
    with _LOCK:
        return tuple(
            _HELD[id(config)].implementation if id(config) in _HELD else _implementation(config)
            for config in _configs(model)
        )


def is_copy(model: nn.Module) -> bool:
    """Whether it was copied inside a block: it asks for our function, but nobody holds it."""
    with _LOCK:
        return any(
            _implementation(config) == NAME and id(config) not in _HELD
            for config in _configs(model)
        )


@contextmanager
def watch_inputs(
    modules: Iterable[nn.Module], see: Callable[[nn.Module, Tensor], None]
) -> Iterator[None]:
    """Call `see(module, input)` with the first tensor each of `modules` receives, each time."""

    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            see(module, args[0])

    handles = []
    try:
        for module in modules:
            handles.append(module.register_forward_pre_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


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
    output_attentions: bool | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """Our entry in transformers' attention registry: its signature, its layouts."""
    views = [(frame, frame.site_of(module, query, key, value)) for frame in _FRAMES.get()]
    views = [(frame, site) for frame, site in views if site is not None]
    if not views:
        _refuse_unseen(module)
    if module.training:
        refuse_checkpointing([frame.model for frame, _ in views])
    name = views[-1][1].module if views else type(module).__name__
    refuse_unknown(name, rest)
    query, key, value = _same_batch(query, key, value)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask, bias = read_mask(attention_mask, query, key, causal=bool(causal))
    bias = _sum(bias, position_bias, query.shape[2], key.shape[2])
    sinks = None if s_aux is None else s_aux.reshape(-1)
    scores = Scores(scale=scaling, softcap=softcap, bias=bias, sinks=sinks)
    site = views[-1][1] if views else None
    call = AttentionCall(site, query, key, value, mask, scores)

    edits = [(edit, site) for frame, site in views for edit in frame.edits]
    pattern_edits = [(edit, site) for edit, site in edits if edit.target == "pattern"]
    drop = dropout if module.training else 0.0
    call.compute(pattern_edits, dropout=drop)
    call.change_z([(edit, site) for edit, site in edits if edit.target == "z"])
    for frame, site in views:
        shown = copy.copy(call).at(site)
        for observer in frame.observers:
            observer(shown)
    wanted = output_attentions or _pattern_wanted()
    return call.z.transpose(1, 2).contiguous(), call.pattern if wanted else None


def _refuse_unseen(module: nn.Module) -> None:
    """Refuse a call that no frame of this context sees, unless it is plainly meant so."""
    kind = type(module).__name__
    mine = [frame for frame in _FRAMES.get() if id(module) in frame.modules]
    if any(frame.acts for frame in mine):
        raise InputError(
            f"{kind} attends here but did not when the model was surveyed, so observers and edits "
            "would miss it. This way of running the model is not supported."
        )
    if mine:
        return
    with _LOCK:
        elsewhere = any(id(module) in frame.modules for frame in _ACTING)
    if elsewhere:
        raise InputError(
            f"{kind} runs in a thread (or context) without an attach block of its own, while "
            "another one observes or edits the model. Start the thread with "
            "contextvars.copy_context().run to take the block along, or attach(model) inside it."
        )
    config = getattr(module, "config", None)
    if getattr(config, "_attn_implementation_internal", None) == NAME and id(config) not in _HELD:
        raise InputError(
            f"{kind} belongs to a copy made inside an attach block, which the block does not see. "
            "Copy the model outside, or call set_attn_implementation('sdpa') on the copy."
        )


def _sum(bias: Tensor | None, more: Tensor | None, n_query: int, n_key: int) -> Tensor | None:
    given = [term for term in (bias, more) if term is not None]
    return sum(given[1:], given[0]).expand(-1, -1, n_query, n_key) if given else None


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
