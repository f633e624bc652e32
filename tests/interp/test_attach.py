import contextvars
import copy
import threading

import pytest
import torch

from headatlas.interp import attach as attach_module
from headatlas.interp.attach import Edit, attach
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_base
from headatlas.interp.sites import attention_sites

from .edits import zero_head

IDS = torch.tensor([[5, 9, 11, 9, 40, 7], [3, 4, 5, 6, 7, 8]])


def state(model):
    """Everything about a model that hooking could leave changed."""
    return (
        [config._attn_implementation for config in attach_module._configs(model)],
        [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()],
        {name: value.clone() for name, value in model.state_dict().items()},
        [p.grad for p in model.parameters()],
        [sorted(module.__dict__) for module in model.modules()],
    )


def assert_same_state(before, after):
    assert before[0] == after[0]
    assert before[1] == after[1]
    assert before[2].keys() == after[2].keys()
    assert all(torch.equal(before[2][name], after[2][name]) for name in before[2])
    assert all(grad is None for grad in after[3])
    assert before[4] == after[4]


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


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

    @pytest.mark.parametrize("where", ["observer", "edit", "body", "forward"])
    def test_untouched_after_an_exception(self, tiny, where):
        model = tiny("llama")
        own = logits(model)
        before = state(model)

        def fail(*_):
            raise RuntimeError("stop here")

        observers = [fail] if where == "observer" else []
        edits = [Edit("z", fail)] if where == "edit" else []

        def run():
            with attach(model, observers=observers, edits=edits):
                logits(model, torch.tensor([[10**6]]) if where == "forward" else IDS)
                if where == "body":
                    fail()

        with pytest.raises((RuntimeError, IndexError)):
            run()
        assert_same_state(before, state(model))
        assert attach_module._HELD == {}
        assert attach_module._FRAMES.get() == ()
        assert torch.equal(logits(model), own)

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
        first, second = attach_module._switched(model), attach_module._switched(model.model)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert model.config._attn_implementation == "headatlas"
        second.__exit__(None, None, None)
        assert model.config._attn_implementation == "sdpa"


class TestThreads:
    def test_each_sees_its_own(self, tiny):
        model = tiny("llama")
        own = logits(model)
        expected = {}
        for head in (0, 1):
            with attach(model, edits=[zero_head("z", head)]):
                expected[head] = logits(model)
        results, counts, errors = {}, {}, []
        barrier = threading.Barrier(3, timeout=60)

        def work(name, edits):
            try:
                mine = []
                with attach(model, observers=[mine.append], edits=edits):
                    barrier.wait()
                    outputs = [logits(model) for _ in range(10)]
                    barrier.wait()
                results[name], counts[name] = outputs, len(mine)
            except Exception as error:
                errors.append(error)
                barrier.abort()

        threads = [threading.Thread(target=work, args=(h, [zero_head("z", h)])) for h in (0, 1)]
        threads.append(threading.Thread(target=work, args=("plain", [])))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert counts == {0: 20, 1: 20, "plain": 20}
        for head in (0, 1):
            assert all(torch.equal(out, expected[head]) for out in results[head])
        assert all(torch.allclose(out, own, atol=1e-4) for out in results["plain"])
        assert model.config._attn_implementation == "sdpa"

    @staticmethod
    def elsewhere(work):
        """What `work` returns or raises in a thread of its own."""
        results = []

        def run():
            try:
                results.append(work())
            except Exception as error:
                results.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
        return results[0]

    def test_a_thread_without_a_block_is_refused(self, tiny):
        model, calls = tiny("llama"), []
        own = logits(model)
        with attach(model, observers=[calls.append]):
            error = self.elsewhere(lambda: logits(model))
        assert isinstance(error, InputError)
        assert "contextvars.copy_context().run" in str(error)
        assert calls == []
        torch.testing.assert_close(self.elsewhere(lambda: logits(model)), own)

    def test_a_thread_can_take_the_block_along(self, tiny):
        model, calls = tiny("llama"), []
        with attach(model, edits=[zero_head("z", 0)], observers=[calls.append]):
            edited = logits(model)
            context = contextvars.copy_context()
            seen = self.elsewhere(lambda: context.run(logits, model))
        assert torch.equal(seen, edited)
        assert len(calls) == 4

    def test_a_thread_can_attach_for_the_plain_model(self, tiny):
        model, calls = tiny("llama"), []
        own = logits(model)

        def plain():
            with attach(model):
                return logits(model)

        with attach(model, edits=[zero_head("z", 0)], observers=[calls.append]):
            seen = self.elsewhere(plain)
            other = self.elsewhere(lambda: logits(tiny("llama")))
        torch.testing.assert_close(seen, own)
        torch.testing.assert_close(other, own)
        assert calls == []

    def test_nothing_is_lost_where_nobody_watches(self, tiny):
        model = tiny("llama")
        own = logits(model)
        with attach(model):
            torch.testing.assert_close(self.elsewhere(lambda: logits(model)), own)


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
        assert attach_module._HELD == {}

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
            frame = attach_module._FRAMES.get()[-1]
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


