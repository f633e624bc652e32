"""Make the parts of a model smaller, and tell its attention modules how many heads they have."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.falcon.modeling_falcon import FalconAttention
from transformers.pytorch_utils import Conv1D

from ....interp.errors import InputError
from .cut import Cut
from .modules import (
    NAME,
    CutFalconAttention,
    LayerConfig,
    NoHeads,
    NoHeadsButBias,
    Wiring,
    register,
)

# What attention modules call their numbers of heads and what hangs on them. A number that a module
# uses under another name shows when its logits are compared with the masked model's.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads")
_WIDTHS = ("all_head_size", "inner_dim", "split_size")


def keep_outputs(projection: Any, kept: Tensor) -> None:
    """Keep some outputs of a Linear or Conv1D, in order."""
    axis = 0 if isinstance(projection, nn.Linear) else 1
    _set(projection, "weight", _chosen(projection.weight, kept, axis))
    if projection.bias is not None:
        _set(projection, "bias", _chosen(projection.bias, kept, 0))
    _count_features(projection)


def keep_inputs(projection: Any, kept: Tensor) -> None:
    """Keep some inputs of a Linear or Conv1D, in order."""
    axis = 1 if isinstance(projection, nn.Linear) else 0
    _set(projection, "weight", _chosen(projection.weight, kept, axis))
    _count_features(projection)


def keep_rows(model: nn.Module, name: str, kept: Tensor) -> None:
    """Keep some rows of a parameter or buffer, by its full name."""
    path, _, key = name.rpartition(".")
    owner = model.get_submodule(path)
    value = getattr(owner, key)
    if isinstance(value, nn.Parameter):
        _set(owner, key, _chosen(value, kept, 0))
    else:
        owner._buffers[key] = value[kept.to(value.device)]


def _chosen(weight: Any, kept: Tensor, axis: int) -> Tensor:
    return weight.detach().index_select(axis, kept.to(weight.device))


def _set(module: Any, key: str, value: Tensor) -> None:
    grad = getattr(module, key).requires_grad
    setattr(module, key, nn.Parameter(value.contiguous(), requires_grad=grad))


def _count_features(projection: Any) -> None:
    if isinstance(projection, Conv1D):
        projection.nx, projection.nf = projection.weight.shape
    else:
        projection.out_features, projection.in_features = projection.weight.shape


def restructure(model: PreTrainedModel, cuts: Sequence[Cut]) -> None:
    """Make the attention modules work with the heads that stay; projections are cut already.

    Raises:
        InputError: a layer loses all its heads and keeps its projections elsewhere.
    """
    register()
    tables = dict(_bias_tables(model, cuts))
    for module, heads in {id(owner): (owner, heads) for owner, heads in tables.values()}.values():
        kept = torch.tensor(heads, dtype=torch.int64)
        table = module.relative_attention_bias
        _set(table, "weight", _chosen(table.weight, kept, 1))
        table.embedding_dim = len(heads)
    for cut in cuts:
        heads = tables[cut.module][1] if cut.module in tables else None
        module = model.get_submodule(cut.module)
        if cut.whole and not _hands_bias_on(module):
            continue
        if cut.kept:
            _fit(module, cut, heads)
        else:
            _empty(model, cut)


def _bias_tables(
    model: nn.Module, cuts: Sequence[Cut]
) -> Iterator[tuple[str, tuple[Any, tuple[int, ...]]]]:
    """Modules that use a table of position biases -> who holds it, and the heads it then covers.

    In T5 the first self-attention of a stack has a table, whose biases the others are handed.
    """
    for stack in {cut.stack for cut in cuts} - {"cross"}:
        mine = [(cut, model.get_submodule(cut.module)) for cut in cuts if cut.stack == stack]
        owner: Any = None
        users: dict[str, Any] = {}
        for cut, module in mine:
            if getattr(module, "has_relative_attention_bias", False):
                owner = module
            if owner is not None:
                users[cut.module] = owner
        for cut, _ in mine:
            if cut.module not in users:
                continue
            owner = users[cut.module]
            sharing = [other.kept for other, _ in mine if users.get(other.module) is owner]
            yield cut.module, (owner, tuple(sorted(set().union(*sharing))))


def _fit(module: Any, cut: Cut, table: tuple[int, ...] | None) -> None:
    """Set a module's numbers of heads, and its wiring where plain numbers do not say enough."""
    for key, (before, after) in _numbers(module, cut).items():
        if module.__dict__.get(key) == before:
            setattr(module, key, after)
    if _hands_bias_on(module):
        # without a table it makes a bias of zeros for n_heads heads; one row does for all
        module.n_heads = 1 if table is None else len(table)
    moved = table is not None and table != cut.kept
    bias = tuple(table.index(head) for head in cut.kept) if table is not None and moved else None
    wiring = Wiring(None if cut.even else cut.kv_of, bias)
    own: dict[str, Any] = {
        "num_attention_heads": len(cut.kept),
        "num_key_value_heads": len(cut.kv_kept),
    }
    config = getattr(module, "config", None)
    own = {key: value for key, value in own.items() if hasattr(config, key)}
    if isinstance(module, FalconAttention):
        module.__class__ = CutFalconAttention
        module.__dict__["wiring"] = Wiring(wiring.kv_of, cut.kept)
    elif wiring != Wiring():
        own["_attn_implementation"] = NAME
        module.wiring = wiring
    if config is not None:
        module.__dict__["config"] = LayerConfig(config, own)


