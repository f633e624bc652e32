"""Layers that share weights: one module with a site for each time it runs in a forward pass."""

import re
import threading

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM

from headatlas.circuits.prune.remove.remove import remove_heads
from headatlas.interp.attach import Edit, attach
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.interventions import run, zero
from headatlas.interp.resume import find_blocks
from headatlas.interp.sites import attention_sites
from headatlas.interp.weights import head_weights

from ..conftest import DECODER
from .inline_models import build_inline

IDS = torch.arange(2 * 12).reshape(2, 12) * 7 % 90 + 3
MASK = torch.ones_like(IDS)
MASK[1, :4] = 0


@pytest.fixture
def albert():
    """Three layers of the same weights."""
    config = AutoConfig.for_model(
        "albert", **{**DECODER, "num_key_value_heads": 4, "num_hidden_layers": 3},
        embedding_size=16,
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForMaskedLM.from_config(config, attn_implementation="eager").eval()


@pytest.fixture
def looped(tiny):
    """A causal model whose layers are one module."""
    model = tiny("llama")
    model.model.layers[1] = model.model.layers[0]
    return model


def seen(model, **inputs):
    calls = []
    with torch.no_grad(), attach(model, observers=[calls.append]):
        output = model(**inputs)
    return calls, output


class TestAddresses:
    def test_a_site_for_each_time(self, albert):
        sites = attention_sites(albert)
        assert [(site.layer, site.call) for site in sites] == [(0, 0), (1, 1), (2, 2)]
        assert len({site.module for site in sites}) == 1
        assert len(set(sites)) == 3

    def test_patterns_are_the_models_own(self, albert):
        calls, output = seen(albert, input_ids=IDS, attention_mask=MASK, output_attentions=True)
        with torch.no_grad():
            plain = albert(input_ids=IDS, attention_mask=MASK, output_attentions=True)
        live = MASK.bool()
        torch.testing.assert_close(output.logits[live], plain.logits[live])
        assert [call.site.layer for call in calls] == [0, 1, 2]
        for call, pattern in zip(calls, plain.attentions, strict=True):
            rows = live[:, None].expand(-1, 4, -1)
            torch.testing.assert_close(call.pattern[rows], pattern[rows])
        cache = capture(albert, None, IDS, names_filter=["pattern", "z"])
        assert not torch.equal(cache["pattern", 0], cache["pattern", 2])

    def test_an_edit_of_one_layer_leaves_the_others(self, albert):
        """The second layer's head is cut out by hand, in the second run of the module."""
        module = albert.get_submodule(attention_sites(albert)[0].module)
        runs = []

        def cut(dense, args):
            runs.append(0)
            x = args[0].clone()
            x[..., 8:16] *= len(runs) != 2
            return (x,)

        plain = albert(IDS).logits
        handle = module.dense.register_forward_pre_hook(cut)
        with torch.no_grad():
            wanted = albert(IDS).logits
        handle.remove()
        assert len(runs) == 3
        with torch.no_grad():
            torch.testing.assert_close(run(albert, IDS, zero("L1H1"))[0], wanted)
        assert (wanted - plain).abs().max() > 1e-4

    def test_weights_are_those_of_the_module(self, albert):
        weights = head_weights(albert)
        assert len(weights) == 3
        assert all(one.exact for one in weights.values())
        assert torch.equal(weights[0].W_V, weights[2].W_V)
        assert attention_sites(albert)[0].module not in weights  # it names three sites

    def test_a_class_that_attends_itself(self):
        model = build_inline("gpt_neo")
        model.transformer.h[1] = model.transformer.h[0]
        calls, output = seen(model, input_ids=IDS, use_cache=False)
        assert [(c.site.layer, c.site.call, c.site.inline) for c in calls] == [
            (0, 0, True), (1, 1, True),
        ]  # fmt: skip
        assert torch.equal(output.logits, model(IDS, use_cache=False).logits)


class TestTurns:
    def test_begin_anew_in_each_run(self, looped):
        layers = []
        with torch.no_grad(), attach(looped, observers=[lambda c: layers.append(c.site.layer)]):
            cache = looped.generate(IDS[:1], max_new_tokens=3, use_cache=False, pad_token_id=0)
            looped.model(IDS)
        assert cache.shape[1] == 15
        assert layers == [0, 1] * 4

    def test_begin_anew_after_a_run_that_failed(self, looped):
        layers, fails = [], [True]

        def note(call):
            layers.append(call.site.layer)
            if call.site.layer == 0 and fails:
                fails.pop()
                raise RuntimeError("stop")

        with torch.no_grad(), attach(looped, observers=[note]):
            with pytest.raises(RuntimeError, match="stop"):
                looped(IDS)
            with pytest.raises(InputError, match="Run the model itself"):
                looped.model.layers[0].self_attn(
                    torch.zeros(1, 3, 32), looped.model.rotary_emb(IDS, torch.arange(3)[None])
                )
            looped(IDS)
        assert layers == [0, 0, 1]

    def test_are_counted_apart_in_nested_blocks_and_threads(self, looped):
        inner, outer, other = [], [], []

        def elsewhere():
            with torch.no_grad(), attach(looped, observers=[lambda c: other.append(c.site.layer)]):
                looped(IDS)

        def note(call):
            outer.append(call.site.layer)
            if call.site.layer == 0:  # in the middle of this run
                thread = threading.Thread(target=elsewhere)
                thread.start()
                thread.join()

        with torch.no_grad(), attach(looped, observers=[note]):
            with attach(looped, observers=[lambda c: inner.append(c.site.layer)]):
                looped(IDS)
            looped(IDS)
        assert (inner, outer, other) == ([0, 1], [0, 1] * 2, [0, 1] * 2)

    def test_more_of_them_than_surveyed_are_refused(self, looped):
        attention_sites(looped)
        own = looped.model.layers[1].forward
        looped.model.layers[1].forward = lambda x, **options: own(own(x, **options), **options)
        with pytest.raises(InputError, match="attends more often here than when the model was"):
            seen(looped, input_ids=IDS)

    def test_nothing_stays_on_the_model(self, looped):
        before = [{*module.__dict__} for module in looped.modules()]
        seen(looped, input_ids=IDS)
        assert [{*module.__dict__} for module in looped.modules()] == before
        for module in looped.modules():
            assert not module._forward_hooks
            assert not module._forward_hooks_always_called
            assert not module._forward_pre_hooks

    def test_an_order_that_changes_is_refused(self, tiny):
        class Alternating(nn.Module):
            """Two modules that take turns in being first."""

            def __init__(self, model):
                super().__init__()
                self.model, self.runs = model, 0

            def forward(self, x, **options):
                self.runs += 1
                first, second = self.model[:: 1 if self.runs % 2 else -1]
                return second(first(first(x, **options), **options), **options)

        model = tiny("llama")
        first, second = model.model.layers
        second.load_state_dict(first.state_dict())  # so that the output tells nothing
        model.model.layers = nn.ModuleList([Alternating(model.model.layers)])
        with pytest.raises(
            InputError, match=r"in an order that does not tell|beside the calls that hooks see"
        ):
            attention_sites(model)

    def test_another_order_later_is_refused_there(self, tiny):
        class Choosing(nn.Module):
            """Which of two modules is first depends on the text."""

            def __init__(self, a, b):
                super().__init__()
                self.a, self.b = a, b

            def forward(self, x, **options):
                first, second = (self.a, self.b) if len(x) > 1 else (self.b, self.a)
                for layer in (first, second, first, second):
                    x = layer(x, **options)
                return x

        model = tiny("llama")
        model.model.layers = nn.ModuleList([Choosing(*model.model.layers)])
        sites = attention_sites(model)  # of two texts
        assert [(site.layer, site.call) for site in sites] == [(0, 0), (1, 0), (2, 1), (3, 1)]
        with attach(model):
            model(IDS.expand(2, -1), use_cache=False)
            with pytest.raises(InputError, match="in another order among the modules"):
                model(IDS[:1], use_cache=False)


class TestWhatNeedsLayersOfTheirOwn:
    def test_removal_is_refused(self, looped):
        message = "runs several times in a forward pass of this LlamaForCausalLM, so a head cannot"
        with pytest.raises(InputError, match=re.escape(message)):
            remove_heads(looped, ["L0H0"])

    def test_runs_are_not_resumed_between_them(self, looped, tiny):
        assert find_blocks(looped, attention_sites(looped)) is None
        assert find_blocks(tiny("llama"), attention_sites(tiny("llama"))) is not None

    def test_an_edit_names_its_site(self, looped):
        sites, acted = attention_sites(looped), []
        edit = Edit("z", lambda call, z: acted.append(call.site) or z, frozenset(sites[1:]))
        with torch.no_grad(), attach(looped, edits=[edit]):
            looped(IDS)
        assert acted == [sites[1]]
