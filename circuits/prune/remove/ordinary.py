"""An ordinary model of the same class with fewer heads, where the family's config can hold it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from ....interp.errors import one_line
from ....interp.pretrained import quiet
from .compare import drift_of
from .cut import Cut


def ordinary_model(
    model: PreTrainedModel, cuts: Sequence[Cut], wanted: Tensor, limit: float
) -> tuple[PreTrainedModel | None, float, str]:
    """The pruned model, rebuilt from its class and a changed config; else None, and why not.

    The config must survive being written and read, the class built from it must have the pruned
    weights' names and shapes, and its logits must be those wanted.

    Args:
        model: the pruned model.
        cuts: what was cut out of it.
        wanted: `probe_logits` of the masked model.
        limit: how far the logits may be from those.

    Returns:
        (model, how far its logits are from those wanted, why there is none).
    """
    unequal = _unequal(cuts)
    if unequal:
        return None, float("nan"), unequal
    n, n_kv, d = len(cuts[0].kept), len(cuts[0].kv_kept), cuts[0].d_head
    refusals: list[str] = []
    for config in _configs(model.config, (n, n_kv, d), refusals):
        made = _build(model, config, refusals)
        if made is not None and (drift := drift_of(made, wanted)) <= limit:
            return made, drift, ""
    kind = type(model.config).__name__
    why = f" ({refusals[0]})" if refusals else ""
    return None, float("nan"), f"{kind} cannot hold {n} heads of {d} in every layer{why}"


def _unequal(cuts: Sequence[Cut]) -> str:
    """Why no config could hold the cuts, whatever its family; empty if one could."""
    if any(not cut.kept for cut in cuts):
        return "a layer keeps no head"
    for what, counts in (
        ("heads", {len(cut.kept) for cut in cuts}),
        ("key-value heads", {len(cut.kv_kept) for cut in cuts}),
    ):
        if len(counts) > 1:
            return (
                f"layers keep from {min(counts)} to {max(counts)} {what}, a config says one number"
            )
    if not all(cut.even for cut in cuts):
        return "key-value heads of a layer serve unequal numbers of query heads"
    return ""


def _configs(config: Any, sizes: tuple[int, int, int], refusals: list[str]) -> Iterator[Any]:
    """Ways to write fewer heads into a config: with its own width of a head, or with it named."""
    n, n_kv, d_head = sizes
    for named in (False, True):
        changed = copy.deepcopy(config)
        text = changed.get_text_config()
        entries = {"num_attention_heads": n, "num_key_value_heads": n_kv}
        entries = {key: value for key, value in entries.items() if hasattr(text, key)}
        if named:
            entries["head_dim"] = d_head
        try:
            for key, value in entries.items():
                setattr(text, key, value)
            again = type(changed).from_dict(changed.to_dict())
        except Exception as error:  # configs refuse numbers in whatever way they like
            refusals.append(one_line(error.__cause__ or error))
            continue
        kept = again.get_text_config()
        if all(getattr(kept, key, None) == value for key, value in entries.items()):
            again._attn_implementation = config._attn_implementation
            again._name_or_path = config._name_or_path
            yield again


def _build(model: PreTrainedModel, config: Any, refusals: list[str]) -> PreTrainedModel | None:
    """A model of the same class with this config and the given model's weights, if they fit."""
    weights = model.state_dict()
    try:
        with quiet(), torch.random.fork_rng(devices=[]), torch.device("meta"):
            shapes = {key: value.shape for key, value in type(model)(config).state_dict().items()}
        if shapes != {key: value.shape for key, value in weights.items()}:
            return None
        with quiet(), torch.random.fork_rng(devices=[]), no_init_weights():
            made = type(model)(config)
    except Exception as error:  # a class may refuse the config in whatever way it likes
        refusals.append(one_line(error))
        return None
    made.load_state_dict(weights, assign=True)
    made.tie_weights()
    return _like(made, model)


def _like(made: PreTrainedModel, model: PreTrainedModel) -> PreTrainedModel:
    """Give a rebuilt model the device, the modes and the generation settings of another."""
    nn.Module.to(made, model.device)
    known = dict(model.named_buffers())
    for name, buffer in made.named_buffers():
        # `model.bfloat16()` rounds what a config computes anew, such as RoPE's frequencies
        if name in known and buffer.is_floating_point():
            path, _, key = name.rpartition(".")
            made.get_submodule(path)._buffers[key] = buffer.to(known[name].dtype)
    for name, weight in made.named_parameters():
        weight.requires_grad_(model.get_parameter(name).requires_grad)
    flags = {name: module.training for name, module in model.named_modules()}
    for name, module in made.named_modules():
        module.training = flags.get(name, model.training)
    settings = getattr(model, "generation_config", None)
    if settings is not None:
        made.generation_config = copy.deepcopy(settings)
    return made
