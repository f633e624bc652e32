"""Families that compute attention in their own code: seen there, edited there, otherwise alone."""

import copy
import re
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from headatlas.interp.attach import Edit, attach
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_base
from headatlas.interp.sites import attention_sites
from headatlas.interp.weights import head_weights
from headatlas.kernels.api import Match

from ..conftest import WINDOW
from .edits import zero_head
from .inline_models import DECODERS, ENCODERS, build_inline

ALL = [*DECODERS, *ENCODERS]
IDS = torch.arange(2 * 12).reshape(2, 12) * 7 % 90 + 3
PADDED = torch.ones_like(IDS)
PADDED[1, 9:] = 0


def seen(model, **inputs):
    """Every call of a run, in order, and the output."""
    calls = []
    with torch.no_grad(), attach(model, observers=[calls.append]):
        output = model(**inputs)
    return calls, output[0]


def own(family, **inputs):
    """The family's own output and patterns, as its eager code returns them."""
    model = build_inline(family, attn="eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    if family == "squeezebert":  # which returns its scores under that name
        return output[0], [scores.softmax(-1) for scores in output.attentions]
    return output[0], output.attentions


@pytest.mark.parametrize("family", ALL)
def test_patterns_are_the_models_own(family):
    model = build_inline(family)
    calls, output = seen(model, input_ids=IDS, attention_mask=PADDED)
    plain, patterns = own(family, input_ids=IDS, attention_mask=PADDED)
    live = PADDED.bool()
    torch.testing.assert_close(output[live], plain[live], rtol=1e-5, atol=2e-6)
    for call, pattern in zip(calls, patterns, strict=True):
        rows = live[:, None].expand(-1, pattern.shape[1], -1)
        torch.testing.assert_close(call.pattern[rows], pattern[rows], rtol=1e-5, atol=1e-6)
        assert call.pattern[1][..., :9, 9:].abs().max() == 0  # nothing on padding
        values = call.v.repeat_interleave(call.z.shape[1] // call.v.shape[1], 1)
        torch.testing.assert_close((call.pattern @ values)[rows], call.z[rows])
        torch.testing.assert_close(call.score_matrix.exp().sum(-1).log()[rows], call.lse[rows])


@pytest.mark.parametrize("family", ALL)
def test_statistics_follow_from_the_scores(family):
    calls, _ = seen(build_inline(family), input_ids=IDS, attention_mask=PADDED)
    place = torch.arange(12).expand(2, 12)
    for call in calls:
        found = call.probe([Match(place - 1, place)], entropy=True, top=True, received=True)
        pattern = call.pattern * PADDED[:, None, :, None]
        live = PADDED.bool()[:, None].expand_as(found.entropy)
        wanted = pattern.diagonal(-1, 2, 3)
        torch.testing.assert_close(found.mass[..., 1:, 0][live[..., 1:]], wanted[live[..., 1:]])
        entropy = torch.special.entr(pattern).sum(-1)
        torch.testing.assert_close(found.entropy[live], entropy[live], rtol=1e-4, atol=1e-5)
        assert torch.equal(found.top_key[live], pattern.argmax(-1)[live])


@pytest.mark.parametrize("family", ALL)
def test_a_head_cut_in_z_or_in_its_pattern(family):
    model = build_inline(family)
    plain, outputs = own(family, input_ids=IDS)[0], {}
    for target in ("z", "pattern"):
        with torch.no_grad(), attach(model, edits=[zero_head(target, 2)]):
            outputs[target] = model(input_ids=IDS)[0]
    assert torch.equal(outputs["z"], outputs["pattern"])
    assert (outputs["z"] - plain).abs().max() > 1e-3 * plain.abs().max()


@pytest.mark.parametrize("family", ["falcon", "bloom", "deberta-v2", "xlnet", "squeezebert"])
def test_edits_of_scores_and_values(family):
    """Hiding the first key of a head by its scores is its pattern without it, in proportion."""
    model = build_inline(family)
    before = seen(model, input_ids=IDS)[0][0]

    def hide(call, scores):
        scores[:, 1, 3:, 0] = float("-inf")
        return scores

    def double(call, v):
        return v * 2

    sites = frozenset(attention_sites(model)[:1])
    edits = [Edit("scores", hide, sites), Edit("v", double, sites)]
    calls = []
    with torch.no_grad(), attach(model, observers=[calls.append], edits=edits):
        model(input_ids=IDS)
    wanted = before.pattern.clone()
    wanted[:, 1, 3:, 0] = 0
    wanted[:, 1, 3:] /= wanted[:, 1, 3:].sum(-1, keepdim=True)
    torch.testing.assert_close(calls[0].pattern, wanted)
    values = before.v.repeat_interleave(wanted.shape[1] // before.v.shape[1], 1)
    torch.testing.assert_close(calls[0].z, wanted @ (2 * values))
    assert calls[0].edited


def test_values_told_apart_for_query_heads_that_share_them():
    model = build_inline("falcon")
    (site, *_) = attention_sites(model)
    assert (site.n_heads, site.n_kv_heads) == (4, 1)

    def silence_one(call, v):
        v = v.repeat_interleave(4, 1)
        v[:, 2] = 0
        return v

    outputs = []
    for edit in (Edit("v", silence_one, frozenset({site})), zero_head("z", 2)):
        with torch.no_grad(), attach(model, edits=[edit]):
            outputs.append(model(input_ids=IDS)[0])
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("target", ["z", "pattern", "scores"])
def test_gradients_flow_through_edits(target):
    model = build_inline("falcon", dtype=torch.float64)
    gate = torch.ones(4, dtype=torch.float64, requires_grad=True)

    def loss(factor):
        def scale(call, value):
            hidden = value == float("-inf")
            return torch.where(hidden, value, value.masked_fill(hidden, 0) * factor[:, None, None])

        edit = Edit(target, scale)
        with attach(model, edits=[edit]):
            return model(input_ids=IDS[:1])[0].square().mean()

    loss(gate).backward()
    step = torch.zeros_like(gate)
    step[1] = 1e-6
    with torch.no_grad():
        slope = (loss(gate + step) - loss(gate - step)) / 2e-6
    torch.testing.assert_close(gate.grad[1], slope, rtol=1e-4, atol=1e-9)


class TestDecoding:
    @pytest.mark.parametrize("family", ["falcon", "bloom", "gpt_neo", "xglm", "mpt"])
    def test_cached_steps_see_the_rows_of_the_whole(self, family):
        model = build_inline(family)
        whole, _ = seen(model, input_ids=IDS)
        steps = []
        with torch.no_grad(), attach(model, observers=[steps.append]):
            cache = model(input_ids=IDS[:, :10], use_cache=True).past_key_values
            for place in (10, 11):
                model(input_ids=IDS[:, place : place + 1], past_key_values=cache, use_cache=True)
        for layer, place in ((0, 10), (1, 10), (0, 11), (1, 11)):
            call = steps[(place - 9) * len(whole) + layer]
            assert call.where.query == place
            row = whole[layer].pattern[:, :, place : place + 1, : place + 1]
            torch.testing.assert_close(call.pattern, row, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("family", ["falcon", "bloom"])
    def test_generation_goes_on_as_it_would(self, family):
        model = build_inline(family)
        options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
        alone = model.generate(IDS, **options)
        with attach(model, observers=[lambda call: call.pattern]):
            assert torch.equal(model.generate(IDS, **options), alone)

    def test_a_window(self):
        calls, _ = seen(build_inline("gpt_neo"), input_ids=IDS)
        everywhere, local = (call.pattern[0, 0] > 0 for call in calls)
        assert everywhere[-1].all()
        assert local[-1].sum() == WINDOW

    @pytest.mark.parametrize("family", ["falcon", "bloom", "xglm", "mpnet"])
    def test_left_padding(self, family):
        model = build_inline(family)
        mask = torch.ones_like(IDS[:1])
        mask[:, :3] = 0
        calls = []
        with attach(model, observers=[calls.append]):
            run_base(model, IDS[:1, 3:])
            run_base(model, IDS[:1], mask)
        half = len(calls) // 2
        for alone, padded in zip(calls[:half], calls[half:], strict=True):
            torch.testing.assert_close(
                padded.pattern[..., 3:, 3:], alone.pattern, rtol=1e-4, atol=1e-5
            )
            assert padded.pattern[..., 3:, :3].abs().max() == 0


class TestTheModelIsLeftAlone:
    def test_after_errors_and_nested_blocks(self):
        model = build_inline("falcon")
        before = {name: dict(m.__dict__) for name, m in model.named_modules()}
        implementation = model.config._attn_implementation

        def fail(call):
            raise RuntimeError("stop")

        stopped = pytest.raises(RuntimeError, match="stop")
        with stopped, attach(model), attach(model, observers=[fail]):
            model(input_ids=IDS)
        assert model.config._attn_implementation == implementation
        for name, module in model.named_modules():
            assert module.__dict__.keys() == before[name].keys(), name
        calls, _ = seen(model, input_ids=IDS)
        assert len(calls) == 2

    def test_nested_blocks_each_see_and_edit(self):
        model, outer, inner = build_inline("bloom"), [], []
        with torch.no_grad(), attach(model, observers=[outer.append], edits=[zero_head("z", 0)]):
            with attach(model, observers=[inner.append], edits=[zero_head("z", 1)]):
                model(input_ids=IDS)
            model(input_ids=IDS)
        assert (len(outer), len(inner)) == (4, 2)
        assert outer[0].z[:, :2].abs().max() == inner[0].z[:, :2].abs().max() == 0
        assert outer[2].z[:, 1].abs().max() > 0

    def test_a_copy_made_inside_runs_alone(self):
        model = build_inline("bloom")
        plain = own("bloom", input_ids=IDS)[0]
        with torch.no_grad(), attach(model, edits=[zero_head("z", 0)]):
            twin = copy.deepcopy(model)
            assert torch.equal(twin(input_ids=IDS)[0], plain)

    def test_a_thread_without_a_block_is_told(self):
        model, errors = build_inline("bloom"), []

        def run():
            try:
                model(input_ids=IDS)
            except InputError as error:
                errors.append(str(error))

        with attach(model, observers=[print]):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        assert "without an attach block of its own" in errors[0]


class TestQueriesAndKeys:
    def test_are_refused_by_name(self):
        model = build_inline("bloom")
        with pytest.raises(InputError, match="hook_q does not exist at transformer"):
            capture(model, None, IDS, names_filter="q")
        edit = Edit("k", lambda call, k: k)
        with (
            pytest.raises(InputError, match="an edit of k does not exist"),
            attach(model, edits=[edit]),
        ):
            pass

    def test_all_else_is_captured(self):
        model = build_inline("bloom")
        cache = capture(model, None, IDS, names_filter=lambda name: True)
        kinds = {name.rsplit("hook_", 1)[1] for name in cache}
        assert kinds == {"v", "attn_scores", "pattern", "z", "result"}
        weights = head_weights(model)[0]
        with torch.no_grad():
            outputs = []
            dense = model.get_submodule("transformer.h.0.self_attention.dense")
            handle = dense.register_forward_hook(lambda m, x, y: outputs.append(y))
            model(input_ids=IDS)
            handle.remove()
        torch.testing.assert_close(
            cache["result", 0].sum(2) + dense.bias, outputs[0], rtol=1e-4, atol=1e-5
        )
        assert weights.W_V is not None
        assert "q and k are not seen" in repr(weights.q.inexact)

    @pytest.mark.parametrize("family", ["falcon", "bloom", "gpt_neo", "deberta-v2", "mpnet"])
    def test_values_and_outputs_have_their_weights(self, family):
        for weights in head_weights(build_inline(family)).values():
            assert weights.v.exact
            assert weights.o.exact
            assert not weights.q.exact
            assert not weights.k.exact


class Alone(PretrainedConfig):
    model_type = "tiny-alone"


class Attends(nn.Module):
    """Four heads in four axes, everything written out; what subclasses change is in `mix`."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(self.mix(q, k, v).transpose(1, 2).flatten(2))

    def mix(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v


class Twice(Attends):
    def mix(self, q, k, v):
        return super().mix(q, k, v) - 0.5 * super().mix(k, q, v)


class Positions(Attends):
    def mix(self, q, k, v):
        places = torch.arange(q.shape[2], dtype=q.dtype)
        return (-(places[:, None] - places).abs()).expand(*q.shape[:2], -1, -1).softmax(-1) @ v


class Halved(Attends):
    def mix(self, q, k, v):
        return (0.5 * (q @ k.mT).softmax(-1)) @ v


class Pooled(Attends):
    def mix(self, q, k, v):
        k, v = (functional.avg_pool1d(x.flatten(0, 1).mT, 2).mT for x in (k, v))
        return super().mix(q, k.unflatten(0, q.shape[:2]), v.unflatten(0, q.shape[:2]))


class LongOther(Attends):
    def mix(self, q, k, v):
        return super().mix(q, k, v) if q.shape[2] <= 10 else q @ (k.mT @ v)


class LongTwice(Attends):
    def mix(self, q, k, v):
        once = super().mix(q, k, v)
        return once if q.shape[2] <= 10 else super().mix(once, k, v)


class AloneModel(PreTrainedModel):
    config_class = Alone

    def __init__(self, attends):
        super().__init__(Alone())
        self.embed, self.attention = nn.Embedding(97, 32), attends()
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids):
        return BaseModelOutput(last_hidden_state=self.attention(self.embed(input_ids)))


class TestInventedClasses:
    def test_one_that_ignores_the_registry_is_handled(self):
        model = AloneModel(Attends)
        (site,) = attention_sites(model)
        assert (site.module, site.n_heads, site.d_head, site.causal) == ("attention", 4, 8, False)
        ((call,), output) = seen(model, input_ids=IDS)
        with torch.no_grad():
            q, k, _ = model.attention.qkv(model.embed(IDS)).chunk(3, -1)
            q, k = (x.unflatten(-1, (4, 8)).transpose(1, 2) for x in (q, k))
        torch.testing.assert_close(call.pattern, (q @ k.mT).softmax(-1))
        assert torch.equal(output, model(IDS)[0])

    @pytest.mark.parametrize(
        ("attends", "why"),
        [
            (Twice, "attention takes several softmaxes over scores in one call, and which of them"),
            (Positions, "no softmax over scores whose result is multiplied with values was seen"),
            (Halved, "its pattern was changed between the softmax and the values"),
            (Pooled, "attention attends from 8 places to 4, of 8 tokens, so its rows and columns"),
        ],
    )
    def test_what_no_rule_tells_apart_is_refused(self, attends, why):
        with pytest.raises(InputError, match=why):
            attention_sites(AloneModel(attends))

    @pytest.mark.parametrize(
        ("attends", "why"),
        [
            (LongOther, "no softmax whose result was multiplied with values ran"),
            (LongTwice, "its softmax over (2, 4, 12, 12) was not expected"),
        ],
    )
    def test_one_that_changes_its_way_with_the_length_is_refused_there(self, attends, why):
        model = AloneModel(attends)
        assert len(seen(model, input_ids=IDS[:, :8])[0]) == 1
        message = f"attention attends here in another way than when the model was surveyed: {why}"
        with pytest.raises(InputError, match=re.escape(message)):
            seen(model, input_ids=IDS)
        model(IDS)  # alone it runs as ever
