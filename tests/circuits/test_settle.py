"""Rounds of documents: what is reused, when it stops, what it says."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import headatlas as ha
from headatlas.circuits.battery import Battery
from headatlas.circuits.grade import Rule
from headatlas.circuits.kinds import choose_kinds
from headatlas.circuits.label import label
from headatlas.circuits.score import score
from headatlas.circuits.settle import labels_of, overlap, scorer, settle
from headatlas.circuits.sums import Sums
from headatlas.interp.errors import InputError

RULE = Rule(resamples=100)


@pytest.fixture(scope="module")
def tiny_sets():
    model, tokenizer = ha.load("tiny")
    kinds = choose_kinds("previous_token,induction,delimiter,semantic")
    sets = Battery(64, 24).prompt_sets(model, tokenizer, kinds, causal=True)
    return model, kinds, sets


def test_documents_scored_in_rounds_equal_one_run_over_all(tiny_sets):
    model, kinds, sets = tiny_sets
    more = scorer(model, sets, kinds, seed=5, null_draws=1)
    parts = [more(slice(0, 32)), more(slice(32, 64))]
    for name, prompts in sets.items():
        asked = [kind for kind in kinds if name in kind.reads]
        direct = score(model, prompts, asked, seed=5, null_draws=1)
        joined = Sums.join([part[name] for part in parts if name in part])
        for field in dataclasses.fields(Sums):
            one, other = getattr(joined, field.name), getattr(direct, field.name)
            if isinstance(one, np.ndarray):
                np.testing.assert_allclose(one, other, atol=2e-5, err_msg=f"{name} {field.name}")
    assert "classic" not in parts[1]


def test_it_scores_every_document_once_and_labels_as_one_run_does(tiny_sets):
    model, kinds, sets = tiny_sets
    asked, reports = [], []

    def counted(documents):
        asked.append((documents.start, documents.stop))
        return scorer(model, sets, kinds)(documents)

    found = settle(
        counted, sets, kinds, RULE, agreement=1.0, progress=lambda *report: reports.append(report)
    )
    assert asked == [(0, 32), (32, 64)][: len(found.rounds)]
    assert reports == [("settle", one.documents, 64) for one in found.rounds]
    last = found.rounds[-1]
    assert last.tokens == sum(int(p.mask[: last.documents].sum()) for p in sets.values())
    whole = scorer(model, sets, kinds)(slice(0, last.documents))
    direct = label(whole, kinds, RULE)
    assert labels_of(direct) == labels_of(found.frame)
    assert len(labels_of(direct)) > 3


def test_it_stops_when_the_halves_agree(tiny_sets):
    model, _, sets = tiny_sets
    kinds = choose_kinds("previous_token")
    found = settle(scorer(model, sets, kinds), sets, kinds, RULE, agreement=0.5)
    assert found.settled
    assert len(found.rounds) == 1
    assert found.rounds[0].between_halves >= 0.5
    assert found.rounds[0].between_rounds is None
    settings = found.settings()
    assert settings["documents"] == [32]
    assert settings["settled"] is True


def test_labels_that_never_agree_use_the_whole_budget(tiny_sets, monkeypatch):
    model, kinds, sets = tiny_sets
    calls = iter(range(10**6))

    def other_labels(*_, **__):
        return pd.DataFrame([{"site": "", "layer": next(calls), "head": 0, "kind": "x",
                              "grade": "strong"}])  # fmt: skip

    monkeypatch.setattr("headatlas.circuits.settle.label", other_labels)
    found = settle(scorer(model, sets, choose_kinds("offset")), sets, kinds, RULE)
    assert not found.settled
    assert [one.documents for one in found.rounds] == [32, 64]
    assert [one.between_rounds for one in found.rounds] == [None, 0.0]


def test_overlap_counts_labels_not_the_many_heads_without():
    assert overlap(frozenset("ab"), frozenset("ab")) == 1
    assert overlap(frozenset("ab"), frozenset("bc")) == pytest.approx(1 / 3)
    assert overlap(frozenset(), frozenset()) == 1


def test_refusals(tiny_sets):
    model, kinds, sets = tiny_sets
    more = scorer(model, sets, kinds)
    for options, message in (
        ({"first": 8}, "first is a whole number of at least 32"),
        ({"first": 100}, "at least 100 documents"),
        ({"agreement": 0.0}, "0 < agreement"),
    ):
        with pytest.raises(InputError, match=message):
            settle(more, sets, kinds, RULE, **options)
    with pytest.raises(InputError, match="scored no document of the first round"):
        settle(lambda _: {}, sets, kinds, RULE)
