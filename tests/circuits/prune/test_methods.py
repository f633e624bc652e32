"""Ways of choosing heads, against gradients, slices and losses taken by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from headatlas.circuits.ablate.evaluate import evaluate
from headatlas.circuits.atlas import HeadAtlas
from headatlas.circuits.bootstrap import Sample, halves, simultaneous_bounds
from headatlas.circuits.prune.asked import check_asked
from headatlas.circuits.prune.choose import Chooser
from headatlas.circuits.prune.counts import nearest_count
from headatlas.circuits.prune.curve import Cut, Losses, differences_of
from headatlas.circuits.prune.gate_result import reached_share
from headatlas.circuits.prune.gates import Gates
from headatlas.circuits.prune.importance import GateGradients, magnitude, michel, taylor
from headatlas.circuits.prune.methods import METHODS, grades_of, order_heads
from headatlas.circuits.prune.progress_file import ProgressFile
from headatlas.circuits.prune.train import train_gates
from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from headatlas.interp.probes import Prompts
from headatlas.interp.sites import attention_sites
from headatlas.interp.texts import Documents
from tests.circuits.causal.models import gpt2, llama, repeats
from tests.circuits.prune.trained import assert_same, atlas_of, prune, snapshot, training


def documents(count=4, **changes):
    return Documents(repeats(count, **changes), "repeats")


def by_hand(model, prompts, removed=()):
    """∂(mean loss of a document)/∂ξ through W_O's columns, one backward pass per document."""
    found = []
    for document in range(len(prompts)):
        own = torch.from_numpy(prompts.ids[document][prompts.mask[document]])[None]
        gates = [torch.ones(4, dtype=torch.float64) for _ in model.model.layers]
        for head in removed:
            gates[head.layer][head.head] = 0
        handles = []
        for layer, gate in zip(model.model.layers, gates, strict=True):
            gate.requires_grad_()

            def scale(_module, inputs, gate=gate):
                return (inputs[0] * gate.repeat_interleave(4),)

            handles.append(layer.self_attn.o_proj.register_forward_pre_hook(scale))
        logp = model(own).logits[0, :-1].log_softmax(-1)
        loss = -logp[torch.arange(len(logp)), own[0, 1:]].mean()
        found.append(torch.cat(torch.autograd.grad(loss, gates)).numpy())
        for handle in handles:
            handle.remove()
    return np.array(found)


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_gradients_are_those_of_each_document_by_itself(side):
    model, prompts = llama(layers=2).double(), repeats(4, side=side)
    gradients, removed = GateGradients(model, prompts), (HeadId("", 0, 1), HeadId("", 1, 3))
    for gone in ((), removed):
        expected = by_hand(model, prompts, gone)
        # the norms of these models work in float32
        np.testing.assert_allclose(gradients.at(gone), expected, rtol=1e-4, atol=1e-6)


def test_documents_in_which_nothing_counts_say_nothing_of_importance():
    model, prompts = llama(layers=2).double(), repeats(4)
    counted = np.ones_like(prompts.mask)
    counted[1] = False
    found = GateGradients(model, replace(prompts, counted=counted)).at()
    np.testing.assert_allclose(found, by_hand(model, prompts.select([0, 2, 3])), atol=1e-6)


def test_michel_takes_absolute_values_per_document_and_layers_have_norm_one():
    model, prompts = llama(layers=2).double(), repeats(4)
    gradients = by_hand(model, prompts)
    heads = GateGradients(model, prompts).heads
    found = michel(gradients, heads)
    raw = np.abs(gradients).mean(0).reshape(2, 4)
    np.testing.assert_allclose(found.reshape(2, 4), raw / np.linalg.norm(raw, axis=1)[:, None])
    assert not np.allclose(raw, np.abs(gradients.mean(0)).reshape(2, 4))
    gone = michel(gradients, heads, heads[:1])
    assert gone[0] == 0
    assert np.linalg.norm(gone[:4]) == pytest.approx(1)
    np.testing.assert_allclose(taylor(gradients), (gradients**2).mean(0))


