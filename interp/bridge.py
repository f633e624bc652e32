"""TransformerLens's bridge: the transformers model that it was given, with its own modules again.

A `TransformerBridge` replaces modules inside the model that it is given by components of its own,
each of which keeps the module it replaced. `plain_model` puts a second tree of modules together
from those: it shares every weight with the bridge and nothing else, so that hooks, attention
implementations and modes of the one never show in the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .bridge_hooks import refuse_hooks
from .bridge_view import View, make_view, shape_of
from .closeness import apart, half_digits
from .errors import InputError, one_line
from .forward import undisturbed
from .frames import unobserved
from .sites import holds_bridge, is_of_bridge
from .survey_probe import probe_inputs
from .switch import is_switched

_VIEWS: WeakKeyDictionary[nn.Module, View] = WeakKeyDictionary()
_MADE: WeakSet[nn.Module] = WeakSet()
_LOCK = threading.RLock()
_UNROUTED: ContextVar[bool] = ContextVar("headatlas_unrouted", default=False)


def plain_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside a bridge, its own modules in place of the bridge's components.

    No weight is copied. The bridge and its model are left as they are, and are not kept alive. That
    both compute the same is checked by running them on a few tokens, anew when weights changed.

    Args:
        model: a `TransformerBridge`, or a model that was given to one.

    Raises:
        InputError: no transformers model is inside, hooks are set on the bridge, its modules were
            changed inside an attach block, or it computes something else than the model's own
            classes with their weights.
    """
    inner = inside(model)
    with _LOCK:
        refuse_hooks(model, inner)
        found, shape = _VIEWS.get(inner), shape_of(inner)
        if found is None or found.shape != shape:
            if found is not None and is_switched(found.model):
                raise InputError(
                    "the model inside the TransformerBridge was changed inside an attach or "
                    "intervene block, which would not see it. Change it outside."
                )
            found = make_view(inner, shape)
            _MADE.add(found.model)
        values = _values(inner)
        if found.checked != values:
            _check_same(inner, found.model)
            found = replace(found, checked=values)
        _VIEWS[inner] = found
        return found.model


def inside(model: nn.Module) -> PreTrainedModel:
    """The transformers model that a bridge was given; that model itself, if it is what arrives.

    Raises:
        InputError: there is none.
    """
    if not is_of_bridge(model):
        assert isinstance(model, PreTrainedModel)  # as the caller has seen
        return model
    kind = type(model).__name__
    try:
        inner = model.original_model
    except AttributeError:
        inner = None
    if isinstance(inner, PreTrainedModel):
        return inner
    what = "none" if inner is None else f"a {type(inner).__name__}"
    raise InputError(
        f"a TransformerBridge is taken for the transformers model inside it; {kind} of "
        f"TransformerLens holds {what}. Pass a bridge booted on a transformers model, or the plain "
        "model."
    )


def view_of(inner: nn.Module) -> View:
    """The view that `plain_model` made of a bridge's model."""
    return _VIEWS[inner]


def refuse_bridge(model: Any, action: str, then: str = "pass that") -> None:
    """Refuse a bridge, a model given to one, or what `plain_model` makes of them.

    Args:
        model: whatever arrived.
        action: what cannot be done with it, as a sentence begins.
        then: what to do with the model, loaded again.

    Raises:
        InputError: it is one of these.
    """
    if isinstance(model, nn.Module) and (model in _MADE or holds_bridge(model)):
        raise InputError(
            f"{action} takes the underlying transformers model, not a TransformerBridge or the "
            "model that a bridge was booted on, whose modules are the bridge's. Load the model "
            f"again, without a bridge, and {then}."
        )


@contextmanager
def unrouted() -> Iterator[None]:
    """Let the bridge's model run as the bridge has it, whatever blocks are around."""
    token = _UNROUTED.set(True)
    try:
        yield
    finally:
        _UNROUTED.reset(token)


def is_unrouted() -> bool:
    """Whether a block of `unrouted` is around."""
    return _UNROUTED.get()


def _values(inner: PreTrainedModel) -> int:
    """Where the weights lie, and how often they were written to.

    A bridge's bias may be a buffer; other buffers the model makes anew as it runs.
    """
    biases = (module._buffers.get("bias") for module in inner.modules())
    return hash(
        tuple(
            (weight.data_ptr(), None if weight.is_inference() else weight._version)
            for weight in (*inner.parameters(), *(bias for bias in biases if bias is not None))
        )
    )


def _check_same(inner: PreTrainedModel, view: PreTrainedModel) -> None:
    """Refuse a bridge whose outputs are not those of the model's own classes with its weights."""
    inputs = probe_inputs(view)
    inputs.pop("attention_mask", None)
    with torch.no_grad(), torch.autocast(view.device.type, enabled=False):
        with unrouted(), undisturbed(inner):
            theirs = _output(inner, inputs, "the TransformerBridge")
        with undisturbed(view), unobserved(view):
            ours = _output(view, inputs, f"the {type(view).__name__} inside the TransformerBridge")
    distance, limit = apart(ours, theirs), half_digits(theirs.dtype)
    if not distance <= limit:
        raise InputError(
            f"the TransformerBridge computes something else than the {type(view).__name__} inside "
            f"it, with the weights there: relative distance {distance:.1e}, limit {limit:.1e} of "
            f"{theirs.dtype}. Its own weights were processed (enable_compatibility_mode folds and "
            "centres them) or changed. Boot a bridge anew and leave its weights as they are "
            "(enable_compatibility_mode(no_processing=True)), or pass the plain model."
        )


def _output(model: PreTrainedModel, inputs: dict[str, Any], name: str) -> Tensor:
    try:
        output = model(**inputs)
    except Exception as error:
        raise InputError(
            f"{name} could not run on a few token ids: {type(error).__name__}: {one_line(error)}"
        ) from error
    values = getattr(output, "logits", None)
    return output[0] if values is None else values
