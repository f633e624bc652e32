"""The sweep against interventions made one at a time, whole forward passes, and interruptions."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Model

from headatlas.circuits.behaviour import Behaviour, Downstream, copied_next, has_next
from headatlas.circuits.causal import trials as trials_module
from headatlas.circuits.causal.measures import RowMeasure, measure_of
from headatlas.circuits.causal.stand_in import Removal, StandIns
from headatlas.circuits.causal.sweep import sweep
from headatlas.circuits.causal.trials import Trials
from headatlas.circuits.kinds import KINDS
from headatlas.interp import interventions as iv
from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_whole
from headatlas.interp.intervene import intervene
from headatlas.interp.sites import Site
from tests.circuits.causal.models import gemma2, gpt2, llama, loss_by_hand, repeats

EVERYWHERE = Behaviour("text", "Loss everywhere.", "random", lambda p: p.mask)
COPIED = Behaviour("copied", "Loss at copied tokens.", "random", copied_next)
HEADS = ["L0H0", "L1H1", "L2H0", "L2H1"]


def losses(model, prompts, rows, change=()):
    """Loss per document by one whole forward pass under an intervention."""
    ids, mask = torch.from_numpy(prompts.ids), torch.from_numpy(prompts.mask)
    with intervene(model, change):
        logits = run_whole(model, ids, None if bool(mask.all()) else mask).logits
    return loss_by_hand(logits, prompts, rows)


def losses_without(model, prompts, rows, heads, also=()):
    """Loss per document with the mean over the other documents in the heads' place."""
    ids = torch.from_numpy(prompts.ids)
    others = [np.arange(len(ids)) != d for d in range(len(ids))]
    means = [iv.mean(model, ids[own], heads, per_position=True) for own in others]
    return np.array(
        [losses(model, prompts, rows, [*also, mean])[d] for d, mean in enumerate(means)]
    )


@pytest.mark.parametrize("build", [gpt2, llama])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_every_head_zeroed_as_by_an_intervention(build, side):
    model, prompts = build(), repeats(side=side)
    found = sweep(model, prompts, EVERYWHERE, ablations=["zero"], batch_tokens=100)
    assert found.resumed
    assert found.chosen_rows
    rows = has_next(prompts)
    clean = losses(model, prompts, rows)
    np.testing.assert_allclose(found.base[0], clean, atol=2e-5)
    for place, head in enumerate(found.heads):
        expected = losses(model, prompts, rows, iv.zero(head)) - clean
        np.testing.assert_allclose(found.delta("text", "zero")[:, place], expected, atol=5e-5)
    assert np.abs(found.delta("text", "zero")).max() > 0.05


