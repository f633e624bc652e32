"""Hybrids: their softmax layers are sites, what else they call attention is told from it."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface

from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError
from headatlas.interp.frames import WITHIN_TOKENS
from headatlas.interp.interventions import run, zero
from headatlas.interp.sites import attention_sites

from ..bench.small_models import small_model

IDS = torch.arange(2 * 12).reshape(2, 12) * 7 % 90 + 3


@pytest.fixture
def minimax():
    """A layer of softmax attention, then one of "lightning" attention, which carries a state."""
    return small_model("minimax", "decoder")


def as_linear(model, forward):
    """The model with another computation in its linear layer."""
    layer = model.model.layers[1].self_attn
    layer.__class__ = type("OtherAttention", (type(layer),), {"forward": forward})
    return model


class TestLinearLayers:
    @pytest.mark.parametrize("family", ["minimax", "kimi_linear", "bailing_hybrid"])
    def test_are_no_sites_and_the_others_are(self, family):
        model = small_model(family, "decoder")
        kinds = model.config.layer_types
        wanted = [i for i, kind in enumerate(kinds) if kind != "linear_attention"]
        sites = attention_sites(model)
        assert 0 < len(sites) < len(kinds)
        assert [int(site.module.split(".")[2]) for site in sites] == wanted

    def test_patterns_are_the_models_own(self, minimax):
        calls = []
        with torch.no_grad(), attach(minimax, observers=[calls.append]):
            output = minimax(IDS, use_cache=False)
        with torch.no_grad():
            plain = minimax(IDS, use_cache=False, output_attentions=True)
        torch.testing.assert_close(output.logits, plain.logits)
        (call,) = calls
        torch.testing.assert_close(call.pattern, plain.attentions[0])

    def test_a_head_of_a_softmax_layer_cut_by_hand(self, minimax):
        def cut(_, args):
            return (torch.cat([torch.zeros_like(args[0][..., :8]), args[0][..., 8:]], -1),)

        handle = minimax.model.layers[0].self_attn.o_proj.register_forward_pre_hook(cut)
        with torch.no_grad():
            wanted = minimax(IDS, use_cache=False).logits
        handle.remove()
        with torch.no_grad():
            torch.testing.assert_close(run(minimax, IDS, zero("L0H0"))[0], wanted)

    def test_one_that_takes_a_softmax_is_no_linear_one(self):
        """The config's word alone counts for nothing, however the softmax is written."""

        def fused(self, hidden_states, *_, **__):
            q, k, v = self.qkv_proj(hidden_states).unflatten(-1, (-1, 24)).mT.chunk(3, 2)
            z = functional.scaled_dot_product_attention(*(x.permute(0, 3, 1, 2) for x in (q, k, v)))
            return self.out_proj(z.transpose(1, 2).flatten(2)), None

        def plain(self, hidden_states, *_, **__):
            x = self.qkv_proj(hidden_states)[..., :32]
            return self.out_proj((x @ x.mT).softmax(-1) @ x), None

        with pytest.raises(InputError, match=r"not seen: model\.layers\.1\.self_attn\."):
            attention_sites(as_linear(small_model("minimax", "decoder"), fused))
        sites = attention_sites(as_linear(small_model("minimax", "decoder"), plain))
        assert [(site.n_heads, site.inline) for site in sites] == [(4, True), (1, True)]

    def test_one_of_which_the_config_says_nothing_is_refused(self, tiny):
        model = tiny("llama")
        model.model.layers[1].self_attn = LinearAttention(32)
        with pytest.raises(InputError, match=r"not seen: model\.layers\.1\.self_attn\."):
            attention_sites(model)
        model.config.layer_types = ["full_attention", "linear_attention"]
        assert len(attention_sites(model)) == 1


class LinearAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden_states, **_):
        q, k, v = self.qkv(hidden_states).chunk(3, -1)
        return self.out((q @ k.mT).tril() @ v), None


