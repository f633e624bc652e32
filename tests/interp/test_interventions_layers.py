"""Interventions on the package's own layers: predicted changes, decoding, latents, refusals."""

import pytest
import torch
from torch import nn

from headatlas.interp.attach import Edit
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.interventions import add, gate, intervene, patch, run, zero
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig, Latent, Traits
from headatlas.interp.layers.hooks import attach_layers
from headatlas.interp.layers.rope import Rope

from .edits import IDS

TARGETS = ("q", "k", "v", "scores", "pattern", "z")
LATENT = Latent(d_latent=10, d_rope=4, d_nope=6, d_value=5)
CONFIGS = {
    "gqa": AttentionConfig(16, 4, n_kv_heads=2, rope=Rope()),
    "window": AttentionConfig(16, 4, rope=Rope(), traits=Traits(window=3)),
    "mla": AttentionConfig(16, 4, latent=LATENT, rope=Rope()),
}
# one head, and latents as wide as keys and values
ALIKE = AttentionConfig(16, 1, latent=Latent(5, d_rope=4, d_nope=5, d_value=5), rope=Rope())
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def layer_of(name):
    config = ALIKE if name == "alike" else CONFIGS[name]
    return HookedAttention(config, seed=1).double()


def states(pos=6, batch=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, pos, 16, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("target", ["z", "pattern", "v"])
def test_a_zeroed_head_loses_its_result(name, target):
    layer, x = layer_of(name), states()
    trace = layer.trace(x)
    seen = run(layer, x, zero(["L0H1", "L0H2"], target))
    expected = trace.out - trace.result[:, :, [1, 2]].sum(2)
    torch.testing.assert_close(seen, expected, **CLOSE)
    assert (seen - trace.out).abs().max() > 1e-3
    assert torch.equal(layer(x), trace.out)  # nothing stays


def test_vectors_factors_and_positions():
    layer, x = layer_of("gqa"), states()
    trace = layer.trace(x)
    vector = torch.arange(4.0, dtype=torch.float64)
    seen = run(layer, x, [add("L0H3", vector, positions=2), gate("L0KV0", 0.5, positions=[4])])
    expected = trace.out.clone()
    expected[:, 2] += vector @ layer.W_O[12:16]
    expected[:, 4] -= 0.5 * trace.result[:, 4, :2].sum(1)
    torch.testing.assert_close(seen, expected, **CLOSE)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CONFIGS)
def test_decoding_in_steps_equals_the_whole(name, target):
    layer, x = layer_of(name), states(pos=8)
    changes = [gate("L0H1", 0.3, target, positions=[1, 5, 6]), gate("L0H2", -0.5, target)]
    expected = run(layer, x, changes)
    cache, parts = None, []
    with torch.no_grad(), intervene(layer, changes) as sites:
        for start, stop in ((0, 4), (4, 5), (5, 8)):
            out, cache = layer.decode(x[:, start:stop], cache)
            parts.append(out)
    assert [site.layer for site in sites] == [0]
    torch.testing.assert_close(torch.cat(parts, 1), expected, **CLOSE)
    assert (expected - layer(x)).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["mla", "alike"])
class TestAbsorbedLatents:
    """Also where the absorbed call has the shapes of the plain one."""

    def test_the_sites_differ_in_one_of_them(self, name):
        layer = layer_of(name)
        assert (layer.absorbed_site(layer.site) == layer.site) == (name == "alike")

    @pytest.mark.parametrize("target", ["z", "pattern", "scores"])
    def test_factors_mean_the_same(self, name, target):
        layer, x = layer_of(name), states()
        changes = [gate("L0H0", 0.3, target, positions=[1, 4]), gate("L0H0", -0.5, target)]
        expected = run(layer, x, changes)
        with torch.no_grad(), intervene(layer, changes):
            seen, _ = layer.decode(x, absorb=True)
        torch.testing.assert_close(seen, expected, **CLOSE)
        assert (seen - layer(x)).abs().max() > 1e-3

    @pytest.mark.parametrize(
        "change",
        [
            zero("L0H0", "q"),
            gate("L0H0", 0.5, "k"),
            zero("L0H0", "v"),
            add("L0H0", torch.ones(5)),
        ],
    )
    def test_what_has_no_meaning_is_refused(self, name, change):
        layer, x = layer_of(name), states()
        refused = pytest.raises(InputError, match=r"has no meaning with absorb=True")
        with intervene(layer, change), refused:
            layer.decode(x, absorb=True)
        with intervene(layer, change):
            layer.decode(x)


def test_layers_inside_a_module_are_numbered():
    """The second of two layers, and dropout around them that a run leaves out."""
    both = nn.Sequential(layer_of("gqa"), nn.Dropout(0.5), layer_of("gqa")).train()
    x = states()
    inner = both[0](x)
    trace = both[2].trace(inner)
    seen = run(both, x, zero("L1H2"))
    torch.testing.assert_close(seen, trace.out - trace.result[:, :, 2], **CLOSE)
    assert both.training
    assert not seen.requires_grad


def test_gradients_reach_factors():
    layer, x = layer_of("gqa"), states()
    factor = torch.tensor([0.7, 1.2], dtype=torch.float64, requires_grad=True)

    def output(values):
        return run(layer, x, gate(["L0H1", "L0H3"], values), grad=True)

    assert torch.autograd.gradcheck(output, factor)


def test_values_of_a_model(tiny):
    """A layer with a model's weights takes what was captured in the model."""
    model = tiny("llama")
    attention = model.model.layers[0].self_attn
    layer = HookedAttention.from_transformers(attention, rotary=model.model.rotary_emb)
    cache = capture(model, None, IDS, names_filter=["rot_q", "z"], layers=[0])
    x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    heads = [f"L0H{h}" for h in range(4)]
    seen = run(layer, x, patch(cache, heads))
    torch.testing.assert_close(seen, attention.o_proj(cache["z", 0].flatten(2)))
    swapped = run(layer, x, patch(cache, "L0H1", "q"))
    queries = cache["rot_q", 0].transpose(1, 2)[:, 1]

    def change(_, q):
        q[:, 1] = queries
        return q

    with torch.no_grad(), attach_layers(layer, edits=[Edit("q", change)]):
        torch.testing.assert_close(swapped, layer(x))
    assert (swapped - layer(x)).abs().max() > 1e-4


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, x: run(m, x, zero("L0H4")), "has no head L0H4"),
        (lambda m, x: run(m, x, zero("L1H0")), "its layers are L0 to L0"),
        (lambda m, x: run(m, x, zero("L0H1", positions=6)), "position 6 is out of range"),
        (lambda m, x: run(m, x, add("L0H1", torch.ones(7))), "values of width 4"),
        (lambda m, x: run(m, "x", zero("L0H1")), r"reads states \[batch, pos, d_model\]; got str"),
        (lambda m, x: run(m, x[0, 0], zero("L0H1")), r"d_model\]; got \(16,\)"),
        (lambda m, x: run(m, x, zero("L0H1"), decoder_ids=IDS), "has no decoder"),
        (lambda m, x: run(m, x, ["zero"]), "expected an Intervention"),
        (lambda m, x: patch(m, "L0H1", tokens=IDS), "a Cache or a transformers model; got Hooked"),
        (lambda m, x: run(nn.Linear(2, 2), x, zero("L0H1")), "expected a transformers PreTrained"),
    ],
)
def test_refused(make, message):
    with pytest.raises(InputError, match=message):
        make(layer_of("gqa"), states())
