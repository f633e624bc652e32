"""Point a model at our attention function and back: who holds which config, and what it had before.

A model's attention implementation lives in its configs, which models may share; `generate` also
looks up on the model itself how to build masks. Both are changed while some block needs it, counted
per object, and restored when the last block ends.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_masks_for_generate

from .errors import InputError
from .masks import AS_TENSOR, NAME


@dataclass(frozen=True, eq=False)
class _Hold:
    """An object changed for as long as some block needs it, and how to change it back."""

    owner: Any  # keeps its id taken
    restore: Callable[[], Any]
    implementation: str | None  # outside any block
    by: set[object]  # the blocks


# One entry per object, by id. Configs count, not models: a model and its base model share theirs.
_HELD: dict[int, _Hold] = {}
_LOCK = threading.Lock()


EAGER = "eager"  # what classes call their own attention, written out


@contextmanager
def switched(model: PreTrainedModel, name: str = NAME) -> Iterator[None]:
    """Have `model` call our attention function inside the block, and as before after it.

    Args:
        model: the model.
        name: the implementation to switch to: ours, or `EAGER` for classes that go past the
            registry, whose own code then writes the pattern out.

    Raises:
        InputError: on exit, when the implementation was changed inside the block.
    """
    owners, block = [model, *configs(model)], object()
    changed: list[Any] = []
    try:
        with _LOCK:
            for owner in owners:
                _HELD.setdefault(id(owner), _hold(owner)).by.add(block)
            if name == EAGER:
                for config in owners[1:]:  # some of these classes refuse to be switched
                    config._attn_implementation_internal = EAGER
            else:
                model.set_attn_implementation(name)
            if _HELD[id(model)].by == {block}:
                model.__dict__[_PREPARE] = _TensorMasks(model)
            ours = [owner for owner in owners[1:] if _implementation(owner) == name]
        yield
        with _LOCK:
            changed = [config for config in ours if _implementation(config) != name]
            found = _implementation(changed[0]) if changed else None
            for config in changed:
                config._attn_implementation_internal = name  # an outer block still needs it
    finally:
        try:  # right here: a request to stop may come at the start of any function
            _release(owners, block)
        except BaseException:
            _release(owners, block)
            raise
    if changed:
        raise InputError(
            f"the attention implementation of {type(model).__name__} was changed to {found!r} "
            "inside an attach block, so what ran after that went unseen; it now has again the one "
            "it had before the block. Call set_attn_implementation outside the block."
        )


def _implementation(config: Any) -> str | None:
    return config._attn_implementation_internal


def _hold(owner: Any) -> _Hold:
    implementation = getattr(owner, "_attn_implementation_internal", None)
    return _Hold(owner, _restorer(owner), implementation, set())


def _release(owners: Iterable[Any], block: object) -> None:
    with _LOCK:
        for owner in owners:
            hold = _HELD.get(id(owner))
            if hold is None:
                continue
            if hold.by <= {block}:  # none at all where a request to stop came as it was entered
                hold.restore()
                del _HELD[id(owner)]
            else:
                hold.by.discard(block)


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


class _TensorMasks:
    """A model's own preparation of masks, asked for tensors as long as a block holds the model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._set_by_user = model.__dict__.get(_PREPARE)
        self._prepare = getattr(model, _PREPARE, create_masks_for_generate)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if id(self._model) not in _HELD:
            return self._prepare(*args, **kwargs)
        token = AS_TENSOR.set(True)
        try:
            return self._prepare(*args, **kwargs)
        finally:
            AS_TENSOR.reset(token)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the model made inside the block, which no exit will restore, gets its own."""
        if self._set_by_user is not None:
            return copy.deepcopy(self._set_by_user, memo)
        # the copied model is still bare, so this is what its class says
        twin = memo.get(id(self._model))
        return self if twin is None else getattr(twin, _PREPARE, create_masks_for_generate)


def configs(model: nn.Module) -> Iterator[Any]:
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


def asks_unheld(config: Any) -> bool:
    """Whether a config asks for our function although no block holds it: that of a copy."""
    return getattr(config, "_attn_implementation_internal", None) == NAME and (
        id(config) not in _HELD
    )


def is_switched(model: nn.Module) -> bool:
    """Whether some block holds one of the model's configs at this moment."""
    with _LOCK:
        return any(id(config) in _HELD for config in configs(model))


def own_implementations(model: nn.Module) -> tuple[str | None, ...]:
    """The attention implementation of each of the model's configs, as it is outside any block."""
    with _LOCK:
        return tuple(
            _HELD[id(config)].implementation if id(config) in _HELD else _implementation(config)
            for config in configs(model)
        )


def is_copy(model: nn.Module) -> bool:
    """Whether it was copied inside a block: it asks for our function, but nobody holds it."""
    with _LOCK:
        return any(asks_unheld(config) for config in configs(model))
