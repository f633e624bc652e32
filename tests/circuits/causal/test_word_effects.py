"""Kinds between words under removal: their documents, their rows, one sweep for all."""

import numpy as np
import pytest
import torch

import headatlas as ha
from headatlas.circuits.behaviour import Behaviour, has_next
from headatlas.circuits.causal.effects import causal_effects
from headatlas.circuits.causal.evidence import by_unit
from headatlas.circuits.causal.sweep import sweep
from headatlas.circuits.causal.word_documents import (
    SENTENCES_EACH,
    WORD_LEN,
    word_behaviour,
    word_documents,
)
from headatlas.circuits.words.coreference import COREFERENCE
from headatlas.circuits.words.kind import WordKind
from headatlas.circuits.words.syntax import syntactic_kind
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_whole
from headatlas.interp.grammar import Grammar
from headatlas.interp.parsed import from_grammar
from tests.circuits.causal.models import gpt2, loss_by_hand
from tests.circuits.causal.test_planted_evidence import NSUBJ, planted
from tests.circuits.planted_corpus import planted_documents, planted_tokenizer

TO_HEAD = syntactic_kind("nsubj", "to_head")


@pytest.fixture(scope="module")
def corpus():
    """A model with a live and an idle lexical head, its labels, and documents that gave none."""
    model, tokenizer = planted("lexical", (True, False)), planted_tokenizer()
    mine = WordKind("mine", "As nsubj.to_head.", TO_HEAD.links)
    atlas = ha.classify(
        model, tokenizer, kinds=[NSUBJ, mine], treebank=planted_documents(100), prepend_bos=True,
        prompts=16,
    )  # fmt: skip
    return model, tokenizer, atlas, mine, planted_documents(40, seed=1)


@pytest.fixture(scope="module")
def grammar():
    return word_documents(*ha.load("tiny"), prompts=24)


def test_rows_are_the_last_tokens_of_words_that_see_a_link(grammar):
    words = grammar.words
    rows = grammar.rows(TO_HEAD)
    expected = np.zeros_like(rows)
    for sequence, document in enumerate(words.documents):
        for word, (head, relation) in enumerate(
            zip(document.heads, document.relations, strict=True)
        ):
            if 0 <= head < word and relation.split(":")[0] == "nsubj":
                (columns,) = np.nonzero(words.word_of[sequence] == word)
                expected[sequence, columns[-1]] = words.visible(sequence, word, head)
    expected &= has_next(grammar.prompts)
    assert expected.any()
    np.testing.assert_array_equal(rows, expected)


def test_the_measure_is_the_loss_by_hand(corpus):
    model, tokenizer, *_, others = corpus
    documents = word_documents(model, tokenizer, treebank=others, prepend_bos=True)
    behaviour = word_behaviour(TO_HEAD, documents)
    assert isinstance(behaviour, Behaviour)
    prompts = documents.prompts
    marked = behaviour.marked(prompts)
    ids = prompts.ids
    assert set(ids[marked].tolist()) <= set(range(100, 108))  # dependents, and no other word
    found = sweep(model, prompts, behaviour, heads=["L1H0"], ablations=["mean"])
    logits = run_whole(model, torch.from_numpy(ids), torch.from_numpy(prompts.mask)).logits
    np.testing.assert_allclose(found.base[0], loss_by_hand(logits, prompts, marked), atol=1e-4)


def test_documents_are_others_few_and_short(grammar):
    words, prompts = grammar.words, grammar.prompts
    assert words.n_units == 24
    assert grammar.n_sentences == 24 * SENTENCES_EACH
    assert prompts.ids.shape[1] <= WORD_LEN
    texts = {document.text for document in words.documents}
    labelled_on = "\n".join(from_grammar(d).text for d in Grammar(0).documents(64))
    assert not any(text in labelled_on for text in texts)
    length = np.sort(prompts.mask.sum(1))
    assert length[-1] == length[-2]  # so that `resample` finds another as long
    behaviour = word_behaviour(COREFERENCE, grammar)
    assert isinstance(behaviour, Behaviour)
    assert behaviour.name == "coreference_loss"