@pytest.mark.parametrize("method", ["michel", "taylor"])
def test_steps_measure_anew_what_is_left(method):
    model, given = llama(layers=2).double(), documents()
    every = GateGradients(model, given.prompts).heads
    left, expected = list(range(8)), []
    while len(expected) < 5:
        gradients = by_hand(model, given.prompts, expected)
        scores = michel(gradients, every, expected) if method == "michel" else taylor(gradients)
        place = min(left, key=lambda place: scores[place])
        left.remove(place)
        expected.append(every[place])
    assert order_heads(model, given, method, n=5) == tuple(expected)
    assert order_heads(model, given, method, n=3) == tuple(expected[:3])
    whole = by_hand(model, given.prompts)
    scores = michel(whole, every) if method == "michel" else taylor(whole)
    at_once = tuple(every[place] for place in np.argsort(scores)[:4])
    assert order_heads(model, given, method, n=4, step=4) == at_once
    assert at_once != tuple(expected[:4])


def test_magnitude_is_the_norm_of_the_slice():
    model = llama()
    expected = {
        HeadId("", layer, head): block.self_attn.o_proj.weight[:, 4 * head :][:, :4].norm().item()
        for layer, block in enumerate(model.model.layers)
        for head in range(4)
    }
    assert magnitude(model) == pytest.approx(expected)
    order = order_heads(model, documents(), "magnitude", n=12)
    assert list(order) == sorted(expected, key=lambda head: expected[head])
    transposed = gpt2()
    norm = float(transposed.transformer.h[1].attn.c_proj.weight[8:].norm())
    assert magnitude(transposed)[HeadId("", 1, 1)] == pytest.approx(norm)


