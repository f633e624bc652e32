import pytest
import torch

from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig, Latent, Traits
from headatlas.interp.layers.from_transformers import from_transformers
from headatlas.interp.layers.hooks import attach_layers
from headatlas.interp.layers.rope import Rope

POS = 20  # the windows of the tiny models are 8
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
GEMMA = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
}
DENSE = {"first_k_dense_replace": 2}  # experts do not run in float64
CASES = {
    "gpt2": ("gpt2", {}),
    "gpt2 by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "llama": ("llama", {}),
    "llama biased": ("llama", {"attention_bias": True}),
    "llama MQA": ("llama", {"num_key_value_heads": 1}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "gemma 3": ("gemma3_text", {}),
    "gemma 3 scaled": ("gemma3_text", {"rope_parameters": GEMMA, "attn_logit_softcapping": 3.0}),
    "gemma 3 both ways": ("gemma3_text", {"use_bidirectional_attention": True}),
    "deepseek": ("deepseek_v3", DENSE),
    "deepseek direct": ("deepseek_v3", {**DENSE, "q_lora_rank": None}),
    "deepseek biased": ("deepseek_v3", {**DENSE, "attention_bias": True}),
    "deepseek direct biased": (
        "deepseek_v3",
        {**DENSE, "attention_bias": True, "q_lora_rank": None},
    ),
    "deepseek halves": ("deepseek_v3", {**DENSE, "rope_interleave": False}),
    "deepseek yarn": (
        "deepseek_v3",
        {**DENSE, "rope_parameters": {**YARN, "mscale_all_dim": 1.0, "mscale": 0.7}},
    ),
}


def attentions(model):
    return [m for m in model.modules() if type(m).__name__.endswith("Attention")]


def rotary_of(model):
    return getattr(model.base_model, "rotary_emb", None)


def masks():
    mask = torch.ones(3, POS, dtype=torch.long)
    mask[0, :7] = 0
    mask[1, 13:] = 0
    return mask


def passes(model, mask):
    """What each attention module reads, and what it gives."""
    seen = []

    def record(module, args, kwargs, output):
        hidden = args[0] if args else kwargs["hidden_states"]
        seen.append((hidden.detach(), output[0].detach()))

    handles = [m.register_forward_hook(record, with_kwargs=True) for m in attentions(model)]
    ids = torch.arange(3 * POS).view(3, POS) * 5 % 89 + 3
    try:
        with torch.no_grad():
            model.base_model(input_ids=ids, attention_mask=mask)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def in_double(model):
    """The model in float64, with norms inside attention that do not round to float32."""
    model = model.double()
    for attention in attentions(model):
        for name, norm in attention.named_modules():
            if name.endswith("norm"):
                gain = norm.weight + ("Gemma" in type(norm).__name__)
                eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
                norm.forward = lambda x, g=gain, e=eps: (
                    x / (x.square().mean(-1, True) + e).sqrt() * g
                )
    return model


@pytest.mark.parametrize("case", CASES)
class TestOutputs:
    def test_in_double(self, tiny, case):
        family, changes = CASES[case]
        model, mask = in_double(tiny(family, **changes)), masks()
        live = mask.bool()
        for module, (hidden, expected) in zip(attentions(model), passes(model, mask), strict=True):
            for rotary in {None, rotary_of(model)}:
                layer = HookedAttention.from_transformers(module, rotary=rotary)
                out = layer(hidden, padding=mask)
                error = (out - expected)[live].abs().max()
                assert error <= 1e-13 * expected[live].abs().max()

    def test_in_single(self, tiny, case):
        """As near to float64 as the module itself, up to the rounding of the last sums."""
        family, changes = CASES[case]
        model, mask = tiny(family, **changes), masks()
        live = mask.bool()
        for module, (hidden, theirs) in zip(attentions(model), passes(model, mask), strict=True):
            layer = from_transformers(module)
            ours = layer(hidden, padding=mask)
            assert ours.dtype == torch.float32
            exact = layer.double()(hidden.double(), padding=mask)[live]
            limit = (theirs[live] - exact).abs().max()
            floor = torch.finfo(torch.float32).eps * exact.abs().max()
            assert (ours[live] - exact).abs().max() <= 2 * limit + 2 * floor

    def test_hooks_see_what_they_see_on_the_model(self, tiny, case):
        family, changes = CASES[case]
        model, mask = in_double(tiny(family, **changes)), masks()
        theirs, live = [], mask.bool()
        with attach(model, observers=[theirs.append]):
            inputs = passes(model, mask)
        for module, call, (hidden, _) in zip(attentions(model), theirs, inputs, strict=True):
            ours, layer = [], from_transformers(module)
            with attach_layers(layer, observers=[ours.append]):
                layer(hidden, padding=mask)
            for name in ("q", "k", "v", "z", "pattern"):
                mine, other = getattr(ours[0], name), getattr(call, name)
                mine, other = mine.transpose(1, 2)[live], other.transpose(1, 2)[live]
                torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
            site = ours[0].site
            for name in ("n_heads", "n_kv_heads", "d_head", "d_value", "causal"):
                assert getattr(site, name) == getattr(call.site, name)


def test_decoding_a_loaded_layer(tiny):
    for family in ("gemma3_text", "deepseek_v3"):
        model = in_double(tiny(family, **(DENSE if family == "deepseek_v3" else {})))
        for module, (hidden, expected) in zip(
            attentions(model), passes(model, masks() * 0 + 1), strict=True
        ):
            layer, outs, cache = from_transformers(module), [], None
            for part in hidden.split([11, 1, 8], 1):
                out, cache = layer.decode(part, cache, absorb=family == "deepseek_v3")
                outs.append(out)
            torch.testing.assert_close(torch.cat(outs, 1), expected, rtol=1e-12, atol=1e-12)


def test_weights_are_copies(tiny):
    module = attentions(tiny("llama"))[0]
    layer = from_transformers(module)
    before = module.q_proj.weight.clone()
    with torch.no_grad():
        layer.qkv.W_Q.zero_()
    assert torch.equal(module.q_proj.weight, before)


def test_dtype_is_kept(tiny):
    model = tiny("llama", dtype=torch.bfloat16)
    layer = from_transformers(attentions(model)[0], rotary=rotary_of(model))
    assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}


