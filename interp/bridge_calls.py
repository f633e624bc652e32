"""Calls of a bridge inside a block: they run the transformers model that the block hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from weakref import ref

from torch import nn
from transformers import PreTrainedModel

from .bridge import inside, is_unrouted, view_of
from .bridge_hooks import set_hooks
from .bridge_view import View
from .errors import InputError
from .forward import is_undisturbed

_FORWARD = "forward"


@dataclass(frozen=True, eq=False)
class _Hold:
    """A model whose forward runs the view's, and the blocks that need it."""

    owner: nn.Module  # keeps its id taken
    before: Any  # a forward of its own, where it had one
    by: set[_Guard]


_HELD: dict[int, _Hold] = {}
_LOCK = threading.Lock()


@contextmanager
def routed(given: nn.Module, attending: Sequence[nn.Module]) -> Iterator[None]:
    """Have calls of a bridge, or of its model, run the view's modules inside the block.

    The bridge's own forward stays around that: it reads text and returns logits or a loss as ever.

    Args:
        given: the bridge, or the model that was given to it, whose view was made.
        attending: the view's modules that attend. The bridge's components in their place refuse to
            run, since nobody would see them.
    """
    view, guard = view_of(inside(given)), _Guard()
    owners = [
        (own, pair.twin) for pair in view.pairs if isinstance(own := pair.own(), PreTrainedModel)
    ]
    seen = {id(module) for module in attending}
    components = [
        outer
        for pair in view.pairs
        if id(pair.twin) in seen and (outer := pair.outer()) is not None
    ]
    try:
        with _LOCK:
            for own, twin in owners:
                if id(own) not in _HELD:
                    _HELD[id(own)] = _Hold(own, own.__dict__.get(_FORWARD), set())
                    own.__dict__[_FORWARD] = _route(own, twin, view)
                _HELD[id(own)].by.add(guard)
        for component in components:
            component.register_forward_pre_hook(guard)
        yield
    finally:
        try:  # right here: a request to stop may come at the start of any function
            _release([own for own, _ in owners], components, guard)
        except BaseException:
            _release([own for own, _ in owners], components, guard)
            raise


class _Guard:
    """A block's own hook on the bridge's components that attend: it refuses to let them run."""

    def __call__(self, component: nn.Module, *_: Any) -> None:
        if not is_unrouted():
            raise InputError(
                f"{type(component).__name__} of a TransformerBridge runs inside an attach or "
                "intervene block, which would not see it. Call the bridge, or its model, as a "
                "whole."
            )


def _release(owners: Sequence[nn.Module], components: Sequence[nn.Module], guard: _Guard) -> None:
    """Give models their forward back when the last block ends; a second time does nothing."""
    for component in components:
        hooks = component._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hook is guard]:
            hooks.pop(key, None)
    with _LOCK:
        for own in owners:
            hold = _HELD.get(id(own))
            if hold is None:
                continue
            if not hold.by <= {guard}:
                hold.by.discard(guard)
                continue
            # none at all where a request to stop came as it was entered
            own.__dict__.pop(_FORWARD, None)
            if hold.before is not None:
                own.__dict__[_FORWARD] = hold.before
            del _HELD[id(own)]


def _route(own: nn.Module, twin: nn.Module, view: View) -> Callable[..., Any]:
    """A forward of `own` that runs `twin`."""
    origin, before = ref(own), own.__dict__.get(_FORWARD)

    @wraps(twin.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        model = origin()
        assert model is not None  # it is being called
        if is_unrouted():
            run = type(model).forward.__get__(model) if before is None else before
            return run(*args, **kwargs)
        _refuse_partial(model)
        if not is_undisturbed(view.model):
            for pair in view.pairs:
                pair.twin.training = bool(getattr(pair.own(), "training", False))
        return twin(*args, **kwargs)

    return forward


def _refuse_partial(model: nn.Module) -> None:
    """Refuse what only the bridge's own components do, and forget what they were told."""
    for name in set_hooks(model):
        raise InputError(
            f"inside an attach or intervene block a TransformerBridge runs its model without its "
            f"hook points, and a hook is set at {name}. Use headatlas.capture and interventions "
            "inside, run_with_cache and run_with_hooks outside."
        )
    for part in model.modules():
        told = part.__dict__
        for key in ("stop_at_layer", "start_at_layer"):
            if told.get(f"_{key}_idx") is not None:
                raise InputError(
                    f"inside an attach or intervene block a TransformerBridge takes no {key}: it "
                    "runs its model as a whole. Leave it out, or call the bridge outside."
                )
        if told.get("_current_batch_size") is not None:  # read and cleared as the component runs
            told["_current_batch_size"] = None
