import pytest
import torch

from headatlas.interp.attach import AttentionCall, Edit, attach
from headatlas.interp.errors import InputError
from headatlas.kernels.api import Match, Weights

from .edits import zero_head

IDS = torch.tensor([[5, 9, 11, 9, 40, 7], [3, 4, 5, 6, 7, 8]])


class TestCall:
    def observe(self, model, edits=(), **inputs):
        calls = []
        with torch.no_grad(), attach(model, observers=[calls.append], edits=edits):
            model(IDS, **inputs)
        return calls

    def test_pattern_times_values_is_z(self, tiny):
        call = self.observe(tiny("llama"))[1]
        assert isinstance(call, AttentionCall)
        assert (call.site.layer, call.site.causal) == (1, True)
        torch.testing.assert_close(call.pattern.sum(-1), torch.ones(2, 4, 6))
        assert (call.pattern.triu(1) == 0).all()
        torch.testing.assert_close(call.pattern @ call.v.repeat_interleave(2, 1), call.z)

    def test_probe_agrees_with_the_pattern(self, tiny):
        call = self.observe(tiny("llama"))[0]
        here = torch.arange(6).expand(2, 6)
        out = call.probe([Match(here - 1, here)], Weights(heads=(3, 1)), entropy=True, top=True)
        pattern = call.pattern
        torch.testing.assert_close(
            out.mass[..., 1:, 0], pattern.diagonal(-1, 2, 3), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(out.weights, pattern[:, [3, 1]])
        torch.testing.assert_close(out.top_weight, pattern.amax(-1))
        expected = torch.special.entr(pattern).sum(-1)
        torch.testing.assert_close(out.entropy, expected, rtol=1e-4, atol=1e-4)

    def test_probe_of_what_keys_receive(self, tiny):
        call = self.observe(tiny("llama"))[0]
        out = call.probe(weights=Weights(pool=(3, 2)), received=True)
        torch.testing.assert_close(out.received, call.pattern.sum(2))
        cells = torch.nn.functional.avg_pool2d(call.pattern, (3, 2))
        torch.testing.assert_close(out.weights, cells)

    def test_after_a_pattern_edit(self, tiny):
        call = self.observe(tiny("llama"), [zero_head("pattern", 1)])[0]
        assert (call.pattern[:, 1] == 0).all()
        assert (call.pattern[:, 0] != 0).any()
        assert torch.equal(call.weights([1, 0]), call.pattern[:, [1, 0]])
        with pytest.raises(InputError, match=r"were edited.*call\.pattern"):
            call.probe()

    def test_z_is_not_known_during_a_pattern_edit(self, tiny):
        edit = Edit("pattern", lambda call, pattern: pattern * call.z.mean())
        with pytest.raises(InputError, match="z is not known yet"):
            self.observe(tiny("llama"), [edit])

    @pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_oss", "gemma2"])
    def test_output_attentions_are_returned(self, tiny, family):
        model = tiny(family, attn="eager")
        own = model(IDS, output_attentions=True).attentions
        with attach(model, edits=[zero_head("pattern", 1, layer=1)]):
            seen = model(IDS, output_attentions=True).attentions
            assert not model(IDS).attentions
        torch.testing.assert_close(seen[0], own[0], rtol=1e-4, atol=1e-5)
        assert (seen[1][:, 1] == 0).all()

    def test_dropout_acts_in_training(self, tiny):
        model = tiny("llama", attention_dropout=0.5)
        calm = self.observe(model)[0]
        model.train()
        torch.manual_seed(0)
        call = self.observe(model)[0]
        torch.testing.assert_close(call.pattern, calm.pattern)  # before dropout: never over 1
        assert call.probe(entropy=True).entropy is not None
        # the first query sees one key, and each head keeps it, doubled, or drops it
        kept = call.z[:, :, 0].abs().amax(-1) > 0
        assert 0 < kept.float().mean() < 1
        torch.testing.assert_close(call.z[:, :, 0][kept], 2 * calm.z[:, :, 0][kept])
        assert model.training

    def test_edits_come_before_dropout(self, tiny):
        model = tiny("llama", attention_dropout=0.5).train()
        seen = []
        keep = Edit("pattern", lambda call, pattern: seen.append(pattern) or pattern)
        call = self.observe(model, [keep])[0]
        torch.testing.assert_close(seen[0].sum(-1), torch.ones_like(seen[0][..., 0]))
        assert torch.equal(call.pattern, seen[0])

    def test_a_four_dimensional_mask(self, tiny):
        model = tiny("llama")
        allowed = torch.ones(6, 6).tril().bool()
        allowed[3:, 1] = False  # a gap: not one interval
        mask = allowed.expand(2, 1, 6, 6)
        with torch.no_grad():
            own = model(IDS, attention_mask=mask).logits
            with attach(model):
                seen = model(IDS, attention_mask=mask).logits
        torch.testing.assert_close(seen, own, rtol=1e-4, atol=1e-4)
        call = self.observe(model, attention_mask=mask)[0]
        assert (call.pattern[:, :, ~allowed] == 0).all()
