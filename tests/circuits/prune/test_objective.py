"""What gates are trained on, and how an update moves them: against float64 and closed forms."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from headatlas.circuits.prune.gates import Gates, gate_edit
from headatlas.circuits.prune.objective import Constraint, Penalty
from headatlas.circuits.prune.text_loss import Batch
from headatlas.circuits.prune.training import Training
from headatlas.interp.attach import attach
from headatlas.interp.sites import attention_sites
from tests.circuits.causal.models import gpt2, llama, repeats
from tests.circuits.prune.trained import training


def trained(model, prompts, **changes):
    """A training that has made its updates."""
    run = Training(model, prompts, training(**changes), None)
    run.run(None, None, None)
    return run


def column(run, name):
    return [run._row(update)[name] for update in range(len(run.rows))]


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_divergence_is_that_of_the_gated_model_from_the_whole_one(side):
    """KL(whole ‖ gated) in float64, each document alone; the other direction is another number."""
    model, prompts = gpt2(layers=2), repeats(4, side=side)
    gates = Gates(attention_sites(model))
    values = torch.tensor([[0.0, 0.5, 1.0, 0.0]])
    batch, edits = Batch(prompts, torch.device("cpu")), [gate_edit(gates, lambda: values)]

    def log_probs(document):
        own = torch.from_numpy(prompts.ids[document][prompts.mask[document]])[None]
        return model(own).logits[0, :-1].detach().double().log_softmax(-1)

    every = range(len(prompts))
    whole = torch.cat([log_probs(document) for document in every])
    given = batch.log_probs(model, grad=False)
    with attach(model, edits=edits):
        gated = torch.cat([log_probs(document) for document in every])
        found = float(batch.divergence(model, given).detach())
    expected = float((whole.exp() * (whole - gated)).sum())
    backwards = float((gated.exp() * (gated - whole)).sum())
    assert abs(expected - backwards) > 0.02 * expected
    assert found == pytest.approx(expected, rel=1e-5)


def test_terms_and_prices_by_hand():
    """A price is the term's derivative in the number of open heads."""
    constraint = Constraint(0.5, 8, stiffness=30.0)
    with torch.no_grad():
        constraint.multipliers.copy_(torch.tensor([-2.0, 20.0]))
    excess = 1 - 5 / 8 - 0.5 * 0.4
    assert excess == pytest.approx(0.175)
    for objective, term, price in (
        (constraint, -2 * excess + 20 * excess**2, -(-2 + 40 * excess) / 8),
        (Penalty(0.3), 0.3 * 0.4 * 5, 0.3 * 0.4),
    ):
        expected_open = torch.tensor(5.0, requires_grad=True)
        found = objective.term(expected_open, 0.4)
        (slope,) = torch.autograd.grad(found, expected_open)
        assert float(found.detach()) == pytest.approx(term, rel=1e-5)
        assert float(slope) == pytest.approx(price, rel=1e-5)
        assert objective.price(expected_open, 0.4) == pytest.approx(price, rel=1e-5)


def ascended(gradients, start, rate):
    """Adam's way uphill, in float64."""
    mean = square = 0.0
    for step, gradient in enumerate(gradients, 1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        start += rate * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)) ** 0.5 + 1e-8)
    return start


def test_multipliers_ascend_at_a_rate_that_does_not_fall():
    run = trained(
        llama(layers=2), repeats(4), lam=None, target=0.5, steps=4, penalty_warmup=0.0,
        schedule="linear", multiplier_lr=0.7, stiffness=60.0,
    )  # fmt: skip
    excess = [1 - expected / 8 - 0.5 for expected in column(run, "expected_open")]
    assert max(excess) < -0.3  # too many heads are open, and opening more must cost
    first, second = run.objective.multipliers.tolist()
    assert first == pytest.approx(ascended(excess, 0.0, 0.7), rel=1e-4)
    assert second == pytest.approx(ascended([e**2 for e in excess], 60.0, 0.7), rel=1e-4)
    assert first < -2.7
    assert second > 62.7
    prices = column(run, "price_nats")
    assert prices[0] == pytest.approx(-2 * 60 * excess[0] / 8, rel=1e-5)
    assert (np.diff(column(run, "expected_open")) < 0).all()


@pytest.mark.parametrize(("init", "limit"), [(0.0, 6.0), (2.5, 6.0), (10.0, 10.0)])
def test_a_gate_goes_no_further_than_it_can_come_back_from(init, limit):
    """One step of Adam is the rate itself: down where heads cost, here far beyond the limit."""
    run = trained(llama(layers=2), repeats(4), lam=50.0, init=init, lr=100.0, steps=1)
    assert run.gates.log_alpha.tolist() == [-limit] * 8


def test_both_ends_are_limited():
    run = trained(
        llama(layers=2), repeats(4), lam=0.0, init=0.0, lr=100.0, steps=1, batch=4,
        draws="document",
    )  # fmt: skip
    assert set(run.gates.log_alpha.tolist()) == {-6.0, 6.0}


def norms_left(run):
    """Norms of the gradients that the last update was made with, of gates and of weights."""
    return [
        float(torch.cat([w.grad.flatten() for w in part if w.grad is not None]).norm())
        for part in (list(run.gates.parameters()), run.weights)
    ]


def test_gradients_of_gates_and_of_weights_are_clipped_apart():
    model, prompts = llama(layers=2), repeats(4)
    settings = {"finetune": "full", "steps": 1, "init": 0.0}
    free = trained(model, prompts, **settings, clip=None)
    gates, weights = free.rows[0][-2:]
    assert 0 < 2 * gates < weights
    assert norms_left(free) == pytest.approx([gates, weights], rel=1e-5)
    for clip in (gates / 2, (gates * weights) ** 0.5, 2 * weights):
        run = trained(model, prompts, **settings, clip=clip)
        assert run.rows[0][-2:] == [gates, weights]  # what is told is from before
        expected = [min(gates, clip), min(weights, clip)]
        assert norms_left(run) == pytest.approx(expected, rel=1e-4)


def test_settings_clip_unless_they_are_told_not_to():
    assert training().clip == 1.0
    model = llama(layers=2)
    run = trained(model, repeats(4), lam=50.0, init=0.0, steps=1)
    assert run.rows[0][-2] > 10
    assert float(run.gates.log_alpha.grad.norm()) == pytest.approx(1.0, rel=1e-5)


def test_a_target_rises_through_its_warm_up_and_then_holds():
    run = trained(llama(layers=2), repeats(4), lam=None, target=0.5, steps=8, penalty_warmup=0.5)
    assert column(run, "target") == pytest.approx([0.125, 0.25, 0.375] + [0.5] * 5)
    priced = trained(llama(layers=2), repeats(4), lam=0.4, steps=8, penalty_warmup=0.5)
    assert column(priced, "price_nats") == pytest.approx([0.1, 0.2, 0.3] + [0.4] * 5)
    for expected, term, price in zip(
        *(column(priced, name) for name in ("expected_open", "penalty", "price_nats")), strict=True
    ):
        assert term == pytest.approx(expected * price)
    assert all(later < sooner for sooner, later in pairwise(column(priced, "expected_open")))
