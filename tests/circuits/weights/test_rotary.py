"""Measured rotations against the models' own frequencies and attention scores."""

import pytest
import torch
from transformers import GPTJConfig, GPTJForCausalLM

from headatlas.circuits.weights.head_circuits import head_circuits
from headatlas.circuits.weights.rotary import rotations
from headatlas.interp.attach import attach
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_base
from headatlas.interp.load import load
from headatlas.interp.watch import watch_calls

IDS = torch.tensor([[5, 17, 3, 60, 44, 9, 23, 71, 2, 30]])


def gptj():
    torch.manual_seed(0)
    config = GPTJConfig(vocab_size=97, n_embd=32, n_layer=2, n_head=2, rotary_dim=8)
    model = GPTJForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model


def neox(tiny, share):
    parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
    return tiny("gpt_neox", rope_parameters=parameters)


@pytest.mark.parametrize("name", ["llama", "phi3", "half neox", "gptj", "tiny"])
def test_rotated_form_gives_attention_scores(tiny, name):
    """q_i R_(i-j) k_j, of queries and keys before RoPE, is the score of every pair i, j."""
    makers = {"half neox": lambda: neox(tiny, 0.5), "gptj": gptj, "tiny": lambda: load("tiny")[0]}
    model = makers.get(name, lambda: tiny(name))()
    names = [f"blocks.1.attn.hook_{kind}" for kind in ("q", "k", "attn_scores")]
    cache = capture(model, None, IDS, names_filter=names)
    site, rotation = list(rotations(model).items())[1]
    scores = cache["attn_scores", 1][0].double()
    q, k = cache["q", 1][0].double(), cache["k", 1][0].double()
    group = site.n_heads // site.n_kv_heads
    for i, j in [(9, 0), (9, 9), (7, 2), (4, 3)]:
        turned = rotation.turn(q[i], i - j)
        wanted = (turned * k[j].repeat_interleave(group, 0)).sum(-1) * site.d_head**-0.5
        assert torch.allclose(wanted, scores[:, i, j], atol=2e-4, rtol=1e-3)
    unturned = (q[9] * k[0].repeat_interleave(group, 0)).sum(-1) * site.d_head**-0.5
    assert not torch.allclose(unturned, scores[:, 9, 0], atol=1e-2)
    assert rotation.interleaved == (name == "gptj")


@pytest.mark.parametrize("name", ["llama", "tiny"])
def test_circuit_of_normalised_stream_gives_attention_scores(tiny, name):
    """x_i W_QK(Δ) x_j, x the stream divided by its size: through the public factors."""
    model = load("tiny")[0] if name == "tiny" else tiny(name)
    norm, seen = model.model.layers[1].input_layernorm, []
    with watch_calls([norm], lambda module, x, y: seen.append(x[0].double())):
        run_base(model, IDS)
    x = seen[0] * (seen[0].square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
    scores = capture(model, None, IDS, names_filter="attn_scores")["attn_scores", 1][0]
    left, right = head_circuits(model, delta=6)["L1H3"].qk
    got = x[8] @ left.double() @ right.double() @ x[2] * left.shape[1] ** -0.5
    assert got.item() == pytest.approx(scores[3, 8, 2].item(), abs=1e-4, rel=1e-3)


def test_frequencies_are_the_models_own(tiny):
    for model in (tiny("llama"), tiny("gemma3_text"), neox(tiny, 1.0)):
        base = model.base_model
        for index, rotation in enumerate(rotations(model).values()):
            kinds = getattr(model.config, "layer_types", None)
            name = (
                f"{kinds[index]}_inv_freq" if kinds and "gemma" in model.config.model_type else ""
            )
            own = getattr(base.rotary_emb, name or "inv_freq")
            assert torch.allclose(rotation.frequencies, own.double(), atol=1e-7)


def test_narrow_models_and_models_without_rotation(tiny):
    found = rotations(tiny("llama", dtype=torch.bfloat16))
    wanted = torch.tensor([1, 0.1, 0.01, 0.001]).double()
    for rotation in found.values():
        assert torch.allclose(rotation.frequencies, wanted, atol=2e-4)
    assert set(rotations(tiny("gpt2")).values()) == {None}


def test_model_is_left_alone_and_observers_rest(tiny):
    model, seen = tiny("llama"), []
    before = model(IDS).logits
    with attach(model, observers=[seen.append]):
        rotations(model)
    assert not seen
    assert torch.equal(model(IDS).logits, before)


def test_rotations_of_another_sort_are_refused(tiny):
    """DeepSeek turns the last dimensions of a query, not the first."""
    with pytest.raises(InputError, match="not as RoPE turns leading pairs"):
        rotations(tiny("deepseek_v3"))
