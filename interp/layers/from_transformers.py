"""Layers of our own from transformers' attention modules: GPT-2, Llama, Gemma 3, DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from ..errors import InputError
from .attention import HookedAttention
from .config import AttentionConfig, Latent, QKNorm, Traits
from .rope import Rope

# Scaled variants whose frequencies change with the length of the input.
_MOVING = ("dynamic", "longrope")


def from_transformers(module: nn.Module, *, rotary: nn.Module | None = None) -> HookedAttention:
    """The layer that `HookedAttention.from_transformers` gives; its docstring says how.

    Args:
        module: the attention module of a GPT-2, Llama, Gemma 3 or DeepSeek-V3 layer.
        rotary: the model's rotary module, or None.

    Raises:
        InputError: as there.

    Example:
        >>> from transformers import LlamaConfig, LlamaModel
        >>> config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16,
        ...     num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
        >>> layer = from_transformers(LlamaModel(config).layers[0].self_attn)
        >>> layer.config.kind, layer.config.d_key, layer.config.rope.theta
        ('GQA', 4, 10000.0)
    """
    kind = type(module)
    read = _READERS.get(f"{kind.__module__}.{kind.__qualname__}")
    if read is None:
        known = ", ".join(sorted(name.rsplit(".", 1)[-1] for name in _READERS))
        raise InputError(
            f"{kind.__name__} is not a known attention module; known are {known}. Pass the module "
            "that holds the projections, for example model.model.layers[0].self_attn."
        )
    config, weights = read(module, rotary)
    return _filled(config, weights)


def _filled(config: AttentionConfig, weights: Mapping[str, Tensor]) -> HookedAttention:
    layer = HookedAttention(config).to(weights["W_O"])
    with torch.no_grad():
        layer.load_state_dict({name: value.detach() for name, value in weights.items()})
    return layer


def _gpt2(module: Any, rotary: nn.Module | None) -> tuple[AttentionConfig, dict[str, Tensor]]:
    if module.is_cross_attention:
        raise InputError(
            "this GPT2Attention is cross-attention; HookedAttention attends to itself."
        )
    if rotary is not None:
        raise InputError("GPT-2 has no rotary positions. Leave rotary out.")
    fused, bias = _matrix(module.c_attn)
    width = module.embed_dim
    weights = _named("qkv.W_", fused.split(width, 1)) | _named("qkv.b_", bias.split(width))
    weights["W_O"], weights["b_O"] = _matrix(module.c_proj)
    config = AttentionConfig(
        d_model=module.embed_dim,
        n_heads=module.num_heads,
        traits=Traits(causal=module.is_causal, scale=float(module.scaling), bias="all"),
    )
    return config, weights


def _llama(module: Any, rotary: nn.Module | None) -> tuple[AttentionConfig, dict[str, Tensor]]:
    weights, biased = _separate(module)
    traits = Traits(
        causal=module.is_causal, scale=float(module.scaling), bias="all" if biased else "none"
    )
    return _plain_config(module, _rope(module.config, rotary, None), traits), weights


def _gemma3(module: Any, rotary: nn.Module | None) -> tuple[AttentionConfig, dict[str, Tensor]]:
    weights, biased = _separate(module)
    weights |= {"qkv.q_gain": module.q_norm.weight, "qkv.k_gain": module.k_norm.weight}
    traits = Traits(  # no softcap: the module holds attn_logit_softcapping and does not use it
        causal=module.is_causal,
        window=module.sliding_window,
        scale=float(module.scaling),
        bias="all" if biased else "none",
        qk_norm=QKNorm(eps=module.q_norm.eps, unit_offset=True),
    )
    rope = _rope(module.config, rotary, module.layer_type)
    return _plain_config(module, rope, traits), weights


def _plain_config(module: Any, rope: Rope, traits: Traits) -> AttentionConfig:
    return AttentionConfig(
        d_model=module.config.hidden_size,
        n_heads=module.config.num_attention_heads,
        n_kv_heads=module.config.num_key_value_heads,
        d_head=module.head_dim,
        rope=rope,
        traits=traits,
    )


def _separate(module: Any) -> tuple[dict[str, Tensor], bool]:
    """Weights of a module with q_proj, k_proj, v_proj and o_proj, and whether they have biases."""
    pairs = [_linear(getattr(module, f"{name}_proj")) for name in "qkvo"]
    names = ("qkv.{}_Q", "qkv.{}_K", "qkv.{}_V", "{}_O")
    weights = {name.format("W"): w for name, (w, _) in zip(names, pairs, strict=True)}
    biases = {n.format("b"): b for n, (_, b) in zip(names, pairs, strict=True) if b is not None}
    return weights | biases, bool(biases)


def _deepseek(module: Any, rotary: nn.Module | None) -> tuple[AttentionConfig, dict[str, Tensor]]:
    latent = Latent(
        d_latent=module.kv_lora_rank,
        d_rope=module.qk_rope_head_dim,
        d_nope=module.qk_nope_head_dim,
        d_value=module.v_head_dim,
        q_rank=module.q_lora_rank,
        norm_eps=module.kv_a_layernorm.variance_epsilon,
    )
    down, b_down = _linear(module.kv_a_proj_with_mqa)
    weights = _deepseek_queries(module, biased=b_down is not None)
    weights["qkv.W_DKV"], rope_key = down.split([latent.d_latent, latent.d_rope], 1)
    weights["qkv.W_KR"] = _halves(module, rope_key)
    up = _linear(module.kv_b_proj)[0].unflatten(1, (module.num_heads, -1))
    weights["qkv.W_UK"] = up[:, :, : latent.d_nope].flatten(1)
    weights["qkv.W_UV"] = up[:, :, latent.d_nope :].flatten(1)
    weights["qkv.kv_gain"] = module.kv_a_layernorm.weight
    weights["W_O"], b_out = _linear(module.o_proj)
    if b_down is not None and b_out is not None:
        weights["qkv.b_DKV"], rope_bias = b_down.split([latent.d_latent, latent.d_rope])
        weights["qkv.b_KR"], weights["b_O"] = _halves(module, rope_bias), b_out
    config = AttentionConfig(
        d_model=module.hidden_size,
        n_heads=module.num_heads,
        latent=latent,
        rope=_rope(module.config, rotary, None),
        traits=Traits(
            causal=module.is_causal,
            scale=float(module.scaling),
            bias="none" if b_down is None else "all",
        ),
    )
    return config, weights


def _deepseek_queries(module: Any, *, biased: bool) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    if module.q_lora_rank is None:
        up, _ = _linear(module.q_proj)
        if biased:  # the module gives its other input projections a bias, this one never
            weights["qkv.b_Q"] = up.new_zeros(up.shape[1])
    else:
        weights["qkv.W_DQ"], b_down = _linear(module.q_a_proj)
        if b_down is not None:
            weights["qkv.b_DQ"] = b_down
        weights["qkv.q_gain"] = module.q_a_layernorm.weight
        up, _ = _linear(module.q_b_proj)
    heads = up.unflatten(1, (module.num_heads, -1))
    nope, rope = heads.split([module.qk_nope_head_dim, module.qk_rope_head_dim], -1)
    weights["qkv.W_Q"] = torch.cat([nope, _halves(module, rope)], -1).flatten(1)
    return weights


def _halves(module: Any, x: Tensor) -> Tensor:
    """Interleaved pairs (0, 1), (2, 3), … of the last axis as two halves: 0, 2, … and 1, 3, … ."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], -1) if module.config.rope_interleave else x