def test_random_heads_follow_the_seed():
    model, given = llama(), documents()
    one, same, other = (order_heads(model, given, "random", n=12, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert set(one) == set(other)
    assert order_heads(model, given, "random", n=5, seed=1) == one[:5]


def test_layer_random_removes_as_many_per_layer():
    model, given = llama(), documents()
    like = [HeadId("", 2, 0), HeadId("", 0, 1), HeadId("", 2, 3), HeadId("", 2, 1)]
    drawn = [
        order_heads(model, given, "layer_random", n=4, like=like, seed=seed) for seed in range(20)
    ]
    assert all([head.layer for head in one] == [2, 0, 2, 2] for one in drawn)
    assert all(len(set(one)) == 4 for one in drawn)
    assert len({head for one in drawn for head in one}) == 8
    even = order_heads(model, given, "layer_random", n=7)
    counts = np.bincount([head.layer for head in even])
    assert sorted(counts) == [2, 2, 3]
    with pytest.raises(InputError, match="like holds 4 heads; give 5"):
        order_heads(model, given, "layer_random", n=5, like=like)


def test_greedy_removes_what_costs_least():
    model, given = llama(layers=2), documents()
    every = [HeadId("", layer, head) for layer in range(2) for head in range(4)]
    losses = evaluate(model, given, [[head] for head in every]).loss_nats
    first, second = order_heads(model, given, "greedy", n=2)
    assert first == every[int(losses.argmin())]
    at_once = tuple(every[place] for place in losses.argsort()[:3])
    assert order_heads(model, given, "greedy", n=3, step=3) == at_once
    left = [head for head in every if head != first]
    losses = evaluate(model, given, [[first, head] for head in left]).loss_nats
    assert second == left[int(losses.argmin())]


def test_functional_heads_go_last():
    model = llama(layers=2)
    atlas = atlas_of({"L0H1": "strong", "L1H0": "weak", "L1H2": "strong", "L1H3": "ambiguous"})
    order = order_heads(model, documents(), "functional", n=8, atlas=atlas)
    norms = magnitude(model)
    free, weak, strong = order[:5], order[5:6], order[6:]
    assert [str(head) for head in weak] == ["L1H0"]
    assert {str(head) for head in strong} == {"L0H1", "L1H2"}
    for part in (free, strong):
        assert [norms[head] for head in part] == sorted(norms[head] for head in part)
    with pytest.raises(InputError, match="pass atlas="):
        order_heads(model, documents(), "functional", n=3)
    with pytest.raises(InputError, match="the atlas is of 8 heads and the model has 12"):
        order_heads(llama(), documents(), "functional", n=3, atlas=atlas)


def test_heads_that_rest_on_the_sink_alone_are_not_functional():
    model = llama(layers=2)
    induction = atlas_of({"L0H1": "weak", "L1H2": "weak", "L1H3": "strong"}).rows
    sinks = atlas_of({"L0H0": "strong", "L0H1": "strong", "L1H1": "weak"}).rows
    rows = pd.concat([induction, sinks.assign(kind="first_position")], ignore_index=True)
    atlas = HeadAtlas(rows, {}, {}, {})
    every = tuple(HeadId("", layer, head) for layer in range(2) for head in range(4))
    grades = grades_of(atlas, every)
    assert grades == {every[1]: 1, every[6]: 1, every[7]: 2}
    norms = magnitude(model)
    expected = sorted(every, key=lambda head: (grades.get(head, 0), norms[head]))
    assert order_heads(model, documents(), "functional", n=8, atlas=atlas) == tuple(expected)


def test_l0_removes_exactly_as_many(monkeypatch):
    model, seen = llama(layers=2), []

    def noted(*args, config, **options):
        seen.append(config)
        return train_gates(*args, config=config, **options)

    monkeypatch.setattr("headatlas.circuits.prune.methods.train_gates", noted)
    config = training(steps=8, per="head")
    order = order_heads(model, documents(), "l0", n=3, config=config)
    assert len(set(order)) == 3
    own = training(steps=8, per="head", lam=None, target=3 / 8)
    assert seen == [own]
    assert order == train_gates(model, repeats(4), config=own).removed()
    assert order_heads(model, documents(), "l0", n=0, config=config) == ()
    assert len(order_heads(model, documents(), "l0", n=8, config=config)) == 8


def test_of_two_numbers_as_near_the_larger_is_cut():
    """⌊share · n + 1/2⌋, in whole numbers; shares of 8 are exact."""
    for n in range(1, 14):
        assert [nearest_count(eighths / 8, n) for eighths in range(9)] == [
            (eighths * n + 4) // 8 for eighths in range(9)
        ]
    for reachable in ([0, 4, 8], [8, 4, 0]):
        shares = (0.2, 0.25, 0.5, 0.7, 0.75, 1.0)
        assert [nearest_count(share, 8, reachable) for share in shares] == [0, 4, 4, 4, 8, 8]
    assert reached_share(Gates(attention_sites(llama(layers=2)), "group"), 3 / 8) == 4 / 8
    for share, heads in ((3 / 16, 2), (5 / 16, 3)):
        cut = prune(llama(layers=2), method="magnitude", sparsity=share).removed()
        assert len(cut) == heads


def asked_of(model, **changes):
    asked = {
        "method": "l0", "sparsity": (0.25, 0.5), "lam": None, "atlas": None, "draws": 1,
        "level": 0.95, "seed": 7, "config": training(steps=8, lr=1.0, penalty_warmup=0.5),
    }  # fmt: skip
    return check_asked(model, **{**asked, **changes})


@pytest.mark.parametrize("asked", [
    {"sparsity": (0.25, 0.5), "lam": None}, {"sparsity": None, "lam": (0.25, 0.5)},
])  # fmt: skip
@pytest.mark.parametrize("config", [None, training(penalty_warmup=0.5, steps=9)])
def test_what_starts_from_earlier_gates_has_no_warm_up(asked, config):
    own = asked_of(llama(layers=2), config=config, **asked)
    cold, warm = (own.training(0.5, warm=start) for start in (False, True))
    assert (cold.penalty_warmup, warm.penalty_warmup) == (0.25 if config is None else 0.5, 0)
    assert replace(warm, penalty_warmup=cold.penalty_warmup) == cold
    assert (cold.target, cold.lam) == ((0.5, None) if asked["lam"] is None else (None, 0.5))
    assert cold.seed == (7 if config is None else 0)


def test_gates_of_a_second_sparsity_begin_at_those_of_the_first():
    model, rows = llama(layers=2), []
    chooser = Chooser(
        model, documents(), asked_of(model), ProgressFile(None, {}), None, None, rows.append
    )
    assert [len(cut.heads) for cut in chooser.cuts("l0")] == [2, 4]
    first, second = rows[:8], rows[8:]
    left = chooser.trained[0.25].expected_open
    assert second[0]["expected_open"] == pytest.approx(left, rel=1e-6)
    assert left < first[0]["expected_open"] - 1
    assert [row["target"] for row in first] == pytest.approx([0.0625, 0.125, 0.1875] + [0.25] * 5)
    assert [row["target"] for row in second] == [0.5] * 8


def losses_of(n, base, loss):
    ids = np.arange(2 * len(n)).reshape(-1, 2)
    given = Documents(Prompts("text", ids, ids >= 0, bos=False), "a text")
    return Losses(given, n, base, loss, np.zeros_like(loss))


def test_differences_are_per_token_whatever_the_documents_lengths():
    """Σ n (loss − mean loss of the draws) / Σ n, over documents in which something is predicted."""
    rng = np.random.default_rng(0)
    n = np.array([*range(1, 20), 400, 0])
    base, loss = rng.normal(3, 1, 21), rng.normal(3, 1, (3, 21))
    loss[0, 19] += 5  # the longest one says otherwise than the rest
    loss[0, 20] += 1e6  # nothing is predicted there
    cuts = [Cut("l0", 0, 0.5, ()), Cut("random", 0, 0.5, ()), Cut("random", 1, 0.5, ())]
    text, second = losses_of(n, base, loss), losses_of(n[::-1].copy(), base, loss[:, ::-1].copy())
    table = differences_of(cuts, {"text": text, "repeated": second}, 0.9, 3)
    gap = loss[0] - (loss[1] + loss[2]) / 2
    expected = sum(int(count) * own for count, own in zip(n, gap, strict=True)) / n.sum()
    assert expected - gap[:20].mean() > 2
    assert table["documents"].tolist() == ["text", "repeated"]
    assert table["difference_nats"].tolist() == pytest.approx([expected] * 2, rel=1e-12)
    assert table["draws"].tolist() == [2, 2]
    influence = (20 * n[:20] / n.sum() * (gap[:20] - expected))[:, None]
    sample = Sample("differences", np.array([expected]), influence, halves(20, seed=3))
    bounds = simultaneous_bounds([sample], level=0.9, seed=3)
    assert table.loc[0, "low"] == pytest.approx(bounds.low[0])
    assert table.loc[0, "high"] == pytest.approx(bounds.high[0])
    assert table.loc[0, "low"] < expected < table.loc[0, "high"]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "functional"])
def test_the_model_is_left_alone(method):
    model = gpt2(layers=2).train()
    model.transformer.wte.weight.requires_grad_(False)
    model.transformer.ln_f.weight.grad = torch.ones(16)
    before = snapshot(model)
    assert len(order_heads(model, documents(), method, n=2, config=training(steps=2))) == 2
    assert_same(snapshot(model), before)


def test_what_is_refused():
    model, given = llama(layers=2), documents()
    with pytest.raises(InputError, match="methods are among random, layer_random"):
        order_heads(model, given, "best", n=1)
    with pytest.raises(InputError, match="n=9, but the model has 8 heads"):
        order_heads(model, given, "random", n=9)
    with pytest.raises(InputError, match="n is a whole number of at least 0"):
        order_heads(model, given, "random", n=-1)
    with pytest.raises(InputError, match="step is a whole number of at least 1"):
        order_heads(model, given, "michel", n=1, step=0)
    with attach(model), pytest.raises(InputError, match="attach block"):
        order_heads(model, given, "michel", n=1)
