"""Tiny random models of transformers' language models, with configs shrunk by the names of options.

The families are those of three of transformers' auto classes: causal, masked and
sequence-to-sequence language models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers import AutoModelForSeq2SeqLM as AutoModelForSeq2Seq
from transformers.models.auto import modeling_auto

from ..conftest import FAMILIES, build_tiny

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
# what a family asks for that no other does
_OWN: dict[str, dict[str, Any]] = {
    "bailing_hybrid": _LATENT,
    "bamba": {"attn_layer_indices": [1]},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "kimi_linear": _LATENT,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"head_dim": 4, "qk_head_dim": 12, "num_key_value_heads": _HEADS},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8},
    "perceiver": {"num_latents": 8, "d_latents": _WIDTH, "num_self_attends_per_block": 2},
    "qwen4_exp_text": {"layer_types": ["linear_attention", "indexed_attention"]},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 16]},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"], "hybrid_layer_ids": [1],
        "attention_head_dim": 16, "n_mamba_heads": 8, "mamba_headdim": 8,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
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


def small_config(family: str, changes: dict[str, Any]) -> Any:
    """The family's config with small numbers in the place of its own."""
    own = AutoConfig.for_model(family).to_dict()
    return AutoConfig.for_model(
        family, **_shrunk(own, {**_SMALL, **changes, **_OWN.get(family, {})})
    )


def _shrunk(own: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """Of the small numbers those that a config has, its inner configs included."""
    options = {name: small[name] for name in own if small.get(name) is not None}
    for name, inner in own.items():
        if isinstance(inner, dict) and "model_type" in inner:
            options[name] = {"model_type": inner["model_type"], **_shrunk(inner, small)}
    return options


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
            ids = torch.randint(3, 97, (2, 12))
            more = {"decoder_input_ids": ids} if sort == "encoder-decoder" else {}
            with torch.no_grad():
                model(input_ids=ids, **more)
            return model
        except Exception as failed:  # whatever a config that was not made for this can raise
            if model is not None:
                why, error = NO_FORWARD, failed
            elif why != NO_FORWARD:
                why, error = NO_LIBRARY if isinstance(failed, ImportError) else NO_CONFIG, failed
    raise NotBuiltError(why) from error


def _built(family: str, sort: str, changes: dict[str, Any]) -> Any:
    auto, config = SORTS[sort][0], small_config(family, changes)
    with torch.device("meta"):  # a config that did not shrink must not fill the memory
        size = sum(weight.numel() for weight in auto.from_config(config).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters are left")
    torch.manual_seed(0)
    model = auto.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:  # as built, attention is near uniform and some outputs are zero
                weight.add_(0.05 * torch.randn(weight.shape))
    return model
