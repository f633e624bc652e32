"""Models that mix transformers' attention with layers of ours, or call a layer twice."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.interventions import gate, intervene, run, zero
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig
from headatlas.interp.layers.hooks import attach_layers
from headatlas.interp.sites import attention_sites
from headatlas.interp.tokens import Tokens
from headatlas.interp.watch import watch_modules

from .edits import IDS

SMALL = AttentionConfig(d_model=8, n_heads=2)
X = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))


class InModel(nn.Module):
    """A layer of ours under the signature of a transformers attention module."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states, *_, **__):
        return self.layer(hidden_states), None


class Calls(nn.Module):
    """Two layers, called in a given order."""

    def __init__(self, *order):
        super().__init__()
        self.layers = nn.ModuleList(HookedAttention(SMALL, seed=i) for i in range(2))
        self.order = order

    def forward(self, x):
        for index in self.order:
            x = x + self.layers[index](x)
        return x


class Decodes(nn.Module):
    """Goes through a sequence token by token in one forward pass."""

    def __init__(self):
        super().__init__()
        self.layer = HookedAttention(SMALL)

    def forward(self, x):
        outs, cache = [], None
        for token in x.split(1, dim=1):
            out, cache = self.layer.decode(token, cache)
            outs.append(out)
        return torch.cat(outs, 1)


class TestHybrids:
    def test_a_model_with_one_layer_replaced_is_refused(self, tiny):
        """Also when it was surveyed before; attach_layers sees the layer."""
        model = tiny("llama")
        attention_sites(model)
        attention = model.model.layers[0].self_attn
        layer = HookedAttention.from_transformers(attention, rotary=model.model.rotary_emb)
        own = model(IDS).logits
        model.model.layers[0].self_attn = InModel(layer)
        torch.testing.assert_close(model(IDS).logits, own)
        with pytest.raises(InputError, match=r"holds HookedAttention .*layers\.0.*attach_layers"):
            attention_sites(model)
        with pytest.raises(InputError, match="attach_layers"):
            run(model, IDS, zero("L0H0"))
        seen = []
        with attach_layers(model, observers=[lambda call: seen.append(call.site.module)]):
            model(IDS)
        assert seen == ["model.layers.0.self_attn.layer"]

    def test_a_module_of_both_is_refused(self, tiny):
        both = nn.ModuleDict({"ours": HookedAttention(SMALL), "theirs": tiny("llama")})
        with pytest.raises(InputError, match="both a transformers model"):
            run(both, IDS, zero("L0H0"))
        with (
            pytest.raises(InputError, match="both a transformers model"),
            intervene(both, zero("L0H0")),
        ):
            pass


class TestUsedTwice:
    def test_in_one_forward_pass_is_refused(self):
        model = Calls(0, 1, 0)
        refused = pytest.raises(InputError, match=r"calls layers\.0 more than once")
        with attach_layers(model), refused:
            model(X)
        with pytest.raises(InputError, match=r"layers\.0 more than once"):
            run(model, X, zero("L0H0"))
        model(X)

    def test_in_several_is_not(self):
        """Also after a pass that failed, and called by itself."""
        model, seen = Calls(0, 1), []
        with attach_layers(model, observers=[lambda call: seen.append(call.site.layer)]):
            model(X)
            with pytest.raises(InputError):
                model(X[..., :5])
            model.layers[0](X)
            model.layers[0](X)
            model(X)
        assert seen == [0, 1, 0, 0, 0, 1]

    def test_going_on_decoding_is_not(self):
        model = Decodes()
        layer = model.layer
        with attach_layers(model, edits=[]):
            torch.testing.assert_close(model(X), layer(X))

    def test_nothing_stays_on_the_model_or_its_copy(self):
        model = Calls(0, 1)
        with attach_layers(model):
            twin = copy.deepcopy(model)
            further = copy.deepcopy(twin)
        for one in (model, twin, further):
            for part in one.modules():
                assert not part._forward_hooks
                assert not part._forward_pre_hooks
                assert not part._forward_hooks_with_kwargs
                assert not part._forward_pre_hooks_with_kwargs


def test_a_copy_made_while_modules_are_watched_is_not_watched():
    model, seen = nn.Sequential(nn.Linear(2, 2)), []
    with watch_modules(model.modules(), lambda module, *_: seen.append(module)):
        twin = copy.deepcopy(model)
        twin(torch.zeros(1, 2))
        assert seen == []
        model(torch.zeros(1, 2))
    assert seen == [model[0], model]
    assert not twin._forward_hooks
    assert not twin[0]._forward_hooks


class Checkpointed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return checkpoint(self.inner, *args, use_reentrant=True, **kwargs)


class TestReentrantCheckpoints:
    """What they hide from a run with gradients is refused; without gradients they do no harm."""

    def test_layers(self):
        model, x = Checkpointed(HookedAttention(SMALL)), X.clone().requires_grad_()
        factor = torch.tensor(0.5, requires_grad=True)
        with pytest.raises(InputError, match="gradients are off where inner attends"):
            run(model, x, gate("L0H0", factor), grad=True)
        torch.testing.assert_close(
            run(model, x, gate("L0H0", 0.5)), run(model.inner, x, gate("L0H0", 0.5))
        )

    def test_models(self, tiny):
        model = tiny("gpt2")
        attention_sites(model)
        block = model.transformer.h[0]
        own = block.forward
        block.forward = lambda *args, **kwargs: checkpoint(
            lambda first: own(first, *args[1:], **kwargs), args[0], use_reentrant=True
        )
        with pytest.raises(InputError, match=r"gradients are off where transformer\.h\.0"):
            run(model, IDS, zero("L0H0"), grad=True)
        run(model, IDS, zero("L0H0"))


class TestCaptureUnderAutocast:
    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    def test_results_and_files(self, tiny, family, tmp_path):
        """Results are z W_O in the dtype attention had; a file holds what memory would."""
        model = tiny(family)
        wide = capture(model, None, IDS, names_filter=["result", "z", "pattern", "q"])
        with torch.autocast("cpu", torch.bfloat16):
            kept = capture(model, None, IDS, names_filter=list(wide))
            stored = capture(model, None, IDS, names_filter=list(wide), save=tmp_path / "c")
        for name, tensor in wide.items():
            assert kept[name].dtype == torch.bfloat16
            torch.testing.assert_close(kept[name].float(), tensor, atol=0.05, rtol=0.05)
            assert torch.equal(stored[name], kept[name])
            assert stored.n_bytes(name) == kept.n_bytes(name)


class TestRowsOfDecoders:
    def test_negative_rows_ask_the_decoders_padding(self, tiny):
        """The encoder's padding says nothing of a decoder that reads other tokens."""
        model = tiny("t5")
        mask = torch.ones_like(IDS, dtype=torch.bool)
        mask[0, -2:] = False
        tokens = Tokens(IDS, mask, [["a"] * 6] * 2, False)
        decoder = torch.ones(2, 3, dtype=torch.int64)
        named = ["dec.blocks.0.attn.hook_pattern", "cross.blocks.0.attn.hook_pattern"]
        cut = capture(model, None, tokens, names_filter=named, rows=[-1], decoder_ids=decoder)
        assert cut.rows == (2,)
        encoder = "enc.blocks.0.attn.hook_pattern"
        with pytest.raises(InputError, match="padding in sequence 0"):
            capture(model, None, tokens, names_filter=encoder, rows=[-1], decoder_ids=decoder)