def test_mean_and_resample_are_those_of_interventions():
    model, prompts = llama(), repeats()
    found = sweep(model, prompts, COPIED, ablations=["mean", "resample"], seed=4)
    ids, rows = torch.from_numpy(prompts.ids), copied_next(prompts)
    donors = StandIns(prompts, 4).donors()
    assert (donors != np.arange(len(prompts))).all()
    clean = losses(model, prompts, rows)
    for place, head in enumerate(found.heads):
        other = iv.patch(model, head, tokens=ids[donors])
        expected = {
            "resample": losses(model, prompts, rows, other),
            "mean": losses_without(model, prompts, rows, head),
        }
        for ablation, harmed in expected.items():
            delta = found.delta("copied", ablation)[:, place]
            np.testing.assert_allclose(delta, harmed - clean, atol=5e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_stand_in(side):
    """Means and donors go by position in the document, wherever its padding stands."""
    z = torch.randn(5, 2, 14, 3)
    padded, other = repeats(side=side), repeats(side="left" if side == "right" else "right")
    site = Site("one", "", 0, 2, 2, 3, 3, True)
    for ablation in ("mean", "resample"):
        ours, theirs = StandIns(padded, 0), StandIns(other, 0)
        ours.z[site], moved = z, torch.zeros_like(z)
        for d in range(5):
            moved[d][:, other.mask[d]] = z[d][:, padded.mask[d]]
        theirs.z[site] = moved
        one = ours.at(ablation, site, [1], slice(0, 5))
        two = theirs.at(ablation, site, [1], slice(0, 5))
        for d in range(5):
            assert torch.equal(one[d][:, padded.mask[d]], two[d][:, other.mask[d]])


def test_a_mean_by_hand():
    prompts = repeats(documents=3, length=4, side="right")  # the last lacks two tokens
    z = torch.arange(12.0).reshape(3, 1, 4, 1)
    stand_ins = StandIns(prompts, 0)
    site = Site("one", "", 0, 1, 1, 1, 1, True)
    stand_ins.z[site] = z
    mean = stand_ins.at("mean", site, [0], slice(0, 1))[0, 0, :, 0]
    assert mean.tolist() == [6.0, 7.0, 6.0, 7.0]  # without its own


def test_a_longest_document_without_its_equal_is_refused():
    """Its last positions would be replaced by their own values, and nothing removed."""
    prompts = repeats(documents=3, length=4, side="right").select(slice(1, 3))
    assert prompts.mask.sum(1).tolist() == [4, 2]
    stand_ins = StandIns(prompts, 0)
    site = Site("one", "", 0, 1, 1, 1, 1, True)
    stand_ins.z[site] = torch.zeros(2, 1, 4, 1)
    with pytest.raises(InputError, match=r"mean takes .* document 0 of 4 tokens has none"):
        stand_ins.at("mean", site, [0], slice(0, 1))


def test_batches_of_any_size_give_the_same():
    model, prompts = gpt2(), repeats()
    whole = sweep(model, prompts, [EVERYWHERE, COPIED], batch_tokens=10_000)
    small = sweep(model, prompts, [EVERYWHERE, COPIED], batch_tokens=1)
    np.testing.assert_allclose(small.harm, whole.harm, atol=5e-5)


def test_without_resuming_the_numbers_are_the_same_and_it_says_so(monkeypatch):
    model, prompts = llama(), repeats()
    begun = sweep(model, prompts, COPIED)
    monkeypatch.setattr(trials_module, "find_blocks", lambda *_: None)
    whole = sweep(model, prompts, COPIED)
    assert begun.resumed
    assert not whole.resumed
    np.testing.assert_allclose(begun.harm, whole.harm, atol=5e-5)


def test_blocks_that_cannot_be_left_out_are_found():
    """A block that reads what the one before it left aside gives something else when resumed."""
    model = gpt2()
    first, last = model.transformer.h[0], model.transformer.h[2]
    own_first, own_last, left = first.forward, last.forward, []
    first.forward = lambda *a, **k: (left.append(1), own_first(*a, **k))[1]
    last.forward = lambda x, *a, **k: own_last(x * (left.pop() if left else 0.5), *a, **k)
    prompts = repeats()
    assert not Trials(model, prompts, [RowMeasure("all", has_next(prompts))]).resumed


def test_capped_logits_are_read_from_the_whole_model():
    model, prompts = gemma2(), repeats()
    found = sweep(model, prompts, EVERYWHERE, ablations=["zero"])
    assert not found.chosen_rows
    rows = has_next(prompts)
    clean = losses(model, prompts, rows)
    np.testing.assert_allclose(found.base[0], clean, atol=1e-5)
    expected = losses(model, prompts, rows, iv.zero("L1H0")) - clean
    place = [*map(str, found.heads)].index("L1H0")
    np.testing.assert_allclose(found.delta("text", "zero")[:, place], expected, atol=5e-5)


@pytest.mark.parametrize("side", [None, "left"])
def test_downstream_mass_against_whole_patterns(side):
    model, prompts = llama(), repeats(side=side)
    fed = Downstream("fed", "Mass in two heads.", "duplicate_token")
    targets = ["L1H2", "L2H0"]
    found = sweep(model, prompts, fed, ablations=["zero"], labelled={"duplicate_token": targets})
    (labels,) = KINDS["duplicate_token"].variants(prompts)[""]
    hit = (labels.q[:, :, None] == labels.k[:, None, :]) & (labels.q >= 0)[:, :, None]
    hit &= ~np.eye(prompts.ids.shape[1], dtype=bool)
    hit &= np.tri(prompts.ids.shape[1], dtype=bool)

    def mass(change=()):
        seen = {}
        ids, mask = torch.from_numpy(prompts.ids), torch.from_numpy(prompts.mask)
        with (
            intervene(model, change),
            attach(model, observers=[lambda call: seen.update({call.site.layer: call.pattern})]),
        ):
            run_whole(model, ids, None if side is None else mask)
        total = sum(
            (seen[lay][:, h].double().numpy() * hit).sum((1, 2)) for lay, h in ((1, 2), (2, 0))
        )
        return total / (labels.q >= 0).sum(1) / 2

    clean = mass()
    np.testing.assert_allclose(found.base[0], clean, atol=1e-6)
    for place, head in enumerate(found.heads):
        expected = clean - mass(iv.zero(head))
        np.testing.assert_allclose(found.delta("fed", "zero")[:, place], expected, atol=1e-5)
    last = [place for place, head in enumerate(found.heads) if head.layer == 2]
    assert not found.delta("fed", "zero")[:, last].any()


def test_effects_weigh_documents_by_their_rows():
    found = sweep(gpt2(), repeats(side="right"), EVERYWHERE, heads=HEADS, ablations=["zero"])
    delta, n = found.delta("text", "zero"), found.n[0]
    np.testing.assert_allclose(found.effect("text", "zero"), (n @ delta) / n.sum())
    np.testing.assert_allclose(found.influence("text", "zero").sum(0), 0, atol=1e-12)
    row = found.rows.iloc[0]
    assert (row["layer"], row["head"], row["n"], row["ablation"]) == (0, 0, n.sum(), "zero")
    assert len(found.rows) == len(HEADS)


def test_progress_counts_heads():
    seen = []
    sweep(gpt2(), repeats(), COPIED, ablations=["zero"], progress=lambda *x: seen.append(x))
    assert seen == [("ablate random", done, 6) for done in (2, 4, 6)]


def test_what_predicts_no_token_is_refused():
    config = BertConfig(
        vocab_size=60, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    with pytest.raises(InputError, match="BertModel is an encoder"):
        sweep(BertModel(config).eval(), repeats(), COPIED)
    with pytest.raises(InputError, match="GPT2Model has no language-model head"):
        sweep(GPT2Model(gpt2().config).eval(), repeats(), COPIED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": ["L9H0"]}, "no head L9H0; its last is L2H1"),
        ({"heads": []}, "no head is named"),
        ({"ablations": ["knockout"]}, "one of zero, mean, resample"),
        ({"ablations": ["zero", "zero"]}, "each once"),
        ({"ablations": []}, "among zero"),
        ({"behaviours": []}, "behaviours are a Behaviour"),
        ({"behaviours": [COPIED, COPIED]}, "same name"),
        ({"behaviours": Downstream("fed", "Mass.", "nothing")}, "'nothing' is not registered"),
        ({"behaviours": Downstream("fed", "Mass.", "offset")}, "compete"),
        ({"behaviours": Downstream("fed", "Mass.", "induction")}, "no head is"),
        ({"batch_tokens": 0}, "batch_tokens is a whole number"),
        ({"seed": -1}, "seed is a whole number"),
    ],
)
def test_wrong_requests_are_refused(change, message):
    asked = {"model": gpt2(), "prompts": repeats(), "behaviours": COPIED}
    with pytest.raises(InputError, match=message):
        sweep(**asked | change)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda p: p.mask * 0 > 0, "measures no position"),
        (lambda p: p.ids, "truth values; it gave int64"),
        (lambda p: p.mask[:, 1:], "the prompts' shape"),
        (lambda p: [True], "it gave list"),
    ],
)
def test_rows_of_another_sort_are_refused(rows, message):
    with pytest.raises(InputError, match=message):
        measure_of(Behaviour("odd", "Odd.", "random", rows), repeats(), {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Name", "Words.", "random", copied_next), "lower-case identifier"),
        (("name", "Words.", "nowhere", copied_next), "prompts are a Prompts or one of"),
    ],
)
def test_behaviours_check_themselves(arguments, message):
    with pytest.raises(InputError, match=message):
        Behaviour(*arguments)