def _matrix(projection: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight [in, out] and bias of a Conv1D."""
    if type(projection) is not Conv1D:
        raise _not_plain(projection)
    return projection.weight, projection.bias


def _linear(projection: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight as [in, out], and bias or None, of a Linear."""
    if type(projection) is not nn.Linear or not projection.weight.is_floating_point():
        raise _not_plain(projection)
    return projection.weight.T, projection.bias


def _not_plain(projection: nn.Module) -> InputError:
    return InputError(
        f"a projection is a {type(projection).__name__}, whose weight is not plainly a matrix. "
        "Merge adapters or dequantise first."
    )


def _named(prefix: str, tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return dict(zip((f"{prefix}{letter}" for letter in "QKV"), tensors, strict=True))


def _rope(config: Any, rotary: nn.Module | None, layer_type: str | None) -> Rope:
    """The rotations of a layer: those of the rotary module, or what the config says."""
    parameters = config.rope_parameters
    if layer_type is not None:
        parameters = parameters[layer_type]
    kind = parameters["rope_type"]
    if kind in _MOVING:
        raise InputError(
            f"{kind!r} rotary positions change their frequencies with the input's length, which a "
            "layer of fixed frequencies cannot follow."
        )
    if rotary is not None:
        return _from_rotary(rotary, layer_type)
    rope = Rope(theta=float(parameters["rope_theta"]))
    if kind == "default":
        return rope
    options = {} if layer_type is None else {"layer_type": layer_type}
    inv_freq, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), **options)
    return replace(rope, inv_freq=tuple(inv_freq.tolist()), attention_factor=float(factor))


def _from_rotary(rotary: Any, layer_type: str | None) -> Rope:
    prefix = "" if layer_type is None else f"{layer_type}_"
    inv_freq = getattr(rotary, f"{prefix}inv_freq", None)
    factor = getattr(rotary, f"{prefix}attention_scaling", None)
    if not isinstance(inv_freq, Tensor) or factor is None:
        raise InputError(
            f"{type(rotary).__name__} holds no {prefix}inv_freq and {prefix}attention_scaling. "
            "Pass the model's rotary module, for example model.model.rotary_emb."
        )
    return Rope(inv_freq=tuple(inv_freq.float().tolist()), attention_factor=float(factor))


_Reader = Callable[[Any, nn.Module | None], tuple[AttentionConfig, dict[str, Tensor]]]
_MODELS = "transformers.models"
_READERS: dict[str, _Reader] = {
    f"{_MODELS}.gpt2.modeling_gpt2.GPT2Attention": _gpt2,
    f"{_MODELS}.llama.modeling_llama.LlamaAttention": _llama,
    f"{_MODELS}.gemma3.modeling_gemma3.Gemma3Attention": _gemma3,
    f"{_MODELS}.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention": _deepseek,
}