class TestErrors:
    def test_an_unknown_module(self, tiny):
        module = attentions(tiny("qwen3"))[0]
        with pytest.raises(InputError, match=r"Qwen3Attention is not a known.*LlamaAttention"):
            from_transformers(module)
        with pytest.raises(InputError, match="LlamaForCausalLM is not a known"):
            from_transformers(tiny("llama"))

    def test_cross_attention(self, tiny):
        model = tiny("gpt2", add_cross_attention=True)
        with pytest.raises(InputError, match="cross-attention"):
            from_transformers(model.transformer.h[0].crossattention)

    def test_a_wrapped_projection(self, tiny):
        module = attentions(tiny("llama"))[0]
        module.q_proj = torch.nn.Sequential(module.q_proj)
        with pytest.raises(InputError, match=r"is a Sequential.*Merge adapters"):
            from_transformers(module)

    def test_a_moving_rope(self, tiny):
        rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
        module = attentions(tiny("llama", rope_parameters=rope))[0]
        with pytest.raises(InputError, match=r"'dynamic' rotary positions change"):
            from_transformers(module)

    def test_another_rotary_module(self, tiny):
        module = attentions(tiny("gemma3_text"))[0]
        with pytest.raises(InputError, match="holds no sliding_attention_inv_freq"):
            from_transformers(module, rotary=rotary_of(tiny("llama")))
        with pytest.raises(InputError, match="GPT-2 has no rotary"):
            from_transformers(attentions(tiny("gpt2"))[0], rotary=rotary_of(tiny("llama")))


def test_a_layer_prints_what_it_is_made_of():
    traits = Traits(window=4)
    layer = HookedAttention(AttentionConfig(32, 4, 2, rope=Rope(theta=500.0), traits=traits))
    said = "GQA, d_model=32, heads=4, kv_heads=2, d_key=8, rope theta=500, window=4"
    assert layer.extra_repr() == said
    latent = Latent(d_latent=16, d_rope=4, d_nope=8, d_value=6)
    config = AttentionConfig(32, 4, latent=latent, traits=Traits(causal=False))
    said = "MLA, d_model=32, heads=4, d_key=12, d_value=6, latent=16+4, not causal"
    assert HookedAttention(config).extra_repr() == said