class OverDepth(nn.Module):
    """Every token chooses among the states that it had; nothing goes from token to token."""

    is_causal = False

    def __init__(self, config):
        super().__init__()
        self.config, self.query = config, nn.Parameter(torch.randn(1, config.hidden_size))

    def forward(self, states):
        x = torch.stack(states, 2)
        q = self.query.expand(*x.shape[:2], -1, -1)
        own = AttentionInterface().get_interface(self.config._attn_implementation, eager)
        return own(self, q, x, x, None, scaling=0.2)[0].transpose(1, 2).flatten(2)


class OverPooled(OverDepth):
    """Heads where `OverDepth` has tokens: from one place to two halves of the sequence."""

    def forward(self, states):
        x = states[-1].unflatten(-1, (8, -1)).transpose(1, 2)
        keys = torch.stack([x[:, :, ::2].mean(2), x[:, :, 1::2].mean(2)], 2)
        own = AttentionInterface().get_interface(self.config._attn_implementation, eager)
        z = own(self, keys[:, :, :1], keys, keys, None, scaling=0.2)[0]
        return states[-1] + z.flatten(2)


def eager(module, q, k, v, mask, *, scaling, **_):
    a = (q @ k.mT * scaling).softmax(-1)
    return (a @ v).transpose(1, 2), a


def with_depth(model, part):
    """The model with such a module after its first layer."""
    first = model.model.layers[0]
    first.part, own = part(model.config), first.forward

    def forward(hidden_states, **options):
        return first.part([hidden_states, own(hidden_states, **options)])

    first.forward = forward
    return model


class TestAttentionWithinTokens:
    def test_is_no_site_and_left_as_it_is(self, tiny):
        model = with_depth(tiny("llama", attn="eager"), OverDepth)
        with torch.no_grad():
            plain = model(IDS).logits
        sites = attention_sites(model)
        assert [site.module[-18:] for site in sites] == [
            "layers.0.self_attn", "layers.1.self_attn",
        ]  # fmt: skip
        assert model.model.layers[0].part in WITHIN_TOKENS
        calls = []
        with torch.no_grad(), attach(model, observers=[calls.append]):
            torch.testing.assert_close(model(IDS).logits, plain)
        assert [call.site for call in calls] == [*sites]

    def test_what_only_looks_like_it_is_refused(self, tiny):
        """Eight heads on the eight tokens of the probe: another length tells them apart."""
        model = with_depth(tiny("llama", attn="eager"), OverPooled)
        with pytest.raises(InputError, match=r"part attends from 1 places to 2, of 8 tokens"):
            attention_sites(model)
        assert model.model.layers[0].part not in WITHIN_TOKENS


class TestPaddingThatReachesTokens:
    """RecurrentGemma's recurrent layers take no mask: a padded query's output goes on to tokens."""

    @pytest.fixture
    def model(self):
        return small_model("recurrent_gemma", "decoder")

    def test_on_the_left_is_refused(self, model):
        assert len(attention_sites(model)) == 1
        mask = torch.ones_like(IDS)
        mask[1, :3] = 0
        with attach(model), pytest.raises(InputError, match=r"see no key.*Pad on the right"):
            model(IDS, attention_mask=mask)
        model(IDS, attention_mask=mask)  # alone it runs as ever

    def test_on_the_right_and_none_are_exact(self, model):
        mask = torch.ones_like(IDS)
        mask[1, -3:] = 0
        for given in (mask, None):
            with torch.no_grad():
                plain = model(IDS, attention_mask=given, use_cache=False).logits
                with attach(model):
                    seen = model(IDS, attention_mask=given, use_cache=False).logits
            live = torch.ones_like(mask).bool() if given is None else given.bool()
            torch.testing.assert_close(seen[live], plain[live], rtol=1e-5, atol=1e-5)

    def test_generation_goes_on_as_it_would(self, model):
        options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
        alone = model.generate(IDS, **options)
        with attach(model, observers=[lambda call: call.pattern]):
            assert torch.equal(model.generate(IDS, **options), alone)
