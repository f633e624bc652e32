"""Attention layers of our own: MHA, MQA, GQA and MLA, written to be read and to be hooked.

    from headatlas.interp.layers.attention import HookedAttention
    from headatlas.interp.layers.config import AttentionConfig, Latent, QKNorm, Traits
    from headatlas.interp.layers.rope import Rope
    from headatlas.interp.layers.hooks import attach_layers
    from headatlas.interp.layers.scale import diagnose_scales, scale_diagnostic

`HookedAttention.from_transformers` loads the attention modules of GPT-2, Llama, Gemma 3 and
DeepSeek-V3; `HookedAttention.decode` works with the caches of `kv_cache`.
"""
