"""W_QK and W_OV of tiny models in float64, [d_model, d_model], from their own modules."""

import torch

OFFSET = {"gemma": 1.0}


def head_count(model):
    config = model.config
    return config.num_hidden_layers, config.num_attention_heads


def parts(model, family, layer):
    """Gain, centring matrix, and W_Q, W_K, W_V [d, heads · width], W_O [heads · width, d]."""
    if family == "gpt2":
        block = model.transformer.h[layer]
        norm, (q, k, v) = block.ln_1, block.attn.c_attn.weight.double().chunk(3, 1)
        return norm, True, q, k, v, block.attn.c_proj.weight.double()
    if family == "gpt_neox":
        block = model.gpt_neox.layers[layer]
        heads, d = model.config.num_attention_heads, model.config.hidden_size
        fused = block.attention.query_key_value.weight.double().view(heads, 3, -1, d)
        q, k, v = (fused[:, i].reshape(-1, d).T for i in range(3))
        return block.input_layernorm, True, q, k, v, block.attention.dense.weight.double().T
    block = model.model.layers[layer]
    at = block.self_attn
    q, k, v = (p.weight.double().T for p in (at.q_proj, at.k_proj, at.v_proj))
    return block.input_layernorm, False, q, k, v, at.o_proj.weight.double().T


def rope(model, family, layer, position):
    """R of a row vector at a position, written out from the config."""
    d_head = getattr(model.config, "head_dim", None) or (
        model.config.hidden_size // model.config.num_attention_heads
    )
    turn = torch.eye(d_head, dtype=torch.float64)
    if family == "gpt2" or not position:
        return turn
    parameters = model.config.rope_parameters
    width = int(d_head * parameters.get("partial_rotary_factor", 1.0))
    for m in range(width // 2):
        angle = torch.tensor(position * parameters["rope_theta"] ** (-2 * m / width)).double()
        a, b = m, m + width // 2
        turn[a, a], turn[b, b] = angle.cos(), angle.cos()
        turn[a, b], turn[b, a] = angle.sin(), -angle.sin()
    return turn


@torch.no_grad()
def circuits(model, family, delta=0):
    """(W_QK, W_OV) of each head, in order, [d_model, d_model] each."""
    layers, heads = head_count(model)
    found = []
    for layer in range(layers):
        norm, centred, q, k, v, o = parts(model, family, layer)
        d = q.shape[0]
        fold = torch.diag(norm.weight.double() + OFFSET.get(family, 0.0))
        mean_off = torch.eye(d, dtype=torch.float64) - centred / d
        q, k, v = (mean_off @ fold @ w for w in (q, k, v))
        o = o @ mean_off
        width, turn = q.shape[1] // heads, rope(model, family, layer, delta)
        group = q.shape[1] // k.shape[1]
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            shared = slice(head // group * width, (head // group + 1) * width)
            qk = q[:, own] @ turn @ k[:, shared].T
            found.append((qk, v[:, shared] @ o[own]))
    return found
