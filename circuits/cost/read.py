"""The attention shapes of a model, from its weights or from its config alone.

No family is known by name. Heads come from the hooked model, or from the config's standard
entries; the projections' sizes must then be exactly those of MHA, GQA, MQA or MLA with these heads,
or the model is refused.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ...interp.checkpoint import check_counts
from ...interp.config_only import load_config, skeleton
from ...interp.errors import InputError
from ...interp.intervention_layers import holds_layers
from ...interp.layers.attention import HookedAttention
from ...interp.layers.config import AttentionConfig
from ...interp.pretrained import PRUNED_FILE
from ...interp.sites import Site, attention_sites, unbridged
from ..prune.remove.pruned_file import read_pruned
from ..prune.remove.pruned_shapes import pruned_shapes
from ..prune.remove.pruning import is_pruned_config, pruning_of
from .fit import INSTEAD, Heads, fit_layer
from .shapes import AttentionShapes, LatentShape, LayerShape, check_count, uniform_shapes

_FULL = frozenset({"full_attention", "attention"})
_NONE = frozenset({"linear_attention", "mamba", "conv", "moe", "mlp"})


def attention_shapes(
    source: str | os.PathLike[str] | nn.Module | PreTrainedConfig,
) -> AttentionShapes:
    """The shapes of a model's attention layers.

    Of a loaded model, heads are what `attention_sites` sees and widths those of its weights. Of a
    config, or a name, of which only the config is read, the model's skeleton is built without
    memory for weights. Windows come from the config in all cases. Where heads were cut out and the
    config still is the whole model's, the cuts say what each layer keeps: they come with the model,
    or from pruned.json in its folder.

    Args:
        source: a loaded transformers model; a `HookedAttention`, or a module that holds some,
            whose configs say all; a transformers config; or `"tiny"`, `"smollm2-135m"`, the path of
            a `.gguf` file or of a folder with config.json, or a hub id.

    Raises:
        InputError: none of these, no such model, no attention, an encoder-decoder pair, attention
            whose projections are not those of MHA, GQA, MQA or MLA, or the mere config of a pruned
            model, which does not say what its layers keep.

    Example:
        >>> layer = attention_shapes("tiny").layers[0]
        >>> layer.d_model, layer.n_heads, layer.kind
        (128, 8, 'GQA')
    """
    if isinstance(source, nn.Module):
        return _of_layers(source) if holds_layers(source) else _of_model(source)
    if isinstance(source, PreTrainedConfig):
        return config_shapes(source)
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            "attention is counted of a loaded transformers model, a transformers config, a model's "
            f"name or path, or (by cost) AttentionShapes; got {type(source).__name__}."
        )
    if os.fspath(source) == "smollm2-135m":  # known, so that nothing need be fetched
        return uniform_shapes(
            30, d_model=576, n_heads=9, n_kv_heads=3, d_head=64, name="smollm2-135m"
        )
    config, name = load_config(source), os.fspath(source)
    record = Path(name).expanduser() / PRUNED_FILE
    if name != "tiny" and record.exists():
        return pruned_shapes(_whole_shapes(config, name), read_pruned(record)[1])
    return config_shapes(config, name=name)


def config_shapes(config: Any, *, name: str | None = None) -> AttentionShapes:
    """The shapes of the attention layers that a transformers config describes.

    Args:
        config: a transformers config of a model that reads text.
        name: how tables and errors call it.

    Raises:
        InputError: as `attention_shapes`.

    Example:
        >>> from transformers import MistralConfig
        >>> layer = config_shapes(MistralConfig(num_hidden_layers=1)).layers[0]
        >>> layer.n_heads, layer.n_kv_heads, layer.window
        (32, 8, 4096)
    """
    label = name or config.name_or_path or type(config).__name__
    if is_pruned_config(config):
        raise InputError(
            f"this config of {label} says what the model was before heads were cut out of it. Pass "
            "the pruned model itself, or the folder that save_pruned wrote."
        )
    return _whole_shapes(config, label)


def removed_shapes(model: PreTrainedModel) -> AttentionShapes | None:
    """The shapes of a model whose layers keep fewer heads than its config says; None of any other.

    Raises:
        InputError: as `attention_shapes`.
    """
    pruning = pruning_of(model)
    if pruning is None or pruning.ordinary:
        return None
    name = model.config.name_or_path or type(model).__name__
    return pruned_shapes(_whole_shapes(model.config, name), pruning.cuts)


def _whole_shapes(config: Any, label: str) -> AttentionShapes:
    """What a config says, whether or not heads were cut out of its model."""
    if getattr(config, "is_encoder_decoder", False):
        raise _two_stacks(label)
    check_counts(config.to_dict(), 0, label)
    config = copy.deepcopy(config.get_text_config())  # building a model writes into its config
    _check_config(config, label)
    model = skeleton(config, label)
    found = list(_attention_modules(model))
    if not found:
        raise InputError(f"no attention layers can be seen in {label}. {INSTEAD}")
    windows = _windows(config, len(found), label)
    layers = [
        fit_layer(module, _configured_heads(config, module, label), window, label)
        for module, window in zip(found, windows, strict=True)
    ]
    return AttentionShapes(tuple(layers), label)


def _of_model(model: nn.Module) -> AttentionShapes:
    model = unbridged(model)
    if isinstance(model, PreTrainedModel) and (found := removed_shapes(model)) is not None:
        return found
    sites = attention_sites(model)  # which refuses all but transformers' own
    config = cast(PreTrainedModel, model).config.get_text_config()
    name = config.name_or_path or type(model).__name__
    _check_config(config, name)
    if any(site.stack for site in sites):
        raise _two_stacks(name)
    windows = _windows(config, len(sites), name)
    outer = {label: module for label, module in model.named_modules() if _is_attention(module)}
    layers = []
    for site, window in zip(sites, windows, strict=True):
        label = next((one for one in outer if _holds(one, site.module)), site.module)
        module = outer.get(label, model.get_submodule(site.module))
        layers.append(fit_layer(module, _seen_heads(site), window, name))
    return AttentionShapes(tuple(layers), name)


def _of_layers(model: nn.Module) -> AttentionShapes:
    configs = [part.config for part in model.modules() if isinstance(part, HookedAttention)]
    return AttentionShapes(tuple(map(_of_config, configs)), type(model).__name__)


def _of_config(config: AttentionConfig) -> LayerShape:
    latent = config.latent
    if latent is not None:
        latent = LatentShape(latent.d_latent, latent.d_rope, latent.q_rank)
    return LayerShape(
        d_model=config.d_model, n_heads=config.n_heads, n_kv_heads=config.kv_heads,
        d_head=config.d_key, d_value=config.d_value, window=config.traits.window,
        causal=config.traits.causal, latent=latent,
    )  # fmt: skip


def _holds(outer: str, inner: str) -> bool:
    return f"{inner}.".startswith(f"{outer}.")


def _seen_heads(site: Site) -> Heads:
    return Heads(site.n_heads, (site.n_kv_heads,), site.d_head, site.d_value, site.causal)


def _configured_heads(config: Any, module: nn.Module, name: str) -> Heads:
    """Heads by the entries that transformers gives the same names in every config."""

    def entry(key: str) -> int:
        value = getattr(config, key, None)
        check_count(f"{key} of {name}", value)
        return value  # type: ignore[return-value]  # a whole number by now

    h = entry("num_attention_heads")
    if getattr(config, "kv_lora_rank", None) is not None:
        d_head, d_value = entry("qk_nope_head_dim") + entry("qk_rope_head_dim"), entry("v_head_dim")
    else:
        own = getattr(config, "head_dim", None) is not None
        d_head = d_value = entry("head_dim") if own else entry("hidden_size") // h
    groups = [getattr(config, key, None) for key in ("num_key_value_heads", "num_kv_heads")]
    likely = [g for g in groups if type(g) is int and 0 < g <= h and h % g == 0]
    divisors = [g for g in range(1, h + 1) if h % g == 0]  # the weights decide
    return Heads(
        h, tuple(dict.fromkeys(likely + divisors)), d_head, d_value, _causal(module, config)
    )


def _causal(module: nn.Module, config: Any) -> bool:
    """Whether an attention module says that it is causal, or else its kind of model does."""
    import transformers as hf

    for part in module.modules():
        said = getattr(part, "is_causal", None)
        if isinstance(said, bool):
            return said
    kind = type(config)
    return kind in hf.MODEL_FOR_CAUSAL_LM_MAPPING and kind not in hf.MODEL_FOR_MASKED_LM_MAPPING


def _windows(config: Any, n_layers: int, name: str) -> list[int | None]:
    """Each attention layer's window, as the config says it."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not isinstance(kinds, list | tuple):
        check_count(f"num_hidden_layers of {name}", config.num_hidden_layers)
        kind = "full_attention" if window is None else "sliding_attention"
        kinds = [kind] * config.num_hidden_layers
    kinds = [kind for kind in map(str, kinds) if kind not in _NONE]
    odd = [kind for kind in kinds if kind not in _FULL and kind != "sliding_attention"]
    ways = getattr(config, "attention_layers", None)  # GPT-Neo's own entry
    local = isinstance(ways, list | tuple) and "local" in ways
    if odd or local:
        what = odd[0] if odd else "local attention"
        raise InputError(
            f"{name} has layers of {what[:60]!r}, which are not counted here. {INSTEAD}"
        )
    if "sliding_attention" in kinds:
        check_count(f"sliding_window of {name}", window)
    if len(kinds) != n_layers:  # layers of another kind, or weights that several layers share
        raise InputError(
            f"the config of {name} lists {len(kinds)} attention layers; {n_layers} are there. "
            f"{INSTEAD}"
        )
    return [None if kind in _FULL else window for kind in kinds]


def _check_config(config: Any, name: str) -> None:
    """Refuse what the sizes of projections would not show."""
    if any(getattr(config, key, None) for key in ("num_kv_shared_layers", "kv_sharing_modes")):
        raise InputError(f"layers of {name} share keys and values, not counted here. {INSTEAD}")
    if getattr(config, "relative_attention", False):  # DeBERTa's scores are sums of products
        raise InputError(f"{name} scores by relative positions, not counted here. {INSTEAD}")


def _two_stacks(name: str) -> InputError:
    return InputError(
        f"{name} is an encoder-decoder pair, whose cross-attention is not counted here. "
        f"Pass one loaded stack, such as model.get_encoder(), or give its numbers."
    )


def _is_attention(module: nn.Module) -> bool:
    label = type(module).__name__.lower()
    return ("attention" in label or "attn" in label) and any(
        isinstance(part, nn.Linear | Conv1D) for part in module.modules()
    )


def _attention_modules(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules called attention that hold projections, in order."""
    inside: str | None = None
    for label, module in model.named_modules():
        if inside is not None and _holds(inside, label):
            continue
        if label and _is_attention(module):
            inside = label
            yield module
