"""A TransformerBridge that does more than its model: hooks, weights of its own, other modules."""

import pytest
import torch
from torch import nn

import headatlas as ha
from headatlas.interp.errors import InputError

from .bridges import IDS, run


@pytest.mark.parametrize(
    ("place", "reset"),
    [
        ("blocks.0.attn.hook_z", {}),
        ("blocks.1.hook_in", {"including_permanent": True}),
    ],
)
def test_hook_points(pair, place, reset):
    _, bridge = pair("llama")
    bridge.add_hook(place, lambda value, hook: value, is_permanent=bool(reset))
    for given in (bridge, bridge.original_model):
        with pytest.raises(InputError, match=r"has a hook at .*reset_hooks"):
            ha.attention_sites(given)
    bridge.reset_hooks(**reset)
    assert len(ha.attention_sites(bridge)) == 2


def test_hooks_of_torch(pair):
    _, bridge = pair("llama")
    for module in (bridge, bridge.blocks[0], bridge.original_model):
        handle = module.register_forward_hook(lambda *_: None)
        with pytest.raises(InputError, match="has a hook at"):
            ha.attention_sites(bridge)
        handle.remove()
    assert len(ha.attention_sites(bridge)) == 2


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_weights_changed_in_place_are_followed(pair, family):
    _, bridge = pair(family)
    before = ha.capture(bridge, None, IDS)["pattern", 0]
    with torch.no_grad():
        bridge.blocks[0].attn.q.weight.mul_(1.5)
    assert not torch.allclose(ha.capture(bridge, None, IDS)["pattern", 0], before)
    # float32, 2 layers: the two trees add in another order, of values around 1
    torch.testing.assert_close(ha.run(bridge, IDS).logits, run(bridge), rtol=1e-5, atol=1e-5)


def test_a_bias_that_the_bridge_added_is_followed(pair):
    """An unembedding without bias gets one of zeros, which is a buffer."""
    _, bridge = pair("llama")
    ha.attention_sites(bridge)
    with torch.no_grad():
        bridge.unembed.b_U.add_(torch.randn(bridge.unembed.b_U.shape))
    with pytest.raises(InputError, match="computes something else than the LlamaForCausalLM"):
        ha.attention_sites(bridge)


def test_weights_changed_in_the_bridge_alone(pair):
    _, bridge = pair("gpt_neox")  # its rows are interleaved, so that the bridge has copies
    ha.attention_sites(bridge)
    with torch.no_grad():
        bridge.blocks[0].attn.q.weight.mul_(1.5)
    with pytest.raises(InputError, match="computes something else than the GPTNeoXForCausalLM"):
        ha.attention_sites(bridge)


def test_compatibility_mode(pair):
    _, bridge = pair("gpt2")
    ha.attention_sites(bridge)
    bridge.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    assert len(ha.attention_sites(bridge)) == 2
    bridge.enable_compatibility_mode(disable_warnings=True)
    for given in (bridge, bridge.original_model):
        with pytest.raises(InputError, match=r"computes something else.*enable_compat.*anew"):
            ha.capture(given, None, IDS)


def test_compatibility_mode_of_weights_in_the_model(pair):
    _, bridge = pair("llama")
    before, patterns = run(bridge), ha.capture(bridge, None, IDS)["pattern", 1]
    bridge.enable_compatibility_mode(disable_warnings=True)
    found = ha.run(bridge, IDS).logits
    torch.testing.assert_close(found, run(bridge), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, before)  # centred
    torch.testing.assert_close(  # what the heads do is the same
        ha.capture(bridge, None, IDS)["pattern", 1], patterns, rtol=1e-4, atol=1e-5
    )


def test_modules_changed_inside_a_block(pair):
    _, bridge = pair("llama")
    mlp = bridge.original_model.model.layers[0]._original_component
    with ha.attach(bridge):
        mlp.add_module("more", nn.Identity())
        with pytest.raises(InputError, match="was changed inside an attach"):
            ha.attention_sites(bridge)
        del mlp.more
    mlp.add_module("more", nn.Identity())
    assert len(ha.attention_sites(bridge)) == 2


def test_what_is_no_bridge_of_a_transformers_model(pair):
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    sizes = {"d_model": 8, "d_head": 4, "n_layers": 1, "n_ctx": 8, "n_heads": 2, "d_vocab": 9}
    native = TransformerBridge.boot_native(TransformerBridgeConfig(**sizes, act_fn="gelu"))
    with pytest.raises(InputError, match="TransformerLens holds a NativeModel"):
        ha.attention_sites(native)
    _, bridge = pair("gpt2")
    with pytest.raises(InputError, match="BlockBridge of TransformerLens holds none"):
        ha.attention_sites(bridge.blocks[0])
    with pytest.raises(InputError, match=r"got Sequential\. Pass the model inside the wrapper"):
        ha.attention_sites(nn.Sequential(bridge))
    bridge.original_model._hf_hook = object()
    with pytest.raises(InputError, match="spread over devices by accelerate"):
        ha.attention_sites(bridge)