def test_resample_needs_a_document_no_shorter():
    prompts = repeats(documents=2, side=None)
    mask = prompts.mask.copy()
    mask[1, -1] = False
    short = type(prompts)("random", prompts.ids, mask, bos=False)
    with pytest.raises(InputError, match="document 0 of 14 tokens has none"):
        sweep(gpt2(), short, EVERYWHERE, ablations=["resample"])


def test_several_heads_at_once_and_none():
    model, prompts = llama(), repeats()
    rows = has_next(prompts)
    trials = Trials(model, prompts, [RowMeasure("all", rows)], batch_tokens=1000)
    heads = tuple(trials.heads[place] for place in (1, 6, 10))
    found = trials.run([Removal("zero", heads), Removal("mean", ()), Removal("zero", heads[2:])])
    np.testing.assert_allclose(
        found[0, 0], losses(model, prompts, rows, iv.zero(list(heads))), atol=5e-5
    )
    np.testing.assert_allclose(found[1], trials.base, atol=2e-5)
    np.testing.assert_allclose(
        found[2, 0], losses(model, prompts, rows, iv.zero(heads[2])), atol=5e-5
    )


def test_the_centred_logit():
    model, prompts = gpt2(), repeats()
    rows = copied_next(prompts)
    trials = Trials(model, prompts, [RowMeasure("logit", rows, "logit")])
    logits = run_whole(model, torch.from_numpy(prompts.ids)).logits.double().numpy()
    for document in range(len(prompts)):
        own = [
            logits[document, t, prompts.ids[document, t + 1]] - logits[document, t].mean()
            for t in np.flatnonzero(rows[document])
        ]
        assert trials.base[0, document] == pytest.approx(np.mean(own), abs=1e-4)