class TestEdits:
    @pytest.mark.parametrize("family", ["llama", "deepseek_v3", "gpt_oss", "gpt2", "gemma2"])
    def test_a_head_cut_in_z_or_in_its_pattern(self, tiny, family):
        model = tiny(family, attn="eager")
        own = logits(model)
        outputs = {}
        for target in ("z", "pattern"):
            with attach(model, edits=[zero_head(target, 2)]):
                outputs[target] = logits(model)
        scale = own.abs().max()
        assert (outputs["z"] - outputs["pattern"]).abs().max() <= 2e-5 * scale
        assert (outputs["z"] - own).abs().max() > 1e-3 * scale

    @pytest.mark.parametrize(
        ("family", "stack"), [("bert", ""), ("t5", "enc"), ("t5", "cross"), ("bart", "enc")]
    )
    def test_pattern_edits_reach_encoders(self, tiny, family, stack):
        model = tiny(family)
        inputs = {"input_ids": IDS}
        if family != "bert":
            inputs["decoder_input_ids"] = IDS[:, :4]

        def to_first(call, pattern):
            if call.site.stack != stack:
                return pattern
            new = torch.zeros_like(pattern)
            new[..., 0] = 1
            return new

        def first_values(call, z):
            if call.site.stack != stack:
                return z
            group = call.site.n_heads // call.site.n_kv_heads
            return call.v.repeat_interleave(group, 1)[:, :, :1].expand_as(z)

        outputs = []
        for edits in ([], [Edit("pattern", to_first)], [Edit("z", first_values)]):
            with torch.no_grad(), attach(model, edits=edits):
                outputs.append(model(**inputs)[0])
        torch.testing.assert_close(outputs[1], outputs[2])
        assert (outputs[1] - outputs[0]).abs().max() > 1e-3 * outputs[0].abs().max()

    @staticmethod
    def gate_loss(model, gates, target, family):
        """Mean squared output with each head of each site scaled by its gate."""
        inputs = {"decoder_input_ids": IDS[:1, :4]} if family in ("t5", "bart") else {}
        order = iter(gates)
        gate = Edit(target, lambda call, value: value * next(order)[:, None, None])
        with attach(model, edits=[gate]):
            return model(IDS[:1, :4], **inputs).logits.pow(2).mean()

    @pytest.mark.parametrize("target", ["z", "pattern"])
    @pytest.mark.parametrize("family", ["gpt2", "bart"])  # LayerNorm; RMSNorm is float32 only
    def test_gradients_of_gates_are_finite_differences(self, tiny, family, target):
        model = tiny(family, dtype=torch.float64)
        n_sites = len(attention_sites(model))
        gates = torch.linspace(0.5, 1.5, n_sites * 4, dtype=torch.float64)
        gates = gates.reshape(n_sites, 4).requires_grad_()
        (gradient,) = torch.autograd.grad(self.gate_loss(model, gates, target, family), gates)
        step = 1e-5
        for index in ((0, 0), (n_sites - 1, 3)):
            shift = torch.zeros_like(gates)
            shift[index] = step
            with torch.no_grad():
                up = self.gate_loss(model, gates + shift, target, family)
                down = self.gate_loss(model, gates - shift, target, family)
            assert gradient[index].item() != 0.0
            # central differences err by O(step²) and by eps / step = 2e-11 of the loss
            assert abs(gradient[index] - (up - down) / (2 * step)) <= 1e-7 * gradient.abs().max()

    @pytest.mark.parametrize("family", ["llama", "deepseek_v3", "gpt_oss", "t5"])
    def test_gates_of_z_and_of_the_pattern_have_the_same_gradient(self, tiny, family):
        model = tiny(family, attn="eager")
        gates = torch.linspace(0.5, 1.5, len(attention_sites(model)) * 4).reshape(-1, 4)
        gates.requires_grad_()
        z, pattern = (
            torch.autograd.grad(self.gate_loss(model, gates, target, family), gates)[0]
            for target in ("z", "pattern")
        )
        assert z.abs().min() > 0
        assert (z - pattern).abs().max() <= 1e-3 * z.abs().max()

    def test_gradcheck_of_the_seam(self, tiny):
        model = tiny("gpt2", dtype=torch.float64)
        ids = IDS[:1, :3]

        def output(z_gate, pattern_gate):
            edits = [
                Edit("z", lambda call, z: z * z_gate[:, None, None]),
                Edit("pattern", lambda call, a: a * pattern_gate[:, None, None]),
            ]
            with attach(model, edits=edits):
                return run_base(model, ids, grad=True).last_hidden_state

        gates = [torch.rand(4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        assert torch.autograd.gradcheck(output, gates)

    def test_gradients_reach_weights_as_without_hooks(self, tiny):
        model = tiny("llama")
        weight = model.model.layers[0].self_attn.q_proj.weight
        (own,) = torch.autograd.grad(model(IDS).logits.pow(2).mean(), weight)
        with attach(model):
            (seen,) = torch.autograd.grad(model(IDS).logits.pow(2).mean(), weight)
        torch.testing.assert_close(seen, own, rtol=1e-3, atol=1e-5 * own.abs().max().item())

    @pytest.mark.parametrize(
        "bad", [lambda call, z: None, lambda call, z: z[:, :1], lambda call, z: z.double()]
    )
    def test_wrong_results_are_refused(self, tiny, bad):
        model = tiny("llama")
        with (
            attach(model, edits=[Edit("z", bad)]),
            pytest.raises(InputError, match=r"model\.layers\.0\.self_attn must return a tensor"),
        ):
            logits(model)

    def test_unknown_targets_are_refused(self):
        with pytest.raises(InputError, match="'z' or 'pattern'"):
            Edit("q", lambda call, q: q)
