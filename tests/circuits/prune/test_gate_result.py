"""What the training of gates gives: heads to cut, what it says of itself, the smaller model."""

import pandas as pd
import pytest
import torch

from headatlas.circuits.prune.gate_result import reached_share
from headatlas.circuits.prune.gates import Gates
from headatlas.circuits.prune.methods import order_heads
from headatlas.circuits.prune.remove.pruning import pruning_of
from headatlas.circuits.prune.train import train_gates
from headatlas.circuits.prune.working_copy import with_weights
from headatlas.interp.errors import InputError
from headatlas.interp.intervene import intervene
from headatlas.interp.interventions import zero
from headatlas.interp.sites import attention_sites
from headatlas.interp.texts import Documents
from tests.circuits.causal.models import llama, repeats
from tests.circuits.prune.trained import training


@pytest.mark.parametrize(("target", "per"), [(1.5 / 12, "head"), (3.5 / 12, "head"),
                                             (0.25, "group"), (1.5 / 12, "both")])  # fmt: skip
def test_as_many_heads_are_cut_as_the_gates_were_trained_for(target, per):
    found = train_gates(llama(), repeats(4), config=training(lam=None, target=target, per=per))
    trained_for = reached_share(Gates(attention_sites(llama()), per), target) * 12
    assert len(found.removed()) == round(trained_for, 6)


def test_gates_that_have_not_come_to_their_target_say_so():
    found = train_gates(llama(), repeats(4), config=training(lam=None, target=0.5, steps=2))
    assert found.expected_open > 10
    (told,) = found.caveats
    assert told == (
        f"gates have not come to their target: {found.expected_open:.1f} of 12 heads are open in "
        "expectation and 6 are kept. Train longer (steps)."
    )
    said = repr(found).split("\n  ")
    assert said[0].startswith(
        "gates per head, target 0.5, 2 updates, frozen weights: 6 of 12 heads"
    )
    assert said[1] == told
    idle = train_gates(llama(), repeats(4), config=training(lam=0.0, steps=2))
    assert idle.caveats == ("λ = 0 closes no head; raise it, or train longer (steps).",)
    closed = train_gates(llama(), repeats(4), config=training(lam=50.0, steps=60, lr=0.4))
    assert closed.closed
    assert closed.caveats == ()


def test_a_share_is_no_number_of_heads(as_users_call):
    found = train_gates(llama(layers=2), repeats(4), config=training(steps=1))
    with pytest.raises(InputError, match=r"for a share write sparsity=0\.25"):
        found.removed(0.25)


@pytest.mark.parametrize("finetune", [None, "full"])
def test_a_result_gives_the_smaller_model(finetune):
    model = llama(layers=2).train()
    model.lm_head.weight.requires_grad_(False)
    config = training(lam=None, target=0.25, steps=3, finetune=finetune, model_lr=0.02)
    found = train_gates(model, repeats(4), config=config)
    smaller = found.pruned(model)
    assert pruning_of(smaller).removed == tuple(sorted(found.removed()))
    assert smaller.training  # as the model that was given
    needs = dict(smaller.named_parameters())
    assert not needs["lm_head.weight"].requires_grad
    assert needs["model.norm.weight"].requires_grad
    own = model if finetune is None else with_weights(model, found.weights)
    ids = torch.arange(1, 9)[None]
    with torch.no_grad(), intervene(own.eval(), [zero(list(found.removed()))]):
        expected = own(ids).logits
    with torch.no_grad():
        torch.testing.assert_close(smaller.eval()(ids).logits, expected, atol=1e-5, rtol=1e-5)


def test_training_works_where_gradients_are_off():
    config = training(steps=2)
    plain = train_gates(llama(layers=2), repeats(4), config=config)
    model = llama(layers=2)
    with torch.inference_mode():
        found = train_gates(model, repeats(4), config=config)
        order = order_heads(model, Documents(repeats(4), "repeats"), "michel", n=2)
    pd.testing.assert_frame_equal(found.gates, plain.gates)
    assert len(order) == 2
