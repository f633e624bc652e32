"""Evidence of planted heads: pattern only if, and only if, their output does nothing."""

import pytest

import headatlas as ha
from headatlas.circuits.causal.effects import causal_effects
from headatlas.interp.errors import InputError
from tests.circuits.planted import Plant, planted_model
from tests.circuits.planted_corpus import planted_documents, planted_tokenizer

FEEDERS = (("offset-1", 1.0), ("offset-5", 0.9))
IDLE = (("first", 0.9), ("offset-3", 0.9))
NSUBJ = "syntactic.nsubj.to_head"
MASSES = 0.9, 0.5


def planted(relation, live):
    """Two heads of one relation, and four that do nothing for it but feed it."""
    heads = tuple(Plant(relation, mass, one) for mass, one in zip(MASSES, live, strict=True))
    return planted_model(FEEDERS, heads, IDLE)


def of_induction(model):
    atlas = ha.classify(model, kinds="previous_token,induction", prompts=24, seq_len=48)
    found = causal_effects(model, None, atlas, prompts=16, seq_len=40, ablations=["mean"])
    return "induction", atlas, found


def of_words(model):
    tokenizer, documents = planted_tokenizer(), planted_documents(100)
    atlas = ha.classify(
        model, tokenizer, kinds=NSUBJ, treebank=documents, prepend_bos=True, prompts=16
    )
    others = planted_documents(40, seed=1)
    found = causal_effects(
        model, tokenizer, atlas, treebank=others, prepend_bos=True, ablations=["mean"]
    )
    return NSUBJ, atlas, found


@pytest.mark.parametrize("live", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(("relation", "test"), [("induction", of_induction), ("lexical", of_words)])
def test_live_heads_alone_are_causal(relation, test, live):
    kind, atlas, found = test(planted(relation, live))
    heads = [ha.HeadId.parse("L1H0"), ha.HeadId.parse("L1H1")]
    assert set(atlas.heads(kind, "strong")) == set(heads)
    expected = [head for head, works in zip(heads, live, strict=True) if works]
    assert sorted(found.heads(kind)) == expected
    idle = [head for head in heads if head not in expected]
    assert sorted(found.heads(kind, "pattern only")) == idle
    told = atlas.with_evidence(found)
    for head, works in zip(heads, live, strict=True):
        evidence = "pattern + causal" if works else "pattern only"
        assert told[head][kind]["evidence"] == evidence
    rows = found.rows.loc[found.rows["kind"] == kind]
    for effect, works in zip(rows["effect"], live, strict=True):
        assert effect > 0.1 if works else abs(effect) < 1e-5
    # too few others for a rate of false discoveries
    assert not rows["controlled"].any()
    assert "false ones not controlled" in repr(found)


def test_without_others_a_label_is_not_tested():
    model = planted_model(
        (Plant("offset-1", 1.0), Plant("offset-1", 0.9)), (("induction", 0.9), ("induction", 0.5))
    )
    atlas = ha.classify(model, kinds="previous_token,induction", prompts=24, seq_len=48)
    found = causal_effects(model, None, atlas, prompts=16, seq_len=40, ablations=["mean"])
    assert "none is left to compare with" in found.untested["induction"]
    assert set(found.rows["kind"]) == {"previous_token"}
    with pytest.raises(InputError, match="none is left to compare with"):
        causal_effects(model, None, atlas, kinds="induction")
