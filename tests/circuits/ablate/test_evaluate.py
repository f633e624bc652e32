"""Losses without heads, against plain eager torch with slices of o_proj's input set by hand."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertForMaskedLM

from headatlas.circuits.ablate import evaluate as module
from headatlas.circuits.ablate.evaluate import evaluate, repeated_probe
from headatlas.circuits.behaviour import copied_next, has_next
from headatlas.circuits.causal.stand_in import Removal
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from headatlas.interp.texts import Documents
from tests.circuits.causal.models import gemma2, gpt2, llama, repeats

HEADS = [HeadId("", layer, head) for layer in range(3) for head in range(4)]
SETS = [[], [HEADS[0]], [HEADS[5]], [HEADS[2], HEADS[3], HEADS[11]], HEADS]


def documents(side=None, **options):
    return Documents(repeats(side=side, **options), "by hand")


def in_double(model):
    """A copy in float64, with eager attention."""
    double = copy.deepcopy(model).double().eval()
    double.set_attn_implementation("eager")
    return double


def log_probabilities(double, prompts, document, change=None):
    """log p of one document; `change(layer, x)` edits o_proj's x [1, pos, heads · d_head]."""
    handles = [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _module, args, number=number: (
                None if change is None else (change(number, *args),)
            )
        )
        for number, layer in enumerate(double.model.layers)
    ]
    own = prompts.mask[document]
    with torch.no_grad():
        logits = double(torch.from_numpy(prompts.ids[document][own])[None]).logits[0]
    for handle in handles:
        handle.remove()
    return logits.log_softmax(-1), prompts.ids[document][own]


def by_hand(model, prompts, change):
    """Loss of the whole model, of the changed one, and KL between them, per document."""
    found, double = [], in_double(model)
    for document in range(len(prompts)):
        p, ids = log_probabilities(double, prompts, document)
        q, _ = log_probabilities(double, prompts, document, partial(change, document))
        at = torch.arange(len(ids) - 1), torch.from_numpy(ids[1:])
        kl = (p[:-1].exp() * (p - q)[:-1]).sum(-1).mean()
        found.append([-float(p[at].mean()), -float(q[at].mean()), float(kl)])
    return np.array(found).T


def zeroed(heads):
    def change(_document, number, x):
        x = x.clone()
        for head in heads:
            if head.layer == number:
                x[..., 4 * head.head : 4 * head.head + 4] = 0  # d_head is 4
        return x

    return change


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_zero_ablation_is_that_of_plain_torch(side):
    model, read = llama(), documents(side)
    found = evaluate(model, read, SETS)
    assert found.resumed
    for place, heads in enumerate(SETS):
        base, loss, kl = by_hand(model, read.prompts, zeroed(heads))
        np.testing.assert_allclose(found.base, base, atol=2e-5)
        np.testing.assert_allclose(found.loss[place], loss, atol=5e-5)
        np.testing.assert_allclose(found.kl[place], kl, atol=5e-5)
    assert found.kl[1:].min() > 1e-4
    n = read.prompts.mask.sum(1) - 1
    assert found.n.tolist() == n.tolist()
    pooled = (n * (found.loss - found.base)).sum(1) / n.sum()
    np.testing.assert_allclose(found.delta_loss_nats, pooled, atol=1e-12)
    np.testing.assert_allclose(found.perplexity_ratio, np.exp(pooled), atol=1e-12)


@pytest.mark.parametrize("ablation", ["mean", "resample"])
def test_stand_ins_of_other_documents_are_those_of_plain_torch(ablation):
    model, read = llama(), documents()
    heads = [HEADS[1], HEADS[6]]
    kept = {}

    def keep(document, number, x):
        kept[document, number] = x.clone()
        return x

    by_hand(model, read.prompts, keep)
    found = evaluate(model, read, [heads], ablation=ablation, seed=2)
    # whatever was drawn: some document's values at the same positions, or the others' mean
    donors = module.trials_of(
        model, read.prompts, has_next(read.prompts), seed=2
    )._stand_ins.donors()

    def change(document, number, x):
        x = x.clone()
        for head in heads:
            if head.layer == number:
                own = slice(4 * head.head, 4 * head.head + 4)
                taken = [donors[document]]
                if ablation == "mean":
                    taken = [d for d in range(len(read)) if d != document]
                others = torch.stack([kept[d, number][..., own] for d in taken])
                x[..., own] = others.mean(0)
        return x

    _, loss, kl = by_hand(model, read.prompts, change)
    np.testing.assert_allclose(found.loss[0], loss, atol=5e-5)
    np.testing.assert_allclose(found.kl[0], kl, atol=5e-5)
    assert kl.min() > 1e-4