def _numbers(module: nn.Module, cut: Cut) -> dict[str, tuple[int, int]]:
    """What a module's numbers may be called, before and after the cut."""
    n, n_kv, d = len(cut.kept), len(cut.kv_kept), cut.d_head
    groups = cut.n_heads // cut.n_kv_heads, n // n_kv if cut.even else 1
    widths = (*_WIDTHS, "embed_dim") if hasattr(module, "kv_dim") else _WIDTHS
    return {
        **dict.fromkeys(_HEADS, (cut.n_heads, n)),
        **dict.fromkeys(_KV_HEADS, (cut.n_kv_heads, n_kv)),
        **dict.fromkeys(widths, (cut.n_heads * d, n * d)),
        "kv_dim": (cut.n_kv_heads * d, n_kv * d),
        "num_key_value_groups": groups,
    }


def _hands_bias_on(module: nn.Module) -> bool:
    """Whether the position biases it makes are used by later layers too, as in T5."""
    takes = inspect.signature(module.forward).parameters
    return hasattr(module, "has_relative_attention_bias") and "position_bias" in takes


def _empty(model: nn.Module, cut: Cut) -> None:
    """Put `NoHeads` in the place of a module that keeps no head."""
    path, _, key = cut.module.rpartition(".")
    module: Any = model.get_submodule(cut.module)
    outside = [name for name in cut.projections if not name.startswith(f"{cut.module}.")]
    inside = cut.output.removeprefix(f"{cut.module}.")
    if outside or (inside != cut.output and "." in inside):
        raise InputError(
            f"all heads of {cut.module} go, but it has its projections elsewhere "
            f"({(outside or [cut.output])[0]}), which is not supported. Keep one of its heads."
        )
    bias, width = None, 0
    if inside != cut.output:
        output = module.get_submodule(inside)
        bias, width = output.bias, output.weight.shape[0 if isinstance(output, nn.Linear) else 1]
    left = bias, width, cut.returns, getattr(module, "layer_idx", None)
    empty = NoHeads(*left)
    if _hands_bias_on(module):
        for name in {inside, *(one.removeprefix(f"{cut.module}.") for one in cut.projections)}:
            delattr(module, name)
        empty = NoHeadsButBias(module, *left)
    setattr(model.get_submodule(path), key, empty.train(module.training))


def resize(model: nn.Module, cut: Cut) -> None:
    """Give the parts of a module the sizes a cut names, whatever their numbers.

    Raises:
        InputError: a part is missing, of another kind, or smaller than that.
    """
    parts: dict[str, tuple[int, Any]] = {
        **{name: (size, keep_outputs) for name, size in cut.projections.items()},
        cut.output: (len(cut.kept) * cut.d_value, keep_inputs),
    }
    modules: Mapping[str, Any] = dict(model.named_modules())
    for name, (size, keep) in parts.items():
        part = modules.get(name)
        if not isinstance(part, nn.Linear | Conv1D):
            raise InputError(f"the model has no projection {name!r:.80}. Save it again.")
        if size or keep is keep_inputs:  # the others go with their module
            keep(part, _first(size, part.weight.shape, name))
    for name, size in cut.rows.items():
        path, _, key = name.rpartition(".")
        value = getattr(modules.get(path), key, None)
        if not isinstance(value, Tensor):
            raise InputError(f"the model has no weight {name!r:.80}. Save it again.")
        keep_rows(model, name, _first(size, value.shape[:1], name))


def _first(size: int, shape: Sequence[int], name: str) -> Tensor:
    if size > max(shape, default=0):
        raise InputError(f"{name!r:.80} has {tuple(shape)} weights, but {size} shall stay.")
    return torch.arange(size)
