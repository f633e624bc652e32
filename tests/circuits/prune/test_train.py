"""Training of gates on small models: what it does to heads, and what it leaves alone."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from headatlas.circuits.behaviour import copied_next
from headatlas.circuits.prune.gates import Gates, gate_edit
from headatlas.circuits.prune.text_loss import Batch
from headatlas.circuits.prune.train import train_gates
from headatlas.circuits.prune.training import Training
from headatlas.circuits.prune.working_copy import frozen_copy, recompute_blocks
from headatlas.interp import attention_call
from headatlas.interp.attach import Edit, attach
from headatlas.interp.errors import InputError
from headatlas.interp.intervene import intervene
from headatlas.interp.interventions import zero
from headatlas.interp.probes import Prompts
from headatlas.interp.resume import find_blocks
from headatlas.interp.sites import attention_sites
from tests.circuits.causal.models import gemma2, gpt2, llama, loss_by_hand, repeats
from tests.circuits.prune.trained import assert_same, snapshot, training


def plain_loss(model, prompts):
    """Mean next-token loss per predicted token, by hand, each document alone."""
    ids, mask, total, count = torch.from_numpy(prompts.ids), prompts.mask, 0.0, 0
    for document in range(len(prompts)):
        own = ids[document][mask[document]][None]
        with torch.no_grad():
            logits = model(own).logits
        n = own.shape[1] - 1
        rows = np.array([[True] * n + [False]])
        total += n * loss_by_hand(logits, prompts.select([document]), rows)[0]
        count += n
    return total / count


@pytest.mark.parametrize("build", [gpt2, llama, gemma2])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_with_open_gates_the_loss_is_the_model_s_own(build, side):
    """Per predicted token, padding excluded, whether in one forward pass or two."""
    model, prompts = build(), repeats(4, side=side)
    for settings in ({"batch": 4}, {"batch": 2, "accumulate": 2}):
        config = training(init=20.0, steps=1, **settings)
        found = train_gates(model, prompts, config=config).history
        assert found["loss_nats"].iloc[0] == pytest.approx(plain_loss(model, prompts), rel=1e-5)
        assert found["expected_open"].iloc[0] == pytest.approx(len(attention_heads(model)))


def attention_heads(model):
    return [head for site in attention_sites(model) for head in site.heads]


def test_heads_kept_fall_with_lambda_and_a_large_one_removes_all():
    model, prompts = llama(layers=2), repeats(8)
    kept = []
    for lam in (0.0, 0.05, 0.5, 50.0):
        config = training(lam=lam, steps=40, batch=8, lr=0.4, draws="document")
        result = train_gates(model, prompts, config=config)
        kept.append(8 - len(result.closed))
        assert result.removed() == result.closed
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > kept[1] > kept[-1] == 0


@pytest.mark.parametrize(("per", "target", "cut"), [
    ("head", 0.3, 4), ("group", 0.5, 6), ("both", 0.75, 9),
])  # fmt: skip
def test_target_is_reached_exactly(per, target, cut):
    model, prompts = llama(), repeats(8)
    config = training(lam=None, target=target, per=per, steps=90, batch=8, draws="document")
    result = train_gates(model, prompts, config=config)
    assert len(result.removed()) == cut == 12 - result.gates["kept"].sum()
    assert 1 - result.expected_open / 12 == pytest.approx(cut / 12, abs=0.08)
    assert abs(len(result.closed) - cut) <= 2
    ranks = result.log_alpha
    assert max(ranks[h] for h in result.removed()) <= min(
        ranks[h] for h in result.heads if h not in result.removed()
    )
    assert result.history["target"].iloc[-1] == pytest.approx(cut / 12)
    assert result.history["target"].is_monotonic_increasing


def test_gates_find_the_head_that_matters():
    """All heads but one write into nothing: that one stays."""
    model, prompts = llama(layers=2), repeats(8)
    with torch.no_grad():
        for layer, keep in ((0, None), (1, 2)):
            weight = model.model.layers[layer].self_attn.o_proj.weight
            mask = torch.zeros(16)
            if keep is not None:
                mask[4 * keep : 4 * keep + 4] = 3.0
            weight.mul_(mask)
    model = fitted(model, prompts)
    result = train_gates(
        model, prompts, config=training(lam=0.03, steps=80, batch=8, draws="document")
    )
    assert [str(head) for head in result.heads if head not in result.removed()] == ["L1H2"]


def test_only_what_counts_is_learnt_from():
    model, prompts = llama(layers=2), repeats(4)
    copied = replace(prompts, counted=copied_next(prompts))
    batch = Batch(copied, torch.device("cpu"))
    assert batch.n_tokens == copied.counted.sum()
    with torch.no_grad():
        logits = model(torch.from_numpy(prompts.ids)).logits
        found = float(batch.cross_entropy(model))
    losses = loss_by_hand(logits, prompts, copied.counted)
    assert found == pytest.approx(losses @ copied.counted.sum(1), rel=1e-5)
    idle = replace(copied, counted=copied.counted & (np.arange(4) != 1)[:, None])
    rest = copied.select([0, 2, 3])
    config = training(steps=3, batch=3)
    one, two = (train_gates(model, own, config=config) for own in (idle, rest))
    pd.testing.assert_frame_equal(one.gates, two.gates)  # the second document teaches nothing
    assert not one.gates.equals(train_gates(model, prompts.select([0, 2, 3]), config=config).gates)


def fitted(model, prompts):
    """The model, trained on the documents by its output matrix alone."""
    optimiser = torch.optim.Adam([model.lm_head.weight], lr=0.02)
    batch = Batch(prompts, torch.device("cpu"))
    for _ in range(150):
        optimiser.zero_grad()
        (batch.cross_entropy(model) / batch.n_tokens).backward()
        optimiser.step()
    model.zero_grad(set_to_none=True)
    return model


def test_no_pattern_is_written_out(monkeypatch):
    prompts = repeats(2, length=40)
    run = Training(llama(layers=2), prompts, training(steps=2), None)
    sizes = []

    def refuse(*_args, **_kwargs):
        raise AssertionError("a pattern was written out")

    for name in ("masked_scores", "softmax_rows", "mix_values"):
        monkeypatch.setattr(attention_call, name, refuse)
    monkeypatch.setattr(attention_call.AttentionCall, "weights", refuse)

    def note(tensor):
        sizes.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run.run(None, None, None)
    assert len(run.rows) == 2
    assert sizes
    assert not any(tuple(shape[-2:]) == (40, 40) for shape in sizes if len(shape) > 2)


def test_frozen_weights_get_no_gradients():
    run = Training(llama(), repeats(4), training(), None)
    run.run(None, None, None)
    assert not run.weights
    assert not any(w.requires_grad or w.grad is not None for w in run.twin.parameters())
    assert all(w.grad is not None for w in run.gates.parameters())


@pytest.mark.parametrize("finetune", [None, "full"])
def test_the_model_is_left_alone(finetune):
    model = gpt2().train()  # with dropout
    model.transformer.h[1].eval()
    model.transformer.wte.weight.requires_grad_(False)
    model.transformer.ln_f.weight.grad = torch.ones(16)
    before = snapshot(model)
    result = train_gates(model, repeats(4), config=training(finetune=finetune))
    assert_same(snapshot(model), before)
    assert (result.weights is None) == (finetune is None)


@pytest.mark.parametrize("finetune", [None, "full"])
def test_an_interruption_leaves_the_model_alone(finetune):
    model, calls = llama().train(), []
    before = snapshot(model)

    def stop(_module, _input, _output):
        calls.append(0)
        if len(calls) == 25:
            raise KeyboardInterrupt

    handle = model.model.layers[1].mlp.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        train_gates(model, repeats(4), config=training(steps=50, finetune=finetune))
    handle.remove()
    assert_same(snapshot(model), before)


def test_gradient_checkpointing_changes_no_number():
    model, prompts = llama(), repeats(4, side="left")
    plain, again = (
        train_gates(model, prompts, config=training(gradient_checkpointing=on, finetune="full"))
        for on in (False, True)
    )
    assert plain.history.equals(again.history)
    assert torch.equal(plain.state["log_alpha"], again.state["log_alpha"])


def test_checkpointed_blocks_keep_less_and_meet_their_gates_in_any_thread():
    model, prompts = llama(), repeats(4)
    gates = Gates(attention_sites(model), init=0.0)
    batch, kept, grads = Batch(prompts, torch.device("cpu")), [], []
    for on in (False, True):
        twin = frozen_copy(model)
        if on:
            recompute_blocks(find_blocks(twin, attention_sites(twin)))
        values, size = gates.draw(np.random.default_rng(0)), []

        def note(tensor, size=size):
            size.append(tensor.numel())
            return tensor

        with attach(twin, edits=[gate_edit(gates, lambda v=values: v)]):
            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                loss = batch.cross_entropy(twin)
            kept.append(sum(size))
            thread = threading.Thread(target=loss.backward)  # as it is on accelerators
            thread.start()
            thread.join()
        grads.append(gates.log_alpha.grad)
        gates.zero_grad()
    assert kept[1] < kept[0] / 2
    assert torch.equal(*grads)


def test_kl_to_the_whole_model():
    """Nothing while gates are open; positive and falling when only gates move it."""
    model, prompts = gpt2(), repeats(4)
    whole = train_gates(model, prompts, config=training(objective="kl", init=20.0, steps=1))
    assert whole.history["loss_nats"].iloc[0] == pytest.approx(0, abs=1e-5)
    config = training(objective="kl", init=0.0, lam=0.0, steps=40, batch=4, draws="document")
    losses = train_gates(model, prompts, config=config).history["loss_nats"]
    assert losses.min() > -1e-6
    assert losses.iloc[0] > 0.1
    assert losses.iloc[-10:].mean() < losses.iloc[:10].mean() / 2


def test_fine_tuning_lowers_the_loss_and_gives_loadable_weights():
    model, prompts = llama(layers=2), repeats(4)
    config = training(finetune="full", steps=40, batch=4, model_lr=0.01, lam=0.0, init=20.0)
    result = train_gates(model, prompts, config=config)
    fresh = llama(layers=2)
    fresh.load_state_dict(result.weights)
    assert plain_loss(fresh, prompts) < plain_loss(model, prompts) - 0.5
    assert result.history["loss_nats"].iloc[-1] < result.history["loss_nats"].iloc[0] - 0.5


def test_recovery_trains_the_weights_with_cut_heads_at_zero():
    model, prompts = llama(), repeats(4)
    config = training(
        lam=None, target=0.5, finetune="full", recover=2, batch=4, model_lr=1e-12, schedule="cosine"
    )
    result = train_gates(model, prompts, config=config)
    assert result.history["stage"].tolist() == ["gates"] * 6 + ["recover"] * 2
    with intervene(model, zero(result.removed())):
        cut = plain_loss(model, prompts)
    assert cut != pytest.approx(plain_loss(model, prompts), rel=1e-4)
    assert result.history["loss_nats"].iloc[6:].tolist() == pytest.approx([cut] * 2, rel=1e-5)
    assert (result.history["gate_grad_norm"].iloc[6:] == 0).all()
    assert (result.history["weight_grad_norm"] > 0).all()


def test_narrow_weights_are_trained_wide_and_given_back_narrow():
    model = llama(layers=2).bfloat16()
    config = training(finetune="full", model_lr=1e-2, autocast=True)
    result = train_gates(model, repeats(4), config=config)
    assert {value.dtype for value in result.weights.values()} == {torch.bfloat16}
    assert any(
        not torch.equal(value, result.weights[name]) for name, value in model.state_dict().items()
    )


def test_autocast_runs_in_bfloat16():
    model, prompts, seen = llama(), repeats(4), []
    model.model.layers[0].mlp.register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    wide = train_gates(model, prompts, config=training(steps=1, autocast=False)).history
    assert set(seen) == {torch.float32}
    narrow = train_gates(model, prompts, config=training(steps=1, autocast=True)).history
    assert torch.bfloat16 in seen
    first, second = (found["loss_nats"].iloc[0] for found in (wide, narrow))
    assert first != second
    assert second == pytest.approx(first, rel=0.05)


def test_gates_start_from_an_earlier_result(as_users_call):
    model, prompts = llama(layers=2), repeats(4)
    first = train_gates(model, prompts, config=training(steps=10))
    second = train_gates(model, prompts, config=training(steps=1), start=first)
    assert second.history["expected_open"].iloc[0] == pytest.approx(first.expected_open)
    with pytest.raises(InputError, match="same model and sort"):
        train_gates(model, prompts, config=training(per="both"), start=first)
    with pytest.raises(InputError, match="start is a GateResult"):
        train_gates(model, prompts, config=training(), start=first.state)


def test_reports_and_documents_in_a_holder():
    seen, rows = [], []
    documents = SimpleNamespace(prompts=repeats(4))
    result = train_gates(
        llama(layers=2),
        documents,
        config=training(steps=3),
        progress=lambda *event: seen.append(event),
        watch=rows.append,
    )
    assert seen == [("train gates", done, 3) for done in (1, 2, 3)]
    assert [row["loss_nats"] for row in rows] == result.history["loss_nats"].tolist()
    assert rows[0]["open_probability"] == rows[0]["expected_open"] / 8


def test_numbers_of_heads_that_can_be_cut():
    heads = train_gates(llama(), repeats(4), config=training(steps=1))
    groups = train_gates(llama(), repeats(4), config=training(steps=1, per="group"))
    assert [len(heads.removed(n)) for n in range(13)] == list(range(13))
    assert heads.removed(3) == heads.removed(4)[:3]
    assert len(groups.removed(sparsity=0.3)) == 4
    assert len(groups.removed(10)) == 10
    with pytest.raises(InputError, match=r"such as 2 or 4 of 12; got 3"):
        groups.removed(3)
    for wrong in ({"n": 13}, {"n": 2, "sparsity": 0.5}, {"sparsity": 1.5}, {"n": -1}):
        with pytest.raises(InputError):
            heads.removed(**wrong)


class Loose(nn.Module):
    """A module that cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_wrong_models_and_documents_are_refused(as_users_call):
    model, prompts = llama(layers=2), repeats(4)
    with pytest.raises(InputError, match="config is a GateTraining"):
        train_gates(model, prompts, config={"lam": 1.0})
    with pytest.raises(InputError, match="documents are what read_documents gives; got list"):
        train_gates(model, ["text"], config=training())
    with pytest.raises(InputError, match="expected a transformers model"):
        train_gates("tiny", prompts, config=training())
    short = Prompts("random", np.ones((2, 3), int), np.eye(2, 3, dtype=bool), bos=False)
    with pytest.raises(InputError, match="none of 2 documents predicts a token that counts"):
        train_gates(model, short, config=training())
    with pytest.raises(InputError, match="heads; give one between"):
        train_gates(model, prompts, config=training(lam=None, target=0.01))
    edit = Edit("z", lambda _call, z: z)
    with attach(model, edits=[edit]), pytest.raises(InputError, match="inside an attach block"):
        train_gates(model, prompts, config=training())
    with pytest.raises(InputError, match="not finite"):
        train_gates(model, prompts, config=training(finetune="full", model_lr=1e30, clip=None))
    model.extra = Loose()
    with pytest.raises(InputError, match="cannot be copied"):
        train_gates(model, prompts, config=training())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lam": None}, "give either lam"),
        ({"target": 0.5}, "give either lam"),
        ({"lam": -1.0}, "lam is a number of at least 0"),
        ({"lam": None, "target": 1.0}, "target is a number above 0 and below 1"),
        ({"lam": float("inf")}, "lam is a number"),
        ({"lam": "1"}, "lam is a number"),
        ({"steps": 0}, "steps is a whole number"),
        ({"batch": 2.5}, "batch is a whole number"),
        ({"per": "layer"}, "per is one of 'head', 'group', 'both'"),
        ({"objective": "mse"}, "objective is one of"),
        ({"beta": 2.0}, "beta is a number"),
        ({"clip": 0.0}, "clip is a number above 0"),
        ({"recover": 3}, "recover trains the weights"),
        ({"finetune": "all"}, "finetune is one of None, 'full', 'lora'"),
    ],
)
def test_wrong_settings_are_refused(changes, message, as_users_call):
    with pytest.raises(InputError, match=message):
        training(**changes)


def test_schedules():
    flat, linear, cosine = (
        training(schedule=name, steps=10, lr_warmup=0.2, penalty_warmup=0.5)
        for name in ("constant", "linear", "cosine")
    )
    assert [flat.rate(i) for i in (0, 1, 9)] == [0.5, 1.0, 1.0]
    assert [linear.rate(i) for i in (0, 5, 9)] == pytest.approx([0.5, 0.5, 0.1])
    assert cosine.rate(5) == pytest.approx(0.5)
    assert [flat.warmed(i) for i in (0, 4, 9)] == [0.2, 1.0, 1.0]
    assert training(clip=None).clip is None
