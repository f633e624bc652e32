"""Calls of a TransformerBridge inside a block that sees and changes its model."""

import contextlib
import threading

import pytest
import torch

import headatlas as ha
from headatlas.interp import bridge_calls
from headatlas.interp.errors import InputError

from .bridges import IDS, everything, logits, run
from .interrupts import interrupt_at

iv = ha.interventions


class TestCallsInsideABlock:
    @pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
    def test_the_bridge_is_changed_as_the_model_is(self, pair, family):
        plain, bridge = pair(family)
        out, before = run(bridge), everything(bridge)
        off, more = iv.zero("L0H1"), iv.gate("L1H2", 0.5)
        with ha.intervene(plain, off):
            wanted = logits(plain)
            z = ha.capture(plain, None, IDS)["z", 1]
            mask = torch.ones_like(IDS[:1])
            new = plain.generate(
                IDS[:1], attention_mask=mask, max_new_tokens=3, do_sample=False, eos_token_id=None
            )
            with ha.intervene(plain, more):
                both = logits(plain)
        with ha.intervene(bridge, off) as sites:
            assert sites == ha.attention_sites(plain)
            assert torch.equal(run(bridge), wanted)
            assert torch.equal(logits(bridge.original_model), wanted)
            assert torch.equal(ha.capture(bridge, None, IDS)["z", 1], z)
            found = bridge.generate(
                IDS[:1], max_new_tokens=3, do_sample=False, verbose=False, stop_at_eos=False
            )
            assert torch.equal(found, new)
            with ha.intervene(bridge, more):
                assert torch.equal(run(bridge), both)
            assert torch.equal(run(bridge), wanted)
        assert not torch.allclose(wanted, out)
        assert everything(bridge) == before
        assert torch.equal(run(bridge), out)
        assert torch.equal(logits(bridge.original_model), out)  # another batch than the last one's

    def test_text_goes_in_and_a_loss_comes_out(self, pair):
        _, bridge = pair("gpt2")
        off = iv.zero("L0H1")
        with ha.intervene(bridge, off):
            scored, loss = bridge("the cat sat", return_type="both")
        ids = bridge.to_tokens("the cat sat")
        wanted = ha.run(bridge, ids, off).logits
        torch.testing.assert_close(scored, wanted)
        nll = -wanted[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()
        torch.testing.assert_close(loss, nll)

    def test_encoder_decoders(self, pair):
        plain, bridge = pair("t5")
        off = iv.zero("enc.L0H1")
        with ha.intervene(bridge, off), torch.no_grad():
            found = bridge(IDS, decoder_input=IDS[:, :4])
        with ha.intervene(plain, off), torch.no_grad():
            assert torch.equal(found, plain(IDS, decoder_input_ids=IDS[:, :4]).logits)

    def test_gradients_of_a_gate(self, pair):
        plain, bridge = pair("llama")
        found = []
        for model in (plain, bridge):
            factor = torch.tensor(0.5, requires_grad=True)
            with ha.intervene(model, iv.gate("L0H1", factor)):
                out = model(IDS)
            loss = getattr(out, "logits", out).square().mean()
            found.append(torch.autograd.grad(loss, factor)[0])
        assert found[0] == found[1] != 0

    def test_dropout_in_training_mode(self, pair):
        plain, bridge = pair("gpt2", attn_pdrop=0.5, resid_pdrop=0.5)
        plain.train()
        bridge.train()
        found = []
        for model in (plain, bridge):
            with ha.attach(model), torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(0)
                out = model(IDS)
                found.append(getattr(out, "logits", out))
        assert torch.equal(*found)
        assert not torch.equal(found[0], logits(plain.eval()))
        assert all(module.training for module in bridge.modules())

    def test_what_would_go_unseen_is_refused(self, pair):
        _, bridge = pair("llama")
        before, states = everything(bridge), torch.zeros(1, 3, 32)
        hook = ("blocks.0.attn.hook_z", lambda value, hook: value)
        uses = {
            "a hook is set at 'embed.hook_in'": lambda: bridge.run_with_cache(IDS),
            "a hook is set at": lambda: bridge.run_with_hooks(IDS, fwd_hooks=[hook]),
            "takes no stop_at_layer": lambda: run(bridge, stop_at_layer=1),
            "takes no start_at_layer": lambda: run(bridge, states, start_at_layer=1),
            "runs inside an attach or intervene block": lambda: bridge.blocks[0](states),
        }
        with ha.intervene(bridge, iv.zero("L0H1")):
            for message, use in uses.items():
                with pytest.raises(InputError, match=message):
                    use()
        assert everything(bridge) == before

    def test_other_threads_are_told(self, pair):
        _, bridge = pair("llama")
        told = []

        def other():
            with pytest.raises(InputError, match="without an attach block of its own"):
                run(bridge)
            with ha.attach(bridge):
                told.append(run(bridge))

        wanted = run(bridge)
        with ha.intervene(bridge, iv.zero("L0H1")):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        torch.testing.assert_close(told[0], wanted)

    def test_exceptions_leave_the_bridge_as_it_was(self, pair):
        _, bridge = pair("gpt2")
        before = everything(bridge)
        with pytest.raises(RuntimeError, match="mine"), ha.intervene(bridge, iv.zero("L0H1")):
            raise RuntimeError("mine")
        with pytest.raises(InputError, match="L9H9"), ha.intervene(bridge, iv.zero("L9H9")):
            pass
        assert everything(bridge) == before

    @pytest.mark.parametrize("function", ["routed", "_release"])
    def test_so_do_requests_to_stop(self, pair, function):
        _, bridge = pair("gpt2")
        before, event, more = everything(bridge), 0, True
        while more:
            event += 1
            with (
                contextlib.suppress(KeyboardInterrupt),
                interrupt_at(event, bridge_calls, function) as count,
                ha.attach(bridge),
            ):
                pass
            more = count() == event
            assert not bridge_calls._HELD
            assert everything(bridge) == before
        assert event > 10
