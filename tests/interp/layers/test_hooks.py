"""Edits that write in place, edits at sites, and what is refused."""

from dataclasses import replace

import pytest
import torch

from headatlas.interp.attach import Edit, attach
from headatlas.interp.errors import InputError
from headatlas.interp.layers.hooks import attach_layers

from .test_decoding import TIGHT, decode, held
from .variants import LATENT_VARIANTS, VARIANTS, inputs, layer_of

TARGETS = ["q", "k", "v", "scores", "pattern", "z"]


def scaling(target, factor, *, in_place):
    """An edit that scales heads; scores sink with the key's column instead, as −inf · 0 is NaN."""

    def change(_, value):
        per_head = factor[: value.shape[1], None, None]
        if target == "scores":
            fall = per_head * torch.arange(value.shape[-1])
            return value.sub_(fall) if in_place else value - fall
        return value.mul_(per_head) if in_place else value * per_head

    return Edit(target, change)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["mha", "gqa", "mla", "sinks"])
class TestInPlace:
    def test_does_what_a_new_tensor_does(self, name, target):
        """In outputs, and in gradients of the input, the weights and the factor."""
        layer, x = layer_of(VARIANTS[name]), inputs(2, 5).requires_grad_()
        factor = torch.tensor([0.5, 1.5, -0.7, 0.2], dtype=torch.float64, requires_grad=True)
        found = []
        for in_place in (True, False):
            edit = scaling(target, factor, in_place=in_place)
            with attach_layers(layer, edits=[edit, edit]):
                out = layer(x)
            leaves = [x, factor, *layer.parameters()]
            grads = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
            found.append([out, *grads])
        for mine, expected in zip(*found, strict=True):
            torch.testing.assert_close(mine, expected, **TIGHT)
        assert found[0][2].abs().sum() > 0
        assert not torch.allclose(found[0][0], layer(x))

    def test_gradients_of_decoding(self, name, target):
        layer = layer_of(VARIANTS[name])

        def run(x, factor):
            with attach_layers(layer, edits=[scaling(target, factor, in_place=True)]):
                return decode(layer, x, [2, 0, 1, 1])[0]

        factor = torch.tensor([0.5, 1.5, -0.7, 0.2], dtype=torch.float64, requires_grad=True)
        x = inputs(1, 4).requires_grad_()
        assert torch.autograd.gradcheck(run, (x, factor), fast_mode=True)

    @pytest.mark.parametrize("grad", [True, False])
    def test_the_cache_holds_unedited_values(self, name, target, grad):
        """Edits are made anew in every step: decoding equals the edited full forward."""
        layer, x = layer_of(VARIANTS[name]), inputs(2, 6)
        factor = torch.tensor([0.5, 1.5, -0.7, 0.2], dtype=torch.float64)
        with torch.set_grad_enabled(grad):
            _, plain = decode(layer, x, [3, 1, 2])
            with attach_layers(layer, edits=[scaling(target, factor, in_place=True)]):
                _, first = layer.decode(x[:, :3])
                before = held(first)
                rest, cache = decode_on(layer, x[:, 3:], first)
                torch.testing.assert_close(rest, layer(x)[:, 3:], **TIGHT)
        torch.testing.assert_close(held(first), before, rtol=0, atol=0)
        torch.testing.assert_close(held(cache), held(plain), **TIGHT)


def decode_on(layer, x, cache):
    outs = []
    for piece in x.split(1, dim=1):
        out, cache = layer.decode(piece, cache)
        outs.append(out)
    return torch.cat(outs, 1), cache


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LATENT_VARIANTS)
def test_in_place_edits_leave_absorbed_latents_alone(name, target):
    layer, x = layer_of(VARIANTS[name]), inputs(2, 6)
    factor = torch.tensor([0.5, 1.5, -0.7, 0.2], dtype=torch.float64)
    plain_out, plain = decode(layer, x, [4, 2], absorb=True)
    with attach_layers(layer, edits=[scaling(target, factor, in_place=True)]):
        out, cache = decode(layer, x, [4, 2], absorb=True)
    torch.testing.assert_close(held(cache), held(plain), **TIGHT)
    assert not torch.allclose(out, plain_out)


class TestSites:
    def test_an_edit_for_a_site_acts_there_alone(self):
        model = torch.nn.ModuleList(layer_of(VARIANTS["gqa"], seed=i) for i in range(2))
        x = inputs(2, 4)
        with attach_layers(model) as sites:
            own = [layer(x) for layer in model]
        double = Edit("z", lambda _, z: z * 2, frozenset({sites[1]}))
        with attach_layers(model, edits=[double]):
            assert torch.equal(model[0](x), own[0])
            torch.testing.assert_close(model[1](x), 2 * own[1], **TIGHT)

    @pytest.mark.parametrize("target", ["scores", "pattern", "z"])
    def test_it_acts_under_absorption_too(self, target):
        layer, x = layer_of(VARIANTS["mla"]), inputs(2, 6)
        halved = Edit(target, lambda _, value: value * 0.5, frozenset({layer.site}))
        with attach_layers(layer, edits=[halved]):
            out, _ = decode(layer, x, [3, 3], absorb=True)
            torch.testing.assert_close(out, layer(x), **TIGHT)
        assert not torch.allclose(out, layer(x))

    def test_the_absorbed_form_of_a_site_may_be_named(self):
        layer, x = layer_of(VARIANTS["mla"]), inputs(2, 6)
        absorbed = layer.absorbed_site(layer.site)
        nothing = Edit("z", lambda _, z: z * 0, frozenset({absorbed}))
        own = layer(x)
        with attach_layers(layer, edits=[nothing]):
            assert (layer.decode(x, absorb=True)[0] == 0).all()
            assert torch.equal(layer(x), own)

    @pytest.mark.parametrize("far", [True, False])
    def test_an_edit_that_would_act_nowhere_is_refused(self, far):
        layer = layer_of(VARIANTS["gqa"])
        sites = frozenset({replace(layer.site, layer=1)} if far else ())
        edit = Edit("z", lambda _, z: z * 0, sites)
        words = r"those that attach_layers\(model\) yields, at least one; got "
        with pytest.raises(InputError, match=words), attach_layers(layer, edits=[edit]):
            pass


@pytest.mark.usefixtures("as_users_call")
class TestRefusals:
    def test_attach_names_attach_layers(self):
        words = r"got a .*HookedAttention\. .* attach_layers\(model, observers="
        for model in (layer_of(VARIANTS["mha"]), torch.nn.Sequential(layer_of(VARIANTS["mla"]))):
            with pytest.raises(InputError, match=words), attach(model):
                pass

    def test_attach_layers_names_attach(self, tiny):
        words = "{} holds no HookedAttention.*For a transformers model, use attach"
        for model in (tiny("llama"), torch.nn.Linear(2, 2)):
            name = type(model).__name__
            with pytest.raises(InputError, match=words.format(name)), attach_layers(model):
                pass

    def test_what_is_no_module(self):
        with (
            pytest.raises(InputError, match=r"expected a HookedAttention.*got str"),
            attach_layers("tiny"),
        ):
            pass
