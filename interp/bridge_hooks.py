"""Hooks that were set on TransformerLens's bridge, which act in its forward alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import nn

from .errors import InputError

_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# whose hooks belong to the model and the bridge themselves; ours guard a block
_THEIR_OWN = frozenset({"transformer_lens", "transformers", __name__.split(".")[0]})


def refuse_hooks(*models: nn.Module) -> None:
    """Refuse hooks that a user, or `run_with_hooks` and `run_with_cache`, set on a bridge.

    Args:
        models: the bridge and its model.

    Raises:
        InputError: there are some.
    """
    for name in set_hooks(*models):
        raise InputError(
            f"the TransformerBridge has a hook at {name}, which acts in its own forward and would "
            "be passed over here. Call bridge.reset_hooks() (including_permanent=True for "
            "permanent ones), or remove the handle of register_forward_hook, first."
        )


def set_hooks(*models: nn.Module) -> Iterator[str]:
    """Names of the places at which hooks are set that are not the model's or the bridge's own."""
    seen: set[int] = set()
    for model in models:
        for module in model.modules():
            if id(module) not in seen and _is_hooked(module.__dict__):
                paths = (path for path, part in model.named_modules() if part is module)
                yield repr(getattr(module, "name", None) or next(paths) or type(module).__name__)
            seen.add(id(module))


def _is_hooked(told: Mapping[str, Any]) -> bool:
    for side in ("fwd_hooks", "bwd_hooks"):  # plain loops: a bridge has thousands of modules
        for handle in told.get(side, ()):
            # those that come and go are a run's, whoever wrote them
            if not (handle.is_permanent and _is_their_own(handle.user_hook)):
                return True
    for table in _TABLES:
        for hook in told[table].values():
            if not _is_their_own(hook):
                return True
    return False


def home_of(function: Any) -> str:
    """The package that a function, or the class of a callable object, was written in."""
    while isinstance(function, partial):
        function = function.func
    home = getattr(function, "__module__", None) or type(function).__module__
    return home.split(".")[0]


def _is_their_own(hook: Any) -> bool:
    return home_of(hook) in _THEIR_OWN
