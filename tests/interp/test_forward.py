"""Running the base model: eval mode, padding on either side, inputs it cannot take."""

import contextlib
import threading

import numpy as np
import pytest
import torch
from torch import nn
from transformers import RobertaConfig, RobertaForMaskedLM

from headatlas.circuits.score import score
from headatlas.interp import forward
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_base, undisturbed
from headatlas.interp.probes import random_prompts
from headatlas.interp.tokens import Tokens

from .interrupts import interrupt_at

IDS = torch.tensor([[5, 9, 11, 9, 40, 7], [3, 4, 5, 6, 7, 8]])
LENGTHS = (9, 20, 14)
WIDTH = 20
DROPOUT = {
    "gpt2": {"attn_pdrop": 0.5, "embd_pdrop": 0.5, "resid_pdrop": 0.5},
    "llama": {"attention_dropout": 0.5},
    "bert": {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5},
}
# Padding changes the order of sums only; as in test_families, 170 eps of the states' scale.
TOLERANCE = 170 * torch.finfo(torch.float32).eps


def tiny_roberta(tiny):
    config = RobertaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=40, pad_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = RobertaForMaskedLM(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.15 * torch.randn(weight.shape))
    return model


def build(tiny, family, **changes):
    return tiny_roberta(tiny) if family == "roberta" else tiny(family, **changes)


def documents():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 97, (length,), generator=generator) for length in LENGTHS]


def padded(side, filler=0, width=WIDTH):
    ids = torch.full((len(LENGTHS), width), filler)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for row, document in enumerate(documents()):
        n = len(document)
        place = slice(0, n) if side == "right" else slice(width - n, width)
        ids[row, place], mask[row, place] = document, True
    return ids, mask


class TestEvalMode:
    @pytest.mark.parametrize("grad", [False, True])
    @pytest.mark.parametrize("family", DROPOUT)
    def test_training_mode_changes_nothing(self, tiny, family, grad):
        model = tiny(family, **DROPOUT[family])
        own = run_base(model, IDS).last_hidden_state
        model.train()
        assert not torch.equal(model.base_model(IDS)[0], own)  # dropout is at work there
        rng = torch.get_rng_state()
        seen = run_base(model, IDS, grad=grad).last_hidden_state
        assert torch.equal(seen, own)
        assert seen.requires_grad is grad
        assert torch.equal(rng, torch.get_rng_state())
        assert all(module.training for module in model.modules())

    @pytest.mark.parametrize("family", DROPOUT)
    def test_captured_patterns_are_those_of_eval_mode(self, tiny, family):
        model = tiny(family, **DROPOUT[family])
        own = capture(model, None, IDS)
        seen = capture(model.train(), None, IDS)
        assert all(torch.equal(seen[name], own[name]) for name in own)
        assert seen["pattern", 0].max() <= 1

    def test_scores_are_those_of_eval_mode(self, tiny):
        prompts = random_prompts(np.arange(3, 97), 2, 24, bos_id=1)
        model = tiny("gpt2", **DROPOUT["gpt2"])
        own = score(model, prompts, "previous_token")
        seen = score(model.train(), prompts, "previous_token")
        assert np.array_equal(seen.mass, own.mass)
        assert model.training

    def test_each_module_gets_its_own_flag_back(self):
        model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)).train()
        model[1].eval()
        with pytest.raises(RuntimeError, match="stop"), undisturbed(model):  # noqa: PT012
            assert not any(module.training for module in model.modules())
            torch.rand(3)
            raise RuntimeError("stop")
        assert [module.training for module in model.modules()] == [True, True, False]

    def test_random_state_returns(self):
        model, rng = nn.Dropout(0.5), torch.get_rng_state()
        with undisturbed(model):
            torch.rand(3)
        assert torch.equal(rng, torch.get_rng_state())

    def test_blocks_of_two_threads_overlap(self):
        model = nn.Dropout(0.5).train()
        inside, leave = threading.Event(), threading.Event()

        def hold():
            with undisturbed(model):
                inside.set()
                leave.wait(60)

        thread = threading.Thread(target=hold)
        with undisturbed(model):
            thread.start()
            assert inside.wait(60)
        assert not model.training  # the other thread still runs it
        leave.set()
        thread.join(60)
        assert model.training


