"""A model copied or saved while attach holds it, and a model under autocast."""

import copy
import io

import pytest
import torch

from headatlas.interp.attach import Edit, attach
from headatlas.interp.sites import attention_sites

from .edits import IDS, assert_same_state, logits, state, zero_head

SAMPLE = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}


class TestCopies:
    @pytest.mark.parametrize("part", ["whole", "base"])
    def test_works_after_the_block_and_carries_nothing(self, tiny, part):
        model, calls = tiny("llama"), []
        own = logits(model)
        before = state(model)
        with attach(model, observers=[calls.append], edits=[zero_head("z", 0)]):
            twin = copy.deepcopy(model if part == "whole" else model.model)
            edited = logits(model)
        assert_same_state(before, state(model))
        assert torch.equal(logits(model), own)
        seen = len(calls)
        twin.set_attn_implementation("sdpa")
        result = logits(twin) if part == "whole" else model.lm_head(twin(IDS)[0])
        torch.testing.assert_close(result, own, rtol=0, atol=0)
        assert len(calls) == seen
        fresh = tiny("llama")
        fresh = fresh if part == "whole" else fresh.model
        assert state(twin)[1] == state(fresh)[1]
        with attach(twin, edits=[zero_head("z", 0)]):
            result = logits(twin) if part == "whole" else model.lm_head(twin(IDS)[0])
        assert torch.equal(result, edited)

    @pytest.mark.parametrize("cache", ["dynamic", "static"])
    def test_a_copy_generates_as_the_original(self, tiny, cache):
        model = tiny("llama")
        options = {**SAMPLE, "cache_implementation": cache}
        own = model.generate(IDS, **options)
        with attach(model):
            twin = copy.deepcopy(model)
        twin.set_attn_implementation("sdpa")
        assert torch.equal(twin.generate(IDS, **options), own)
        assert torch.equal(model.generate(IDS, **options), own)

    def test_a_users_own_preparation_of_masks_is_copied(self, tiny):
        model = tiny("llama")

        def mine(*args, **kwargs):
            raise RuntimeError

        model.create_masks_for_generate = mine
        with attach(model):
            twin = copy.deepcopy(model)
        assert twin.create_masks_for_generate is mine

    def test_a_copy_of_a_copy(self, tiny):
        model = tiny("llama")
        own = logits(model)
        with attach(model):
            twin = copy.deepcopy(model)
        again = copy.deepcopy(twin)
        again.set_attn_implementation("sdpa")
        assert torch.equal(logits(again), own)
        assert twin.config._attn_implementation == "headatlas"

    def test_saved_inside_a_block(self, tiny):
        model = tiny("llama")
        own = model.state_dict()
        with attach(model, edits=[zero_head("z", 0)]), io.BytesIO() as file:
            inside = model.state_dict()
            torch.save(inside, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=True)
        assert list(inside) == list(own)
        assert list(loaded) == list(own)
        assert all(torch.equal(loaded[name], own[name]) for name in own)

    def test_a_checkpoint_written_inside_a_block(self, tiny, tmp_path):
        model = tiny("llama")
        own = logits(model)
        with attach(model):
            model.save_pretrained(tmp_path)
        assert "headatlas" not in (tmp_path / "config.json").read_text()
        back = type(model).from_pretrained(tmp_path).eval()
        assert torch.equal(logits(back), own)


@torch.no_grad()
def first(model):
    """Logits, or the last hidden states of a model without a head."""
    return model(IDS)[0]


class TestAutocast:
    """q and k leave RoPE in float32 while v is narrow; attention itself takes all narrow."""

    @pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_oss", "deepseek_v3", "bert"])
    @pytest.mark.parametrize("surveyed", ["before", "inside"])
    def test_as_the_models_own(self, tiny, family, surveyed):
        model = tiny(family, attn="eager" if family == "gpt_oss" else "sdpa")
        plain, calls = first(model), []
        if surveyed == "before":
            attention_sites(model)

        def look(call):
            calls.append((call.q, call.k, call.v, call.pattern, call.probe(entropy=True)))

        with torch.autocast("cpu", dtype=torch.bfloat16):
            own = first(model)
            with attach(model, observers=[look]):
                seen = first(model)
        assert seen.dtype == own.dtype == (torch.float32 if family == "bert" else torch.bfloat16)
        limit = 0.02 * own.abs().max()  # bfloat16 has 8 bits
        assert (seen - own).abs().max() <= limit
        for q, k, v, pattern, stats in calls:
            assert {q.dtype, k.dtype, v.dtype, pattern.dtype} == {torch.bfloat16}
            assert stats.entropy.dtype == torch.float32
        assert len(calls) == 2
        with attach(model):
            torch.testing.assert_close(first(model), plain, rtol=0, atol=1e-4)

    @pytest.mark.parametrize("target", ["q", "k", "v", "scores", "pattern", "z"])
    def test_every_target_is_edited_and_has_gradients(self, tiny, target):
        model = tiny("llama")
        factor = torch.tensor(0.5, requires_grad=True)

        def change(_, value):
            hidden = value == float("-inf")
            smaller = value.masked_fill(hidden, 0) * factor.to(value.dtype)
            return torch.where(hidden, value, smaller)

        with torch.autocast("cpu", dtype=torch.bfloat16):
            own = model(IDS).logits
            with attach(model, edits=[Edit(target, change)]):
                edited = model(IDS).logits
        edited.float().square().sum().backward()
        assert (edited - own).abs().max() > 0.02 * own.abs().max()
        assert factor.grad.abs() > 0
