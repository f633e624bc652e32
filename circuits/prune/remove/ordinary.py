"""An ordinary model of the same class with fewer heads, where the family's config can hold it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from ....interp.pretrained import quiet
from .compare import distance, limit_of, probe_logits
from .cut import Cut


def ordinary_model(
    model: PreTrainedModel, cuts: Sequence[Cut], wanted: Tensor
) -> PreTrainedModel | None:
    """The pruned model, rebuilt from its class and a changed config; None where none holds it.

    The config must survive being written and read, the class built from it must have the pruned
    weights' names and shapes, and its logits must be those wanted.

    Args:
        model: the pruned model.
        cuts: what was cut out of it.
        wanted: `probe_logits` of the masked model.
    """
    if any(not cut.kept for cut in cuts):
        return None
    counts = {(len(cut.kept), len(cut.kv_kept)) for cut in cuts}
    if len(counts) > 1 or not all(cut.even for cut in cuts):
        return None
    (n, n_kv), d = counts.pop(), cuts[0].d_head
    for config in _configs(model.config, n, n_kv, d):
        made = _build(model, config)
        if made is not None and distance(probe_logits(made), wanted) <= limit_of(model.dtype):
            return made
    return None


def _configs(config: Any, n: int, n_kv: int, d_head: int) -> Iterator[Any]:
    """Ways to write fewer heads into a config: with its own width of a head, or with it named."""
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
        except Exception:  # configs refuse numbers in whatever way they like
            continue
        kept = again.get_text_config()
        if all(getattr(kept, key, None) == value for key, value in entries.items()):
            again._attn_implementation = config._attn_implementation
            again._name_or_path = config._name_or_path
            yield again


def _build(model: PreTrainedModel, config: Any) -> PreTrainedModel | None:
    """A model of the same class with this config and the given model's weights, if they fit."""
    weights = model.state_dict()
    try:
        with quiet(), torch.random.fork_rng(devices=[]), torch.device("meta"):
            shapes = {key: value.shape for key, value in type(model)(config).state_dict().items()}
        if shapes != {key: value.shape for key, value in weights.items()}:
            return None
        with quiet(), torch.random.fork_rng(devices=[]), no_init_weights():
            made = type(model)(config)
    except Exception:  # a class may refuse the config in whatever way it likes
        return None
    made.load_state_dict(weights, assign=True)
    made.tie_weights()
    return _like(made, model)


def _like(made: PreTrainedModel, model: PreTrainedModel) -> PreTrainedModel:
    """Give a rebuilt model the device, the modes and the generation settings of another."""
    nn.Module.to(made, model.device)
    for name, weight in made.named_parameters():
        weight.requires_grad_(model.get_parameter(name).requires_grad)
    flags = {name: module.training for name, module in model.named_modules()}
    for name, module in made.named_modules():
        module.training = flags.get(name, model.training)
    settings = getattr(model, "generation_config", None)
    if settings is not None:
        made.generation_config = copy.deepcopy(settings)
    return made
