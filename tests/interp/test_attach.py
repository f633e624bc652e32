import pytest
import torch

from headatlas.interp import frames as frames_module
from headatlas.interp import switch
from headatlas.interp.attach import Edit, attach
from headatlas.interp.errors import InputError
from headatlas.interp.hook_names import TARGETS
from headatlas.interp.interventions import gate, intervene, run, zero
from headatlas.interp.sites import attention_sites

from .edits import IDS, assert_same_state, logits, state


class TestState:
    @pytest.mark.parametrize("family", ["llama", "t5", "bart", "gemma3_text"])
    def test_untouched_after_use(self, tiny, family):
        model = tiny(family, attn="eager").train()
        next(model.children()).eval()  # a mixture of modes
        before, rng = state(model), torch.get_rng_state()
        with attach(model):
            assert "headatlas" in state(model)[0]
        assert_same_state(before, state(model))
        assert torch.equal(rng, torch.get_rng_state())

    @pytest.mark.parametrize("where", ["observer", *TARGETS, "body", "forward"])
    def test_untouched_after_an_exception(self, tiny, where):
        model = tiny("llama")
        own = logits(model)
        before = state(model)

        def fail(*_):
            raise RuntimeError("stop here")

        observers = [fail] if where == "observer" else []
        edits = [Edit(where, fail)] if where in TARGETS else []

        def run():
            with attach(model, observers=observers, edits=edits):
                logits(model, torch.tensor([[10**6]]) if where == "forward" else IDS)
                if where == "body":
                    fail()

        with pytest.raises((RuntimeError, IndexError)):
            run()
        assert_same_state(before, state(model))
        assert switch._HELD == {}
        assert frames_module._FRAMES.get() == ()
        assert torch.equal(logits(model), own)

    @pytest.mark.parametrize("target", TARGETS)
    @pytest.mark.parametrize("head", ["L0H1", "L0KV1"])
    def test_untouched_after_an_exception_under_an_intervention(self, tiny, target, head):
        model = tiny("llama").train()
        model.lm_head.eval()
        before, rng = state(model), torch.get_rng_state()

        def stop():
            with intervene(model, zero("L1H0", "z")), intervene(model, zero(head, target)):
                run(model, IDS, gate(head, 0.5, target))
                raise RuntimeError("stop here")

        with pytest.raises(RuntimeError, match="stop here"):
            stop()
        assert_same_state(before, state(model))
        assert switch._HELD == {}
        assert frames_module._FRAMES.get() == ()
        assert frames_module._ACTING == []
        assert torch.equal(rng, torch.get_rng_state())

    def test_configs_that_differ_are_each_restored(self, tiny):
        model = tiny("t5")
        model.encoder.config._attn_implementation_internal = "eager"
        before = state(model)
        assert {"eager", "sdpa"} <= set(before[0])
        with attach(model):
            assert set(state(model)[0]) == {"headatlas"}
        assert_same_state(before, state(model))


class TestNesting:
    def test_inner_adds_to_outer(self, tiny):
        model, outer, inner = tiny("llama"), [], []
        with attach(model, observers=[outer.append]):
            with attach(model, observers=[inner.append]):
                logits(model)
            assert model.config._attn_implementation == "headatlas"
            logits(model)
        assert (len(outer), len(inner)) == (4, 2)
        assert model.config._attn_implementation == "sdpa"

    def test_outer_edits_come_first(self, tiny):
        model, seen = tiny("llama"), []
        with (
            attach(model, edits=[Edit("z", lambda call, z: torch.ones_like(z))]),
            attach(model, edits=[Edit("z", lambda call, z: z * 3)], observers=[seen.append]),
        ):
            logits(model)
        assert all((call.z == 3).all() for call in seen)

    def test_reentrant_from_an_observer(self, tiny):
        model, inner = tiny("llama"), []

        def look(call):
            if call.site.layer == 0 and len(inner) == 0:
                inner.append(None)
                with attach(model, observers=[inner.append]):
                    logits(model)

        own = logits(model)
        with attach(model, observers=[look]):
            seen = logits(model)
        torch.testing.assert_close(seen, own)
        assert len(inner) == 3

    def test_the_base_model_keeps_its_own_names(self, tiny):
        model, names = tiny("llama"), []
        attention_sites(model.model)
        with (
            attach(model, observers=[lambda call: names.append(call.site.module)]),
            attach(model.model, observers=[lambda call: names.append(call.site.module)]),
        ):
            logits(model)
        assert names[:2] == ["model.layers.0.self_attn", "layers.0.self_attn"]
        assert model.config._attn_implementation == "sdpa"

    def test_first_survey_inside_another_block_is_refused(self, tiny):
        model = tiny("llama")
        with attach(model), pytest.raises(InputError, match="shares its modules"):
            attention_sites(model.model)

    def test_a_models_own_preparation_of_masks_returns(self, tiny):
        model = tiny("llama")

        def mine(*args, **kwargs):
            raise RuntimeError

        model.create_masks_for_generate = mine
        with attach(model), attach(model):
            assert model.create_masks_for_generate is not mine
        assert model.create_masks_for_generate is mine

    def test_interleaved_blocks_restore_last(self, tiny):
        model = tiny("llama")
        attention_sites(model.model)
        attention_sites(model)
        first, second = switch.switched(model), switch.switched(model.model)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert model.config._attn_implementation == "headatlas"
        second.__exit__(None, None, None)
        assert model.config._attn_implementation == "sdpa"
