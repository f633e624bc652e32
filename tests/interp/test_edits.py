import pytest
import torch

from headatlas.interp.attach import Edit, attach
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_base
from headatlas.interp.sites import attention_sites

from .edits import IDS, logits, zero_head


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
        with pytest.raises(InputError, match=r"target is one of .*scores.*got 'result'"):
            Edit("result", lambda call, x: x)
