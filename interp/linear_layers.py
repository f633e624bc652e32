"""Layers without softmax attention: what a config calls linear attention, checked by a run.

Hybrids have few layers of softmax attention among many that carry a state along the sequence. Some
call those attention as well. Nothing is taken for one of them by its name: the config must say so
of the layer, and no softmax may run in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from .frames import unobserved
from .watch import watch_modules

_LINEAR = "linear_attention"
# what attention is made of below torch's Python: every fused kernel has one of these in its name
_SOFTMAX = ("softmax", "attention", "logsumexp")


def linear_layers(
    model: PreTrainedModel, names: Sequence[str], run: Callable[[], Any]
) -> frozenset[str]:
    """Those of some modules that their config calls linear attention and that take no softmax.

    Args:
        model: the model.
        names: of modules that look like attention but showed none.
        run: runs the model once.

    Returns:
        The modules of layers whose config says `linear_attention` and in which no softmax ran.
    """
    said = [name for name in names if _is_said_linear(model, name)]
    if not said:
        return frozenset()
    modules = {model.get_submodule(name): name for name in said}
    seen = _Softmaxes(modules)
    with unobserved(model), watch_modules(modules, seen.end, begin=seen.begin), seen:
        run()
    return seen.ran - seen.found


def _is_said_linear(model: PreTrainedModel, name: str) -> bool:
    """Whether the config calls the layer of a module linear attention."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    return len(numbers) == 1 and numbers[0] < len(kinds) and kinds[numbers[0]] == _LINEAR


class _Softmaxes(TorchDispatchMode):
    """In which modules a softmax runs, however it was called."""

    def __init__(self, modules: dict[nn.Module, str]) -> None:
        super().__init__()
        self.modules = modules
        self.inside: list[str] = []
        self.ran: frozenset[str] = frozenset()
        self.found: frozenset[str] = frozenset()

    def begin(self, module: nn.Module) -> None:
        self.inside.append(self.modules[module])
        self.ran |= {self.modules[module]}

    def end(self, module: nn.Module, *_: Any) -> None:
        self.inside.remove(self.modules[module])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.inside and any(part in str(func) for part in _SOFTMAX):
            self.found |= {*self.inside}
        return func(*args, **(kwargs or {}))