@pytest.mark.parametrize("build", [gpt2, llama, gemma2])
@pytest.mark.parametrize("ablation", ["zero", "mean", "resample"])
def test_no_heads_change_nothing_at_all(build, ablation):
    found = evaluate(build(), documents("right"), [[]], ablation=ablation)
    assert found.delta_loss_nats.tolist() == [0.0]
    assert found.kl_nats.tolist() == [0.0]
    assert found.perplexity_ratio.tolist() == [1.0]


@pytest.mark.parametrize("build", [gpt2, llama, gemma2])
def test_the_model_as_its_own_reference_is_no_distance_away(build):
    """The reference's path is another: the same model run anew, and its empty set too."""
    model, read = build(), documents("left")
    heads = [[], [HeadId("", 1, 1)]]
    plain, other = evaluate(model, read, heads), evaluate(model, read, heads, reference=model)
    np.testing.assert_allclose(other.base, plain.base, atol=2e-5)
    np.testing.assert_allclose(other.loss, plain.loss, atol=2e-5)
    np.testing.assert_allclose(other.kl, plain.kl, atol=2e-5)
    assert plain.kl[1].min() > 1e-4


def test_another_model_as_the_reference():
    model, first, read = llama(1), llama(2), documents()
    found = evaluate(model, read, [[]], reference=first)
    np.testing.assert_allclose(found.base, by_hand(first, read.prompts, zeroed([]))[0], atol=2e-5)
    np.testing.assert_allclose(
        found.loss[0], by_hand(model, read.prompts, zeroed([]))[0], atol=2e-5
    )
    doubles = in_double(first), in_double(model)
    for document in range(len(read)):
        p, q = (log_probabilities(one, read.prompts, document)[0][:-1] for one in doubles)
        kl = float((p.exp() * (p - q)).sum(-1).mean())
        assert found.kl[0, document] == pytest.approx(kl, abs=5e-5)


def test_logits_that_are_no_embedding_of_the_last_states():
    """Gemma 2 caps its logits: losses come from its own forward pass."""
    model, read = gemma2(), documents()
    head = HeadId("", 1, 0)
    found = evaluate(model, read, [[head]])
    ids = torch.from_numpy(read.prompts.ids)
    handle = model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(
        lambda _module, args: (torch.cat([0 * args[0][..., :8], args[0][..., 8:]], -1),)
    )
    with torch.no_grad():
        q = model(ids).logits.double().log_softmax(-1)[:, :-1]
        handle.remove()
        p = model(ids).logits.double().log_softmax(-1)[:, :-1]
    loss = -q.gather(2, ids[:, 1:, None])[..., 0].mean(1)
    np.testing.assert_allclose(found.loss[0], loss, atol=5e-5)
    np.testing.assert_allclose(found.kl[0], (p.exp() * (p - q)).sum(-1).mean(1), atol=5e-5)


@pytest.fixture(scope="module")
def model():
    return llama()


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sets(st.sampled_from(HEADS), max_size=4), min_size=1, max_size=20))
def test_any_sets_in_any_order_are_those_one_by_one(model, sets):
    read = documents(documents=3, length=8)
    together = evaluate(model, read, [sorted(one) for one in sets])
    alone = evaluate(model, read, [sorted(sets[-1])])
    np.testing.assert_allclose(together.loss[-1], alone.loss[0], atol=5e-5)
    np.testing.assert_allclose(together.kl[-1], alone.kl[0], atol=5e-5)


def test_groups_of_documents_for_memory(monkeypatch):
    model, read = llama(), documents("right", documents=6)
    whole = evaluate(model, read, SETS)
    monkeypatch.setattr(module, "_KEPT_BYTES", 10_000)
    groups = evaluate(model, read, SETS)
    assert whole.groups == 1
    assert groups.groups == 3
    np.testing.assert_allclose(groups.loss, whole.loss, atol=5e-5)
    np.testing.assert_allclose(groups.kl, whole.kl, atol=5e-5)


def test_small_batches_give_the_same(monkeypatch):
    model, read = gpt2(), documents("left")
    sets = [[HeadId("", 0, 1)], [HeadId("", 2, 0)]]
    whole = evaluate(model, read, sets, ablation="mean")
    monkeypatch.setattr(module, "_BATCH_TOKENS", 1)
    monkeypatch.setattr("headatlas.circuits.causal.readings._ROWS", 2)
    small = evaluate(model, read, sets, ablation="mean")
    np.testing.assert_allclose(small.loss, whole.loss, atol=5e-5)
    np.testing.assert_allclose(small.kl, whole.kl, atol=5e-5)


