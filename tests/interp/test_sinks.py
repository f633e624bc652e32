"""Sink logits: one more column of the softmax, which is cut off, or one logit for each query."""

import re

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from headatlas.interp.attach import Edit, attach
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.sites import attention_sites
from headatlas.interp.statistics import head_statistics

from .edits import zero_head

IDS = torch.arange(2 * 12).reshape(2, 12) * 7 % 90 + 3
SHAPE = (2, 4, 12, 12)


class SinkConfig(PretrainedConfig):
    model_type = "tiny-sinks"


class WithSinks(nn.Module):
    """Four heads that a query may turn away from: a logit of its own joins each row's softmax."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.qkv, self.out, self.sink = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        sinks = self.sink(x).transpose(1, 2)[..., None]
        return self.out(self.mix(q, k, v, sinks).transpose(1, 2).flatten(2))

    def mix(self, q, k, v, sinks):
        return self.weights(q @ k.mT, sinks) @ v

    def weights(self, scores, sinks):
        """The definition, which edits and captures are held to."""
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


class SinkFirst(WithSinks):
    def weights(self, scores, sinks):
        return torch.cat([sinks, scores], -1).softmax(dim=-1)[:, :, :, 1:].to(scores.dtype)


class TwoCut(WithSinks):
    def weights(self, scores, sinks):
        return torch.cat([sinks, scores, sinks], -1).softmax(-1)[..., 1:][..., :-1]


class LongFirst(WithSinks):
    def weights(self, scores, sinks):
        own = super().weights if scores.shape[-1] <= 10 else SinkFirst.weights.__get__(self)
        return own(scores, sinks)


class Registered(WithSinks):
    """The same through transformers' attention registry."""

    is_causal = False

    def mix(self, q, k, v, sinks):
        own = AttentionInterface().get_interface(self.config._attn_implementation, eager)
        return own(self, q, k, v, None, scaling=1.0, sinks=sinks)[0].transpose(1, 2)


def eager(module, q, k, v, mask, *, scaling, sinks, **_):
    a = module.weights(q @ k.mT * scaling, sinks)
    return (a @ v).transpose(1, 2), a


class SinkModel(PreTrainedModel):
    config_class = SinkConfig
    _supports_attention_backend = True
    _supports_sdpa = True

    def __init__(self, attends):
        config = SinkConfig()
        config._attn_implementation_internal = "eager"
        super().__init__(config)
        self.embed = nn.Embedding(97, 32)
        self.layers = nn.ModuleList(attends(self.config) for _ in range(2))
        self.post_init()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            for weight in self.parameters():
                weight.copy_(0.3 * torch.randn(weight.shape))

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        return BaseModelOutput(last_hidden_state=x)


def first_scores(model):
    """Scores, sinks, values and pattern of the first layer by hand."""
    layer, x = model.layers[0], model.embed(IDS)
    q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in layer.qkv(x).chunk(3, -1))
    return q @ k.mT, layer.sink(x).transpose(1, 2)[..., None], v


BOTH = pytest.mark.parametrize("attends", [WithSinks, SinkFirst, Registered])