class TestPadding:
    @pytest.mark.parametrize("filler", [0, 1, 50])
    @pytest.mark.parametrize(
        "family", ["gpt2", "bert", "opt", "llama", "mistral", "gpt_neox", "roberta"]
    )
    def test_hidden_states_do_not_depend_on_the_side(self, tiny, family, filler):
        model = build(tiny, family)
        states = {}
        for side in ("left", "right"):
            ids, mask = padded(side, filler)
            states[side] = run_base(model, ids, mask).last_hidden_state[mask]
        alone = [run_base(model, d[None]).last_hidden_state[0] for d in documents()]
        alone = torch.cat(alone)
        for side in ("left", "right"):
            gap = (states[side] - alone).abs().max()
            assert gap <= TOLERANCE * alone.abs().max(), side

    def test_t5_needs_no_positions(self, tiny):
        model = tiny("t5")
        outputs = []
        for side in ("left", "right"):
            ids, mask = padded(side)
            decoder = IDS[:1, :4].expand(len(ids), -1)
            outputs.append(run_base(model, ids, mask, decoder_input_ids=decoder)[0])
        gap = (outputs[0] - outputs[1]).abs().max()
        assert gap <= TOLERANCE * outputs[1].abs().max()

    def test_where_positions_cannot_be_passed_left_padding_is_refused(self, tiny):
        model = tiny("bart")
        ids, mask = padded("left")
        decoder = IDS[:1, :4].expand(len(ids), -1)
        with pytest.raises(InputError, match="Pad on the right"):
            run_base(model, ids, mask, decoder_input_ids=decoder)
        ids, mask = padded("right")
        assert run_base(model, ids, mask, decoder_input_ids=decoder)[0].isfinite().all()

    def test_given_positions_are_taken(self, tiny):
        model = tiny("gpt2")
        ids, mask = padded("left")
        own = run_base(model, ids, mask).last_hidden_state
        places = torch.arange(WIDTH).expand(ids.shape)
        seen = run_base(model, ids, mask, position_ids=places).last_hidden_state
        assert (seen - own)[mask].abs().max() > 0.01

    def test_observers_do_not_see_the_trial(self, tiny):
        ids, mask = padded("left")
        cache = capture(tiny("gpt2"), None, Tokens(ids, mask, [[""] * WIDTH] * 3, False))
        assert cache["pattern", 0].shape == (3, 4, WIDTH, WIDTH)

    def test_scores_do_not_depend_on_side_or_batch(self, tiny):
        model = tiny("gpt2")
        right = random_prompts(np.arange(3, 97), 4, 32, bos_id=1)
        lengths = (32, 20, 26, 9)
        place = np.arange(32)[None] < np.array(lengths)[:, None]
        sums = []
        for side in ("right", "left"):
            mask = place if side == "right" else place[:, ::-1].copy()
            ids = np.zeros_like(right.ids)
            ids[mask] = right.ids[place]
            prompts = type(right)(right.name, ids, mask, right.bos, mask & (ids % 7 == 0))
            for batch_tokens in (1, 70, 1000):
                sums.append(score(model, prompts, batch_tokens=batch_tokens))
        for other in sums[1:]:
            assert np.array_equal(other.rows, sums[0].rows)
            # each row's mass errs by the states' tolerance, times the spread of scores
            assert np.abs(other.mass - sums[0].mass).max() <= 32 * 10 * TOLERANCE
        assert sums[0].mass.max() > 1


class TestRefusals:
    @pytest.mark.parametrize("bad", [-1, -100, 97, 10**9])
    def test_ids_outside_the_vocabulary(self, tiny, bad):
        ids = IDS.clone()
        ids[1, 2] = bad
        with pytest.raises(InputError, match=r"input_ids must lie in 0\.\.96.*got"):
            run_base(tiny("llama"), ids)
        with pytest.raises(InputError, match="decoder_input_ids must lie in"):
            run_base(tiny("t5"), IDS, decoder_input_ids=ids)

    def test_no_tokens(self, tiny):
        with pytest.raises(InputError, match="no tokens"):
            run_base(tiny("llama"), IDS[:, :0])

    @pytest.mark.parametrize("family", ["gpt2", "bert", "opt", "bart", "roberta"])
    def test_more_tokens_than_positions(self, tiny, family):
        model = tiny_roberta(tiny) if family == "roberta" else self.short(tiny, family)
        context = 38 if family == "roberta" else 16
        more = {"decoder_input_ids": IDS[:1]} if family == "bart" else {}
        ids = torch.full((1, context + 1), 5)
        assert run_base(model, ids[:, 1:], **more)[0].isfinite().all()
        with pytest.raises(InputError, match=f"{context} positions, but a sequence takes"):
            run_base(model, ids, **more)

    def test_a_decoder_has_positions_too(self, tiny):
        model = self.short(tiny, "bart")
        with pytest.raises(InputError, match="16 positions, but a sequence takes 17"):
            run_base(model, IDS[:1], decoder_input_ids=torch.full((1, 17), 5))

    def test_left_padding_takes_no_positions(self, tiny):
        model = self.short(tiny, "gpt2")
        ids = torch.full((1, 20), 5)
        mask = torch.arange(20)[None] >= 5
        seen = run_base(model, ids, mask).last_hidden_state[:, 5:]
        own = run_base(model, ids[:, 5:]).last_hidden_state
        assert (seen - own).abs().max() <= TOLERANCE * own.abs().max()

    def test_rotary_positions_have_no_end(self, tiny):
        model = tiny("llama", max_position_embeddings=16)
        assert run_base(model, torch.full((1, 20), 5))[0].isfinite().all()

    @staticmethod
    def short(tiny, family):
        return tiny(
            family, **{"n_positions" if family == "gpt2" else "max_position_embeddings": 16}
        )


@pytest.mark.parametrize("function", ["undisturbed", "_give_back"])
def test_an_interrupt_leaves_training_flags_as_they_were(function):
    event, reached = 0, True
    while reached:
        event += 1
        model = nn.Sequential(nn.Dropout(), nn.Linear(2, 2)).train()
        model[0].eval()
        with (
            contextlib.suppress(KeyboardInterrupt),
            interrupt_at(event, forward, function) as seen,
            undisturbed(model),
        ):
            assert not model.training
        reached = seen() >= event
        assert [module.training for module in model.modules()] == [True, False, True]
        assert not forward._HELD
    assert event > 5
