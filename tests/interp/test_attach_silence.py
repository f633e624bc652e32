import contextlib
import copy

import pytest
import torch

from headatlas.interp import attach as attach_module
from headatlas.interp import frames as frames_module
from headatlas.interp import inline, switch
from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_base
from headatlas.interp.sites import attention_sites

from .edits import IDS, assert_same_state, logits, state, zero_head
from .inline_models import build_inline
from .interrupts import interrupt_at


class TestSilence:
    """What would let a forward pass go unseen is refused."""

    def test_another_implementation_inside_the_block(self, tiny):
        model = tiny("llama")
        before = state(model)
        with (
            pytest.raises(InputError, match="changed to 'eager' inside an attach block"),
            attach(model),
        ):
            model.set_attn_implementation("eager")
        assert_same_state(before, state(model))
        assert switch._HELD == {}

    def test_an_outer_block_goes_on(self, tiny):
        model, calls = tiny("llama"), []
        with attach(model, observers=[calls.append]):
            with pytest.raises(InputError, match="changed to 'eager'"), attach(model):
                model.set_attn_implementation("eager")
            logits(model)
        assert len(calls) == 2
        assert model.config._attn_implementation == "sdpa"

    def test_an_error_on_its_way_is_not_hidden(self, tiny):
        model = tiny("llama")
        with pytest.raises(RuntimeError, match="mine"), attach(model):  # noqa: PT012
            model.set_attn_implementation("eager")
            raise RuntimeError("mine")
        assert model.config._attn_implementation == "sdpa"

    def test_a_copy_made_inside_the_block(self, tiny):
        model, calls = tiny("llama"), []
        own = logits(model)
        with attach(model, observers=[calls.append]):
            twin = copy.deepcopy(model)
            with pytest.raises(InputError, match="copy made inside an attach block"):
                logits(twin)
        with pytest.raises(InputError, match="copied inside an attach block"):
            attention_sites(twin)
        with pytest.raises(InputError, match="copy made inside an attach block"):
            logits(twin)
        twin.set_attn_implementation("sdpa")
        assert torch.equal(logits(twin), own)
        assert len(attention_sites(twin)) == 2
        assert calls == []

    def test_attention_that_the_survey_did_not_see(self, tiny):
        model = tiny("llama")
        other = tiny("llama").model.layers[0].self_attn
        with attach(model, observers=[lambda call: None]):
            frame = frames_module._FRAMES.get()[-1]
            model.model.layers[0].self_attn = other
            frame.__dict__.pop("modules", None)
            other.config = model.config
            with pytest.raises(InputError, match="did not when the model was surveyed"):
                logits(model)

    @pytest.mark.parametrize("reentrant", [True, False])
    @pytest.mark.parametrize("kind", ["nothing", "observers", "edits"])
    @pytest.mark.parametrize("when", ["before", "inside"])
    def test_gradient_checkpointing(self, tiny, reentrant, kind, when):
        model = tiny("llama").train()
        options = {
            "nothing": {},
            "observers": {"observers": [lambda call: None]},
            "edits": {"edits": [zero_head("z", 0)]},
        }[kind]

        def enable():
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})

        if when == "before":
            enable()
        with attach(model, **options):
            enable()
            with pytest.raises(InputError, match="gradient checkpointing"):
                model(IDS)
            model.gradient_checkpointing_disable()
            loss = model(IDS).logits.sum()
        loss.backward()
        assert model.model.layers[0].self_attn.q_proj.weight.grad is not None

    def test_checkpointing_at_rest_is_allowed(self, tiny):
        model, calls = tiny("llama").train(), []
        model.gradient_checkpointing_enable({"use_reentrant": False})
        with attach(model, observers=[calls.append]):
            run_base(model, IDS, grad=True)  # eval mode
            with torch.no_grad():
                model(IDS)
        assert len(calls) == 4
        assert model.training

    def test_compiled_models_are_seen_each_time(self, tiny):
        model, calls = tiny("llama"), []
        own = logits(model)
        model.compile(backend="eager")
        torch.testing.assert_close(logits(model), own)
        for _ in range(2):
            with attach(model, observers=[calls.append]):
                torch.testing.assert_close(logits(model), own)
                logits(model)
            torch.testing.assert_close(logits(model), own)
        assert len(calls) == 8
        with attach(model, edits=[zero_head("z", 1)]):
            assert (logits(model) - own).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (switch, "switched"),
        (switch, "_release"),
        (attach_module, "hooked"),
        (inline, "in_view"),
        (inline, "_release"),
        (frames_module, "_leave"),
        (frames_module, "_announced"),
        (frames_module, "_retire"),
    ],
)
def test_an_interrupt_leaves_the_model_as_it_was(tiny, module, function):
    model = build_inline("bloom") if module is inline else tiny("llama")
    attention_sites(model)
    before, frames = state(model), frames_module._FRAMES.get()
    event, reached = 0, True
    while reached:
        event += 1
        with (
            contextlib.suppress(KeyboardInterrupt),
            interrupt_at(event, module, function) as seen,
            attach(model, observers=[lambda call: None]),
        ):
            pass
        reached = seen() >= event
        assert_same_state(before, state(model))
        assert switch._HELD == inline._HELD == {}
        assert frames_module._ACTING == []
        assert frames_module._FRAMES.get() == frames
    assert event > 2 or function in ("_leave", "_retire")
