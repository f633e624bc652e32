"""Tiny random models of families that compute attention in their own code."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from ..conftest import DECODER, SPECIAL, VOCAB, WINDOW

_WIDE = {**SPECIAL, "vocab_size": VOCAB, "hidden_size": 32}
_ENCODER = {**DECODER, "num_key_value_heads": 4}

# family -> config; each has something of its own on the way from scores to z
DECODERS: dict[str, dict[str, Any]] = {
    # one key-value head for all; its implementation is fixed when it is built
    "falcon": {**_WIDE, "num_hidden_layers": 2, "num_attention_heads": 4},
    # ALiBi, products in three axes
    "bloom": {**_WIDE, "n_layer": 2, "n_head": 4},
    # a window, and no scale
    "gpt_neo": {
        **_WIDE,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
        "max_position_embeddings": 128,
    },
    # products in three axes throughout
    "xglm": {**SPECIAL, "vocab_size": VOCAB, "d_model": 32, "num_layers": 2, "attention_heads": 4,
             "ffn_dim": 48, "max_position_embeddings": 128},
    "mpt": {**SPECIAL, "vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4,
            "max_seq_len": 128},
    # hides keys with -10,000
    "openai-gpt": {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4},
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    # disentangled positions
    "deberta-v2": {
        **_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 16,
    },
    # einsum, tokens before the batch
    "xlnet": {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    # its softmax and its products are modules
    "squeezebert": {
        **_ENCODER, "embedding_size": 32,
        **{f"{part}_groups": 2 for part in ("q", "k", "v", "post_attention")},
    },
    "mpnet": _ENCODER,
}  # fmt: skip


def build_inline(
    family: str, *, attn: str | None = None, dtype: torch.dtype = torch.float32, **changes: Any
) -> Any:
    """A random model of the family in eval mode, its weights spread so that heads matter."""
    config = AutoConfig.for_model(family, **{**{**DECODERS, **ENCODERS}[family], **changes})
    auto = AutoModelForCausalLM if family in DECODERS else AutoModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = auto.from_config(config, attn_implementation=attn).to(dtype).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight + 0.15 * torch.randn(weight.shape).to(dtype))
    return model
