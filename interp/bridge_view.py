"""The modules of a model that a bridge was given, put together again beside the bridge's."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import MethodType
from typing import Any
from weakref import ReferenceType, ref

from torch import nn
from transformers import PreTrainedModel

from .bridge_hooks import home_of
from .errors import InputError
from .sites import is_of_bridge

# where a module keeps hooks
HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_hooks",
    "_backward_pre_hooks",
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A module that a bridge replaced, or left in its place, and what stands for it in the view.

    Attributes:
        own: the module.
        outer: the bridge's component in its place, or the module itself.
        twin: the view's.
    """

    own: ReferenceType[nn.Module]
    outer: ReferenceType[nn.Module]
    twin: nn.Module


@dataclass(frozen=True)
class View:
    """A model as it was before a bridge got it.

    Attributes:
        model: its modules, which share their weights with the bridge.
        pairs: which of them stands for which of the bridge's.
        shape: what it was made from (`shape_of`).
        checked: the weights with which it was last compared with the bridge.
    """

    model: PreTrainedModel
    pairs: tuple[Pair, ...]
    shape: int
    checked: int | None = None


def make_view(inner: PreTrainedModel, shape: int) -> View:
    """Put the tree together, in eval mode."""
    twins: dict[int, nn.Module] = {}
    pairs: list[Pair] = []
    configs: dict[int, Any] = {}  # one memory, so that what is shared stays shared

    def twin_of(outer: nn.Module) -> nn.Module:
        own = _replaced(outer)
        if id(own) not in twins:
            twins[id(own)] = twin = _bare_copy(own, configs)
            pairs.append(Pair(ref(own), ref(outer), twin))
            for name, child in own._modules.items():
                twin._modules[name] = None if child is None else twin_of(child)
        return twins[id(own)]

    model = twin_of(inner)
    assert isinstance(model, PreTrainedModel)
    return View(model.eval(), tuple(pairs), shape)


def _replaced(part: nn.Module) -> nn.Module:
    """The module that a component stands for; any other module itself."""
    while is_of_bridge(part):
        own = part._modules.get("_original_component")
        if own is None:
            raise InputError(
                f"{type(part).__name__} of this TransformerBridge stands for no module of the "
                "transformers model, so it cannot be read without the bridge. Pass the plain model."
            )
        part = own
    return part


def _bare_copy(own: nn.Module, configs: dict[int, Any]) -> nn.Module:
    """A module with the same weights, and with hooks, children and config of its own."""
    if "_hf_hook" in own.__dict__:
        raise InputError(
            "the model inside the TransformerBridge is spread over devices by accelerate, which "
            "moves its weights behind the bridge. Load it on one device, or pass the plain model."
        )
    twin = copy.copy(own)
    twin._modules = {}
    for name in HOOKS:
        twin.__dict__[name] = type(own.__dict__[name])()
    # transformers' own, for attentions and hidden states, come back when they are asked for
    twin.__dict__.pop("_output_capturing_hooks_installed", None)
    for name, value in own.__dict__.items():
        if isinstance(value, MethodType) and value.__self__ is own:
            twin.__dict__[name] = MethodType(value.__func__, twin)
    if home_of(own.__dict__.get("forward")) == "transformer_lens":
        del twin.__dict__["forward"]
    config = own.__dict__.get("config")
    if hasattr(config, "_attn_implementation_internal"):
        twin.__dict__["config"] = copy.deepcopy(config, configs)
    bias = own._buffers.get("bias")
    if isinstance(own, nn.Linear) and bias is not None and not bool(bias.any()):
        # the bridge gives an unembedding without bias one of zeros
        twin._parameters = {**own._parameters, "bias": None}
        twin._buffers = {name: one for name, one in own._buffers.items() if name != "bias"}
    return twin


def shape_of(inner: PreTrainedModel) -> int:
    """What a view depends on: modules, which tensors their weights are, and what the config says.

    Buffers are left out: some are made anew as the model runs, and the view shares their table.
    """
    found: list[Any] = [repr(inner.config.__dict__)]
    for module in inner.modules():
        found.append(id(module))
        found += [(name, id(weight)) for name, weight in module._parameters.items()]
        found += [(name, id(child)) for name, child in module._modules.items()]
    return hash(tuple(found))
