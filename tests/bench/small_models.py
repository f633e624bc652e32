"""Tiny random models of transformers' language models, with configs shrunk by the names of options.

The families are those of three of transformers' auto classes: causal, masked and
sequence-to-sequence language models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers import AutoModelForSeq2SeqLM as AutoModelForSeq2Seq
from transformers.models.auto import modeling_auto

from ..conftest import FAMILIES, build_tiny
from . import small_signals

# what stops a family before it can be hooked
NO_CONFIG = "no small config was found"
NO_LIBRARY = "it needs a library that is not installed"
NO_FORWARD = "a small model is built, but its forward fails on token ids"
# a family of several sorts counts as the first: the decoder of BART alone is no family of its own
SORTS = {
    "encoder-decoder": (
        AutoModelForSeq2Seq,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    ),
    "encoder": (AutoModelForMaskedLM, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    "decoder": (AutoModelForCausalLM, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    **{
        sort: (AutoModel, dict.fromkeys(names, ""))
        for sort, names in small_signals.FAMILIES.items()
    },
}
_LAYERS, _WIDTH, _HEADS = 2, 32, 4
_MOST_PARAMETERS = 20_000_000
# by the end of the option's name: configs call these things by many names
_SMALL = {
    "vocab_size": 97, "hidden_size": _WIDTH, "d_model": _WIDTH, "n_embd": _WIDTH, "dim": _WIDTH,
    "embedding_size": _WIDTH, "word_embed_proj_dim": _WIDTH, "intermediate_size": 48,
    "ffn_dim": 48, "d_ff": 48, "n_inner": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "num_hidden_layers": _LAYERS, "n_layer": _LAYERS, "n_layers": _LAYERS, "num_layers": _LAYERS,
    "encoder_layers": _LAYERS, "decoder_layers": _LAYERS, "num_decoder_layers": _LAYERS,
    "num_attention_heads": _HEADS, "n_head": _HEADS, "n_heads": _HEADS, "num_heads": _HEADS,
    "encoder_attention_heads": _HEADS, "decoder_attention_heads": _HEADS,
    "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "rotary_dim": 4,
    "max_position_embeddings": 128, "n_positions": 128, "sliding_window": 8,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 6, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 0, "emb_dim": _WIDTH, "n_words": 97,
    "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8, "global_head_dim": 8,
    "num_kv_shared_layers": 0, "entity_vocab_size": 97, "entity_emb_size": _WIDTH,
    "expert_ffn_hidden_size": 16, "ffn_hidden_size": 48, "mamba_d_state": 8, "mamba_n_heads": 8,
    "mamba_d_head": 8, "mamba_n_groups": 1, "num_experts_per_token": 2, "num_expert_group": 1,
}  # fmt: skip
_LATENT = {
    "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"],
    "qk_head_dim": 12, "head_dim": 4, "num_key_value_heads": _HEADS, "linear_num_heads": _HEADS,
    "linear_head_dim": 8,
}  # fmt: skip
_ROPE = {
    name: {"rope_type": "default", "rope_theta": 10_000.0}
    for name in ("sliding_attention", "full_attention")
}
_INDEXED = {
    "layer_types": ["linear_attention", "indexed_attention"], "indexer_n_heads": 2,
    "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4, "indexer_compress_ratio": 2,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "hc_lowrank": 8, "shared_expert_intermediate_size": 16,
}  # fmt: skip
# what a family asks for that no other does
_OWN: dict[str, dict[str, Any]] = {
    "bailing_hybrid": _LATENT,
    "bamba": {"attn_layer_indices": [1]},
    "blt": {  # whose cache asks for a number of layers that its config does not have
        "encoder_hash_byte_group_vocab": 97, "hidden_size_global": _WIDTH, "use_cache": False,
    },
    "cohere_compass_text": {
        "layer_types": [*_ROPE], "rope_parameters": _ROPE, "logit_scale": 1.0,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dory": {"n_input_layers": 1, "n_output_layers": 0},
    "dots3_note": {
        "num_key_value_heads": _HEADS, "adapter_in_dim": _WIDTH, "adapter_out_dim": _WIDTH,
        "adapter_input_size": _WIDTH, "mlp_layer_types": ["dense", "dense"],
    },
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n": {"text_config": {"intermediate_size": [48, 48]}},
    "gemma3n_text": {"intermediate_size": [48, 48]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granite_speech": {"encoder_config": {"hidden_dim": _WIDTH, "output_dim": 8}},
    "granite_speech_plus": {"encoder_config": {"hidden_dim": _WIDTH, "output_dim": 8}},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "kimi_linear": _LATENT,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"head_dim": 4, "qk_head_dim": 12, "num_key_value_heads": _HEADS},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8},
    "musicgen": {"num_codebooks": 1},
    "musicgen_melody": {"num_codebooks": 1},
    "nemo_speechlm": {"audio_hidden_size": _WIDTH, "blank_token_id": 96},
    "perceiver": {"num_latents": 8, "d_latents": _WIDTH, "num_self_attends_per_block": 2},
    "qwen4_exp": _INDEXED,
    "qwen4_exp_text": _INDEXED,
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 16]},
    "vibevoice_asr": {"num_filters": 2, "depths": [1, 1, 1, 1, 1, 1, 1]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4, "mamba_d_state": 8, "attention_head_dim": 16,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"], "hybrid_layer_ids": [1],
        "attention_head_dim": 16, "n_mamba_heads": 8, "mamba_headdim": 8,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
# the class of the family takes an inner config of the family's
_INNER = {"musicgen": "decoder", "musicgen_melody": "decoder"}
# tried in turn, since what one family asks for another refuses
_CHANGES: tuple[dict[str, Any], ...] = (
    {}, {"num_key_value_heads": _HEADS}, {"head_dim": None}, {"head_dim": None, "rotary_dim": None},
    {"num_hidden_layers": 4, "num_key_value_heads": _HEADS, "head_dim": None},
    {"layer_types": ["linear_attention", "full_attention"]},
    {"layer_types": ["sliding_attention", "full_attention"]},
)  # fmt: skip


class NotBuiltError(Exception):
    """No change of the config gives a model that runs; the message is one of the reasons."""


def families() -> Iterator[tuple[str, str]]:
    """Family and sort of every model of the three auto classes that read and write text."""
    seen = set[str]()
    for sort, (_, names) in SORTS.items():
        for family in sorted(names):
            if family not in seen:
                seen.add(family)
                yield family, sort


def of_signals(family: str) -> bool:
    """Whether it is a family that reads images or sounds."""
    return any(family in names for names in small_signals.FAMILIES.values())


def small_config(family: str, changes: dict[str, Any]) -> Any:
    """The family's config with small numbers in the place of its own."""
    own = AutoConfig.for_model(family).to_dict()
    small = {**_SMALL, **(small_signals.SMALL if of_signals(family) else {})}
    config = AutoConfig.for_model(
        family,
        **_shrunk(
            own, {**small, **changes, **_OWN.get(family, {}), **small_signals.OWN.get(family, {})}
        ),
    )
    if family == "dbrx":  # its attention reads a base here, which the config drops on its way
        config.attn_config.rope_theta = 10_000.0
    return config