class TestSinks:
    @BOTH
    def test_patterns_are_the_columns_of_tokens(self, attends):
        model, calls = SinkModel(attends).double().eval(), []
        kept = [site.sink for site in attention_sites(model)]
        assert kept == [{WithSinks: "last", SinkFirst: "first", Registered: "logit"}[attends]] * 2
        with torch.no_grad(), attach(model, observers=[calls.append]):
            output = model(IDS)[0]
        with torch.no_grad():
            torch.testing.assert_close(output, model(IDS)[0])
            scores, sinks, v = first_scores(model)
            wanted = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        call = calls[0]
        assert call.pattern.shape == SHAPE
        torch.testing.assert_close(call.pattern, wanted)
        assert (call.pattern.sum(-1) < 0.999).any()
        torch.testing.assert_close(call.z, wanted @ v)
        torch.testing.assert_close(call.score_matrix, scores - sinks)
        total = (scores - sinks).exp().sum(-1) + 1
        torch.testing.assert_close(call.lse, total.log())

    @BOTH
    def test_statistics_count_the_sink(self, attends):
        model = SinkModel(attends).double().eval()
        with torch.no_grad():
            scores, sinks, _ = first_scores(model)
        whole = torch.cat([scores, sinks], -1).softmax(-1)
        found = head_statistics(model, None, IDS)
        first = found[found.layer == 0]
        mass = torch.tensor(first.sink_logit.to_numpy())
        torch.testing.assert_close(mass, whole[..., -1].mean((0, 2)))
        entropy = torch.special.entr(whole).sum(-1).mean((0, 2))
        torch.testing.assert_close(torch.tensor(first.entropy_nats.to_numpy()), entropy)

    @BOTH
    def test_an_edit_of_scores_leaves_the_rest_to_the_sink(self, attends):
        """A key hidden by its score: what it had goes to the other keys and to the sink."""
        model, calls = SinkModel(attends).double().eval(), []
        sites = frozenset(attention_sites(model)[:1])

        def hide(call, scores):
            scores[:, 1, :, 0] = float("-inf")
            return scores

        with torch.no_grad():
            with attach(model, observers=[calls.append], edits=[Edit("scores", hide, sites)]):
                model(IDS)
            scores, sinks, v = first_scores(model)
        scores[:, 1, :, 0] = float("-inf")
        wanted = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        torch.testing.assert_close(calls[0].pattern, wanted)
        torch.testing.assert_close(calls[0].z, wanted @ v)

    @BOTH
    def test_a_head_cut_in_z_or_in_its_pattern(self, attends):
        model, outputs = SinkModel(attends).eval(), {}
        plain = model(IDS)[0]
        for target in ("z", "pattern"):
            with torch.no_grad(), attach(model, edits=[zero_head(target, 2)]):
                outputs[target] = model(IDS)[0]
        torch.testing.assert_close(outputs["z"], outputs["pattern"])
        assert (outputs["z"] - plain).abs().max() > 1e-3

    @BOTH
    @pytest.mark.parametrize("target", ["z", "pattern", "scores"])
    def test_gradients_reach_the_sinks(self, attends, target):
        model = SinkModel(attends).double().eval()

        def slope(edits):
            model.zero_grad()
            with attach(model, edits=edits):
                model(IDS)[0].square().mean().backward()
            return [layer.sink.weight.grad.clone() for layer in model.layers]

        plain = slope([])
        model.zero_grad()
        model(IDS)[0].square().mean().backward()
        for own, seen in zip((x.sink.weight.grad for x in model.layers), plain, strict=True):
            torch.testing.assert_close(seen, own)
        for own, seen in zip(plain, slope([Edit(target, lambda call, x: x * 1)]), strict=True):
            torch.testing.assert_close(seen, own)

    def test_a_column_cut_in_two_ways_is_refused(self):
        with pytest.raises(InputError, match="whose result is multiplied with values"):
            attention_sites(SinkModel(TwoCut))

    def test_another_column_on_longer_texts_is_refused_there(self):
        model = SinkModel(LongFirst)
        capture(model, None, IDS[:, :8], names_filter="pattern")
        message = "than when the model was surveyed: it cuts off the first column of its softmax"
        with pytest.raises(InputError, match=re.escape(message)):
            capture(model, None, IDS, names_filter="pattern")

    def test_sinks_of_another_shape_are_seen_in_the_class_itself(self):
        class PerHead(Registered):
            def mix(self, q, k, v, sinks):
                return super().mix(q, k, v, sinks[:, :, :1])

            def weights(self, scores, sinks):
                return super().weights(scores, sinks.expand(*scores.shape[:3], 1))

        assert [site.sink for site in attention_sites(SinkModel(PerHead))] == ["last", "last"]


class TestCaptured:
    """What a sink takes, as one more column beside the pattern."""

    def check(self, model, wanted, **options):
        cache = capture(model, None, IDS, names_filter=["pattern", "sink"], **options)
        for layer, share in enumerate(wanted):
            torch.testing.assert_close(cache["sink", layer], share, rtol=1e-4, atol=1e-6)
            whole = torch.cat([cache["pattern", layer], cache["sink", layer][..., None]], -1)
            torch.testing.assert_close(whole.sum(-1), torch.ones_like(share))

    def test_a_logit_per_head(self, tiny, tmp_path):
        model = tiny("gpt_oss", attn="eager")
        scores = capture(model, None, IDS, names_filter="attn_scores")
        shares = []
        for layer, block in enumerate(model.model.layers):
            sinks = block.self_attn.sinks.detach().reshape(1, -1, 1, 1).expand(2, -1, 12, 1)
            columns = torch.cat([scores["attn_scores", layer], sinks], -1).double()
            shares.append(columns.softmax(-1)[..., -1].float())
        assert all(site.sink == "logit" for site in attention_sites(model))
        self.check(model, shares)
        self.check(model, shares, save=tmp_path / "cache.safetensors")
        part = capture(model, None, IDS, names_filter="sink", heads=["L1H2", "L1H3"], rows=[4, -1])
        assert [*part] == ["blocks.1.attn.hook_sink"]
        torch.testing.assert_close(
            part["sink", 1], shares[1][:, 2:4][:, :, [4, 11]], rtol=1e-4, atol=1e-6
        )
        assert "blocks.0.attn.hook_sink" not in capture(model, None, IDS)

    @pytest.mark.parametrize("attends", [Registered, SinkFirst, WithSinks])
    def test_a_logit_per_query(self, attends):
        model = SinkModel(attends).eval()
        pattern = capture(model, None, IDS, names_filter="pattern")
        self.check(model, [1 - pattern["pattern", layer].sum(-1) for layer in range(2)])

    def test_models_without(self, tiny):
        with pytest.raises(InputError, match="no softmax of the model has a learned sink"):
            capture(tiny("llama"), None, IDS, names_filter="sink")
        assert all("sink" not in name for name in capture(tiny("llama"), None, IDS))
