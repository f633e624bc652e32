"""Costs against the package's own layers: caches, and latents absorbed or expanded."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headatlas.circuits.cost.kv_cache import cache_bytes
from headatlas.circuits.cost.report import cost
from headatlas.circuits.cost.shapes import AttentionShapes, LatentShape, LayerShape
from headatlas.circuits.cost.totals import decode_cost
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig, Latent, Traits

TOKENS, BATCH, D = 20, 2, 32
PLAIN = Latent(d_latent=16, d_rope=4, d_nope=8, d_value=6)
RANKED = Latent(d_latent=10, d_rope=2, d_nope=5, d_value=7, q_rank=12)
LAYERS = {
    "MHA": (AttentionConfig(D, 4), LayerShape(D, 4, 4, 8, 8)),
    "GQA": (AttentionConfig(D, 4, 2), LayerShape(D, 4, 2, 8, 8)),
    "MQA, wide": (AttentionConfig(D, 4, 1, 12), LayerShape(D, 4, 1, 12, 12)),
    "window": (
        AttentionConfig(D, 4, 2, traits=Traits(window=6)), LayerShape(D, 4, 2, 8, 8, window=6),
    ),
    "MLA": (
        AttentionConfig(D, 4, latent=PLAIN), LayerShape(D, 4, 4, 12, 6, latent=LatentShape(16, 4)),
    ),
    "MLA, query latent": (
        AttentionConfig(D, 4, latent=RANKED),
        LayerShape(D, 4, 4, 7, 7, latent=LatentShape(10, 2, 12)),
    ),
}  # fmt: skip


def inputs():
    return torch.randn(BATCH, TOKENS, D, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("length", [3, TOKENS])
def test_caches_hold_what_the_formula_says(kind, length):
    config, shape = LAYERS[kind]
    with torch.no_grad():
        _, cache = HookedAttention(config).decode(inputs()[:, :length])
    expected = cache_bytes(AttentionShapes((shape,)), length, batch=BATCH, dtype="fp32")
    assert cache.nbytes == expected


@pytest.mark.parametrize("kind", ["MLA", "MLA, query latent"])
@pytest.mark.parametrize("way", ["absorbed", "expanded"])
def test_projections_of_latents_cost_what_the_flop_counter_counts(kind, way):
    """All matrix products but those of attention itself, which on CPU the counter leaves out."""
    config, shape = LAYERS[kind]
    layer, counter = HookedAttention(config), FlopCounterMode(display=False)
    with torch.no_grad():
        _, cache = layer.decode(inputs()[:, :-1])
        with counter:
            layer.decode(inputs()[:, -1:], cache, absorb=way == "absorbed")
    counted = decode_cost(AttentionShapes((shape,)), TOKENS, batch=BATCH, mla=way)
    assert counter.get_total_flops() == counted["qkv"].flops + counted["output"].flops


@pytest.mark.parametrize("kind", LAYERS)
def test_shapes_of_a_layer_of_our_own(kind):
    config, shape = LAYERS[kind]
    assert cost(HookedAttention(config)).shapes.layers == (shape,)


def test_shapes_of_several_layers():
    stack = torch.nn.Sequential(*(HookedAttention(LAYERS[kind][0]) for kind in ("MHA", "GQA")))
    shapes = cost(stack).shapes
    assert [layer.kind for layer in shapes.layers] == ["MHA", "GQA"]
    assert shapes.name == "Sequential"
