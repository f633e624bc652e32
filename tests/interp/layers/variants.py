"""Random layers of every variant, their inputs, and attention written the plain way."""

import torch
from hypothesis import strategies as st

from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig, Latent, QKNorm, Traits
from headatlas.interp.layers.rope import Rope

LATENT = Latent(d_latent=10, d_rope=4, d_nope=6, d_value=5)

VARIANTS = {
    "mha": AttentionConfig(16, 4),
    "mqa": AttentionConfig(16, 4, n_kv_heads=1, rope=Rope()),
    "gqa": AttentionConfig(16, 4, n_kv_heads=2, d_head=6, rope=Rope(d_rotary=4)),
    "window": AttentionConfig(16, 4, rope=Rope(interleaved=True), traits=Traits(window=3)),
    "normed": AttentionConfig(
        16, 4, n_kv_heads=2, rope=Rope(), traits=Traits(qk_norm=QKNorm(), bias="all")
    ),
    "gemma": AttentionConfig(
        16, 4, rope=Rope(), traits=Traits(qk_norm=QKNorm(unit_offset=True), softcap=2.0, window=4)
    ),
    "sinks": AttentionConfig(16, 4, n_kv_heads=2, traits=Traits(sinks=True, bias="qkv")),
    "mla": AttentionConfig(16, 4, latent=LATENT, rope=Rope()),
    "mla_rank": AttentionConfig(
        16,
        4,
        latent=Latent(d_latent=10, d_rope=4, d_nope=6, d_value=5, q_rank=7),
        rope=Rope(interleaved=True),
        traits=Traits(bias="all", window=5),
    ),
}
LATENT_VARIANTS = [name for name, config in VARIANTS.items() if config.latent is not None]


def layer_of(config, *, seed=0, dtype=torch.float64):
    """A layer in float64 whose biases, gains and sinks are random as well."""
    layer = HookedAttention(config, seed=seed).to(dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in layer.parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn(weight.shape, generator=generator))
    return layer


def inputs(batch, pos, d_model=16, *, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, pos, d_model, generator=generator, dtype=torch.float64).to(dtype)


def paddings(batch, pos):
    """Left, right, in the middle, a whole sequence, and none."""
    none = torch.ones(batch, pos, dtype=torch.bool)
    left, right, gap, whole = none.clone(), none.clone(), none.clone(), none.clone()
    left[0, : pos // 3] = False
    right[0, pos - pos // 3 :] = False
    gap[0, pos // 2] = False
    whole[0] = False
    return {"none": none, "left": left, "right": right, "gap": gap, "whole": whole}


def plain(layer, x, padding=None):
    """The layer's output from its weights by a dense softmax, in the layer's own dtype."""
    config, (batch, pos, _) = layer.config, x.shape
    new = layer.qkv(x, layer.qkv.rotation(torch.arange(pos)[None], x.dtype))
    k, v = layer.qkv.keys_values(new.cache)
    group = config.n_heads // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = new.rot_q @ k.transpose(2, 3) * config.scale
    if config.traits.softcap is not None:
        s = config.traits.softcap * torch.tanh(s / config.traits.softcap)
    i, j = torch.arange(pos)[:, None], torch.arange(pos)
    seen = torch.ones(pos, pos, dtype=torch.bool)
    if config.traits.causal:
        seen &= j <= i
    if config.traits.window is not None:
        seen &= (i - j).abs() < config.traits.window
    seen = seen.expand(batch, 1, pos, pos)
    if padding is not None:
        seen = seen & padding[:, None, None].bool()
    e = torch.where(seen, s.exp(), 0.0)
    total = e.sum(-1, keepdim=True)
    if layer.sinks is not None:
        total = total + layer.sinks.exp()[None, :, None, None]
    z = (e / total.masked_fill(total == 0, 1.0)) @ v
    y = torch.einsum("bhpv,hvm->bpm", z, layer.W_O.view(config.n_heads, -1, config.d_model))
    return y if layer.b_O is None else y + layer.b_O


@st.composite
def configs(draw):
    """Any layer of small widths."""
    heads = draw(st.sampled_from([1, 2, 4]))
    traits = Traits(
        window=draw(st.none() | st.integers(1, 9)),
        softcap=draw(st.none() | st.just(1.5)),
        sinks=draw(st.booleans()),
        bias=draw(st.sampled_from(["none", "qkv", "all"])),
    )
    rope = draw(st.none() | st.builds(Rope, interleaved=st.booleans()))
    if draw(st.booleans()):
        latent = Latent(
            d_latent=draw(st.integers(1, 9)),
            d_rope=2 * draw(st.integers(1, 3)),
            d_nope=draw(st.integers(1, 6)),
            d_value=draw(st.integers(1, 6)),
            q_rank=draw(st.none() | st.integers(1, 8)),
        )
        return AttentionConfig(16, heads, latent=latent, rope=rope, traits=traits)
    kv = draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0]))
    d_head = 2 * draw(st.integers(1, 4))
    return AttentionConfig(16, heads, kv, d_head, rope=rope, traits=traits)


@st.composite
def splits(draw, total):
    """Piece lengths that add up to `total`, empty ones among them."""
    pieces, left = [], total
    while left:
        pieces += [0] * draw(st.integers(0, 1))
        pieces.append(draw(st.integers(1, left)))
        left -= pieces[-1]
    return pieces + [0] * draw(st.integers(0, 1))
