"""Early and late loss, and the change when a head is taken away."""

import pytest
import torch

import headatlas as ha
from headatlas.circuits.in_context import in_context_scores
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Grammar
from headatlas.interp.interventions import freeze, mean, run, zero
from headatlas.interp.tokens import tokenize

SETTINGS = {"seq_len": 64, "documents": 16}


def losses_by_hand(model, ids, interventions, early, late):
    """Mean loss at the tokens of either span, per document."""
    logits = run(model, ids, interventions).logits.double()
    log_p = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    return [-log_p[:, span[0] - 1 : span[1] - 1].mean(1) for span in (early, late)]


def test_score_and_effects_are_those_of_interventions_one_document_at_a_time():
    model, tokenizer = ha.load("tiny")
    found = in_context_scores(
        model, tokenizer, heads=["L3H2", "L1H0", "L2H7"], ablation="zero", **SETTINGS
    )
    grammar = Grammar(0)
    texts = [grammar.document(16).text for _ in range(16)]
    ids = tokenize(tokenizer, texts, seq_len=64).ids
    early, late = losses_by_hand(model, ids, [], found.early, found.late)
    assert found.score == pytest.approx(float((late - early).mean()), abs=1e-4)
    assert [f"L{r['layer']}H{r['head']}" for r in found.rows.to_dict("records")] == [
        "L1H0", "L2H7", "L3H2",
    ]  # fmt: skip
    for row in found.rows.to_dict("records"):
        head = f"L{row['layer']}H{row['head']}"
        changes = [freeze(model, tokens=ids), zero(head)]
        losses = losses_by_hand(model, ids, changes, found.early, found.late)
        change = [float((a - b).mean()) for a, b in zip(losses, (early, late), strict=True)]
        assert row["early"] == pytest.approx(change[0], abs=1e-4)
        assert row["effect"] == pytest.approx(change[1] - change[0], abs=1e-4)
        assert row["low"] <= row["effect"] <= row["high"]


def test_the_mean_is_that_of_the_documents_and_leaves_no_trace():
    model, tokenizer = ha.load("tiny")
    before = model(torch.tensor([[5, 6, 7, 8]])).logits
    found = in_context_scores(model, tokenizer, heads="L0H3", **SETTINGS)
    assert torch.equal(model(torch.tensor([[5, 6, 7, 8]])).logits, before)
    grammar = Grammar(0)
    ids = tokenize(tokenizer, [grammar.document(16).text for _ in range(16)], seq_len=64).ids
    plain = losses_by_hand(model, ids, [], found.early, found.late)
    changes = [freeze(model, tokens=ids), mean(model, ids, "L0H3")]
    changed = losses_by_hand(model, ids, changes, found.early, found.late)
    row = found.rows.iloc[0]
    assert row["early"] == pytest.approx(float((changed[0] - plain[0]).mean()), abs=1e-4)
    assert row["late"] == pytest.approx(float((changed[1] - plain[1]).mean()), abs=1e-4)
    assert abs(row["early"]) > 1e-3


def test_without_heads_there_is_the_score_alone():
    found = in_context_scores(*ha.load("tiny"), heads=[], **SETTINGS)
    assert found.rows.empty
    assert "no head ablated" in repr(found)
    assert (found.early, found.late) == ((5, 7), (61, 63))


def test_refusals():
    model, tokenizer = ha.load("tiny")
    for options, message in (
        ({"ablation": "none"}, "ablation is one of zero, mean"),
        ({"documents": 3}, "documents is a whole number of at least 16"),
        ({"seq_len": 20}, "seq_len is a whole number of at least 64"),
        ({"seq_len": 5000}, "within the model's context of 1024"),
        ({"heads": "L9H0"}, "the model has no query head L9H0"),
    ):
        with pytest.raises(InputError, match=message):
            in_context_scores(model, tokenizer, **options)