@pytest.mark.parametrize(("given", "taken"), [(20, 20), (31, 31), (32, 16), (41, 21), (200, 64)])
def test_half_of_a_treebank_is_taken_where_there_is_enough(given, taken):
    documents = planted_documents(given)
    found = word_documents(
        planted("lexical", (True, False)), planted_tokenizer(), treebank=documents, prompts=16
    )
    assert found.words.n_units == taken
    whole = {document.text for document in documents}
    assert all(document.text in whole for document in found.words.documents)


def test_several_kinds_share_one_sweep(corpus):
    model, tokenizer, atlas, mine, others = corpus
    stages = []
    found = causal_effects(
        model, tokenizer, atlas, kinds=["syntactic", mine], treebank=others, prepend_bos=True,
        ablations=["mean"], progress=lambda stage, done, total: stages.append((stage, done)),
    )  # fmt: skip
    assert stages == [("ablate treebank", done) for done in (2, 4, 6)]
    (swept,) = found.sweeps.values()
    assert swept.behaviours == ("syntactic_nsubj_to_head_loss", "mine_loss")
    assert found.heads("mine") == found.heads(NSUBJ) == [ha.HeadId("", 1, 0)]
    assert found.settings["parsed"]["sentences"] == len(swept.n[0]) == 20
    told = atlas.with_evidence(found)
    assert told["L1H0"]["mine"]["evidence"] == "pattern + causal"
    assert told["L1H1"]["mine"]["evidence"] == "pattern only"


def test_a_kind_may_have_a_behaviour_of_its_own(corpus):
    model, tokenizer, atlas, _, others = corpus
    everywhere = Behaviour("everywhere", "Loss.", "random", lambda p: p.mask)
    own = WordKind("mine", "As nsubj.to_head.", TO_HEAD.links, behaviour=everywhere)
    found = causal_effects(
        model, tokenizer, atlas, kinds=own, prompts=16, seq_len=40, ablations=["mean"]
    )
    assert set(found.rows["behaviour"]) == {"everywhere"}
    assert [*found.sweeps] == ["random"]
    assert found.settings["parsed"] is None
    with pytest.raises(InputError, match="treebank would go unread"):
        causal_effects(model, tokenizer, atlas, kinds=own, treebank=others)


def test_what_cannot_be_tested_is_named(corpus):
    model, tokenizer, atlas, _, others = corpus
    with pytest.raises(InputError, match=r"mine, which the registry does not have"):
        causal_effects(model, tokenizer, atlas, treebank=others)
    with pytest.raises(InputError, match="parsed documents, which need a tokenizer"):
        causal_effects(model, None, atlas, kinds=NSUBJ)
    rare = WordKind("mine", "A link in one document.", _in_one_document)
    with pytest.raises(InputError, match="its words occur in 1 of 20 parsed documents"):
        causal_effects(model, tokenizer, atlas, kinds=rare, treebank=planted_documents(20))
    with pytest.raises(InputError, match=r"'syntactic\.obj\.to_head' was not scored"):
        causal_effects(model, tokenizer, atlas, kinds="syntactic.obj")


def _in_one_document(document):
    return [(3, [1])] if document.name == "planted document 0" else []


def test_sequences_of_one_document_are_resampled_together():
    """The influence of a unit is that of its rows on the whole mean, by hand."""
    rng = np.random.default_rng(0)
    n, value = np.array([3, 1, 2, 4, 2]), rng.normal(size=(5, 2))
    unit = np.array([0, 0, 1, 2, 2])
    weights = n / n.sum()
    influence = len(n) * weights[:, None] * (value - weights @ value)
    got = by_unit(influence, unit)
    for one in range(3):
        own = unit == one
        wanted = 3 * (n[own, None] * (value[own] - weights @ value)).sum(0) / n.sum()
        np.testing.assert_allclose(got[one], wanted)
    np.testing.assert_allclose(got.mean(0), 0, atol=1e-12)


def test_an_encoder_or_a_model_without_head_is_refused():
    with pytest.raises(InputError, match="no language-model head"):
        word_documents(gpt2().transformer, planted_tokenizer())
