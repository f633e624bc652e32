"""Heads removed with patterns held: the same whatever runs together, and as by interventions."""

import numpy as np
import pytest
import torch

from headatlas.circuits.behaviour import has_next
from headatlas.circuits.causal import trials as trials_module
from headatlas.circuits.causal.measures import RowMeasure
from headatlas.circuits.causal.stand_in import Removal
from headatlas.circuits.causal.trials import Trials
from headatlas.interp import interventions as iv
from headatlas.interp.heads import HeadId
from tests.circuits.causal.models import gpt2, llama, repeats
from tests.circuits.causal.test_sweep import losses_without

REMOVALS = [Removal("mean", (HeadId("", layer, head),)) for layer in range(3) for head in (0, 1)]


@pytest.fixture
def sizes(monkeypatch):
    """How many tokens each reference run of patterns reads."""
    seen, own = [], trials_module.freeze

    def freeze(model, *, tokens):
        seen.append(tokens["input_ids"].numel())
        return own(model, tokens=tokens)

    monkeypatch.setattr(trials_module, "freeze", freeze)
    return seen


@pytest.mark.parametrize("build", [gpt2, llama])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_a_few_documents_at_a_time_are_as_all_at_once(sizes, build, side):
    model, prompts = build(), repeats(side=side)
    measure = RowMeasure("loss", has_next(prompts))
    found = {
        tokens: Trials(model, prompts, [measure], batch_tokens=tokens).run(REMOVALS, held=True)
        for tokens in (28, 10_000)
    }
    np.testing.assert_allclose(found[28], found[10_000], atol=2e-5)
    assert sizes == [28, 28, 14, 70]  # two documents of 14 tokens at a time; then all five


def test_they_are_those_of_the_whole_model(sizes):
    model, prompts = llama(), repeats()
    rows, ids = has_next(prompts), torch.from_numpy(prompts.ids)
    trials = Trials(model, prompts, [RowMeasure("loss", rows)], batch_tokens=28)
    found, free = trials.run(REMOVALS, held=True)[:, 0], trials.run(REMOVALS)[:, 0]
    for removal, held, loose in zip(REMOVALS, found, free, strict=True):
        frozen = [iv.freeze(model, tokens=ids)]
        wanted = losses_without(model, prompts, rows, removal.heads, also=frozen)
        np.testing.assert_allclose(held, wanted, atol=5e-5)
        if removal.heads[0].layer < 2:  # later patterns would have changed
            assert abs(held - loose).max() > 1e-3
    assert max(sizes) == 28