def test_tokens_that_are_never_predicted_count_nothing():
    """A logit of −inf in both is 0 log 0, not NaN."""
    model, read = gpt2(), documents()
    head = torch.nn.Linear(16, 60, bias=True)
    with torch.no_grad():
        head.weight.copy_(model.lm_head.weight)
        head.bias.zero_()
        finite = _with_head(model, head, read)
        head.bias[0] = float("-inf")
        found = _with_head(model, head, read)
    assert np.isfinite(found.kl).all()
    assert found.kl.min() > 1e-4
    assert not np.allclose(found.kl, finite.kl)


def _with_head(model, head, read):
    model.lm_head = head
    model.config.tie_word_embeddings = False
    return evaluate(model, read, [[HeadId("", 1, 0)]])


def test_second_copies_alone():
    model = gpt2()
    probe = repeated_probe(model, None, prompts=16, seq_len=32)
    found = evaluate(model, probe, [[HeadId("", 0, 0)]])
    counted = copied_next(replace(probe.prompts, counted=None))
    assert found.n.tolist() == counted.sum(1).tolist()
    rows = replace(probe.prompts, counted=~counted)
    rest = evaluate(model, Documents(rows, "the rest"), [[HeadId("", 0, 0)]])
    whole = evaluate(model, Documents(replace(rows, counted=None), "all"), [[HeadId("", 0, 0)]])
    assert (found.n + rest.n).tolist() == whole.n.tolist()
    np.testing.assert_allclose(found.n * found.loss + rest.n * rest.loss, whole.n * whole.loss)
    assert 0 < found.n.sum() < probe.prompts.mask.sum() / 2


def test_progress_counts_sets():
    seen = []
    evaluate(llama(), documents(), SETS * 8, progress=lambda *told: seen.append(told))
    assert seen == [("ablate random", 16, 32), ("ablate random", 32, 32)]


def _encoder():
    return BertForMaskedLM(
        BertConfig(
            vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=24,
        )
    ).eval()  # fmt: skip


def test_what_cannot_be_evaluated_is_refused():
    model, read = llama(), documents()
    with pytest.raises(InputError, match="is an encoder"):
        evaluate(_encoder(), read, [[]])
    with pytest.raises(InputError, match="has no language-model head"):
        evaluate(model.model, read, [[]])
    with pytest.raises(InputError, match="no head L9H0"):
        evaluate(model, read, [[HeadId("", 9, 0)]])
    with pytest.raises(InputError, match="at least one; got"):
        evaluate(model, read, [])
    with pytest.raises(InputError, match="got L0H0 in it"):
        module._sets([HEADS[0]])
    with pytest.raises(InputError, match="documents are what"):
        evaluate.__wrapped__(model, read.prompts, [[]])
    with pytest.raises(InputError, match="heads are removed by one of"):
        evaluate(model, read, [[]], ablation="noise")
    with pytest.raises(InputError, match="there is a single one"):
        evaluate(model, documents(documents=1), [[HEADS[0]]], ablation="mean")
    with pytest.raises(InputError, match="'whole model' or a model"):
        evaluate(model, read, [[]], reference="another")
    wider = llama()
    wider.resize_token_embeddings(70)
    with pytest.raises(InputError, match="has 70 tokens and the model 60"):
        evaluate(model, read, [[]], reference=wider)
    idle = replace(read.prompts, counted=np.zeros_like(read.prompts.mask))
    with pytest.raises(InputError, match="nothing is measured"):
        evaluate(model, Documents(idle, "nothing counts"), [[]])


def test_one_way_at_a_time(as_users_call):
    with pytest.raises(InputError, match="ablation is one of zero, mean, resample here; got"):
        evaluate(llama(), documents(), [[]], ablation=["zero", "mean"])


def test_outputs_that_are_not_finite_are_refused():
    model = llama()
    with pytest.raises(InputError, match=r"not finite when L0H0 and 1 more is removed \(zero\)"):
        module.check_finite(np.full((1, 2, 3), np.nan), [Removal("zero", tuple(HEADS[:2]))])
    evaluate(model, documents(), [[HEADS[0]]])  # it was whole when it was first looked at
    torch.nn.init.constant_(model.lm_head.weight, 1e38)
    with pytest.raises(InputError, match="outputs are not finite on these documents"):
        evaluate(model, documents(), [[HEADS[0]]])
