"""A tiny Llama's forward pass with attention written out, changed wherever a test says."""

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


def forward(model, ids, changes=None):
    """Logits, and every target of every layer, {(layer, target): [batch, head, row, width]}.

    k and v are repeated for each query head, so that a change of one head is a change of one slice.
    `changes` maps (layer, target) to a function of that tensor.
    """
    changes, seen = changes or {}, {}
    core, config = model.model, model.config
    n_heads = config.num_attention_heads
    group = n_heads // config.num_key_value_heads
    batch, length = ids.shape
    hidden_keys = torch.ones(length, length, dtype=torch.bool).triu(1)

    def at(layer, target, value):
        value = changes.get((layer, target), lambda x: x)(value)
        seen[layer, target] = value
        return value

    with torch.no_grad():
        x = core.embed_tokens(ids)
        cos, sin = core.rotary_emb(x, torch.arange(length)[None])
        for number, layer in enumerate(core.layers):
            attention, normed = layer.self_attn, layer.input_layernorm(x)
            q, k, v = (
                projection(normed).view(batch, length, -1, config.head_dim).transpose(1, 2)
                for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
            q = at(number, "q", q)
            k = at(number, "k", k.repeat_interleave(group, 1))
            v = at(number, "v", v.repeat_interleave(group, 1))
            scores = q @ k.transpose(2, 3) * config.head_dim**-0.5
            scores = at(number, "scores", scores.masked_fill(hidden_keys, float("-inf")))
            pattern = at(number, "pattern", scores.softmax(-1))
            z = at(number, "z", pattern @ v)
            x = x + attention.o_proj(z.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return model.lm_head(core.norm(x)), seen