def _shrunk(own: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """Of the small numbers those that a config has, its inner configs included."""
    options = {name: _fit(small[name], own[name]) for name in own if small.get(name) is not None}
    for name, inner in own.items():
        if isinstance(inner, dict) and "model_type" in inner:
            wanted = small.get(name)
            wanted = {**small, **wanted} if isinstance(wanted, dict) else small
            options[name] = {"model_type": inner["model_type"], **_shrunk(inner, wanted)}
    return options


def _fit(small: Any, own: Any) -> Any:
    """A small number as a config writes it: one per stage, or as a fraction."""
    if isinstance(own, list | tuple) and own and isinstance(small, int | float):
        return [_fit(small, one) for one in own]
    return float(small) if isinstance(own, float) and isinstance(small, int) else small


def small_model(family: str, sort: str) -> Any:
    """A tiny random model that has run once.

    Raises:
        NotBuiltError: no change makes one; the last error is its cause.
    """
    if family in FAMILIES:
        return build_tiny(family, attn="eager")
    why, error = NO_CONFIG, None
    for changes in _CHANGES:
        model = None
        try:
            model = _built(family, sort, changes)
            (small_signals.run if sort in small_signals.FAMILIES else _run_text)(model, sort)
            return model
        except Exception as failed:  # whatever a config that was not made for this can raise
            if model is not None:
                why, error = NO_FORWARD, failed
            elif why != NO_FORWARD:
                why, error = NO_LIBRARY if isinstance(failed, ImportError) else NO_CONFIG, failed
    raise NotBuiltError(why) from error


def _run_text(model: Any, sort: str) -> None:
    ids = torch.randint(3, 97, (2, 12))
    more = {"decoder_input_ids": ids} if sort == "encoder-decoder" else {}
    with torch.no_grad():
        model(input_ids=ids, **more)


def _built(family: str, sort: str, changes: dict[str, Any]) -> Any:
    build, config = SORTS[sort][0].from_config, small_config(family, changes)
    if family in _INNER:
        build = getattr(transformers, SORTS[sort][1][family])._from_config
        config = getattr(config, _INNER[family])
    with torch.device("meta"):  # a config that did not shrink must not fill the memory
        size = sum(weight.numel() for weight in build(config).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters are left")
    torch.manual_seed(0)
    model = build(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:  # as built, attention is near uniform and some outputs are zero
                weight.add_(0.05 * torch.randn(weight.shape))
    return model
