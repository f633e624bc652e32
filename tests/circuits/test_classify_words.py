"""Kinds between words in `classify`: what is asked for, what is scored, what the atlas keeps."""

import pytest

import headatlas as ha
from headatlas.circuits.asked import ask
from headatlas.circuits.atlas import HeadAtlas
from headatlas.circuits.battery import Battery
from headatlas.circuits.words.kind import WordKind
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Grammar
from headatlas.interp.parsed import from_grammar


def names(asked):
    return [kind.name for kind in (*asked.kinds, *asked.words)]


@pytest.fixture(scope="module")
def documents():
    return [from_grammar(document) for document in Grammar(5).documents(24)]


@pytest.fixture(scope="module")
def atlas(documents):
    return ha.classify(
        *ha.load("tiny"), kinds="induction,syntactic,coreference", treebank=documents,
        prompts=16, seq_len=96, prepend_bos=True, null_draws=1,
    )  # fmt: skip


def test_names_are_sorted_by_what_they_are_scored_on():
    asked = ask("coreference, induction, syntactic.det.to_dependent", Battery())
    assert names(asked) == ["induction", "coreference", "syntactic.det.to_dependent"]
    assert asked.each_named
    assert not ask("syntactic.det", Battery()).each_named
    assert ask("syntactic", Battery()).kinds == ()
    assert all(not kind.name.startswith("syntactic") for kind in ask(None, Battery()).kinds)
    assert ask(None, Battery()).words == ()


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ("induction, syntax", "^unknown kind syntax; known: "),
        (["induction", 5, "no"], "^unknown kind 5, no; known: "),
        ([], "^no kind is named; known: "),
    ],
)
def test_unknown_names_are_told_all_that_there_is(kinds, message, as_users_call):
    with pytest.raises(InputError, match=message) as refused:
        ask(kinds, Battery())
    for name in ("previous_token", "semantic", "coreference", "syntactic[.RELATION"):
        assert name in str(refused.value)


def test_a_relation_that_does_not_stand_in_the_documents_is_refused(documents):
    for names in ("syntactic.foo", "syntactic.foo.to_head", "coreference, syntactic.foo"):
        for battery in (Battery(), Battery(treebank=documents)):
            with pytest.raises(InputError, match=r"under 'foo', .*; their relations are acl, "):
                ask(names, battery)


def test_a_treebank_brings_its_kinds(documents):
    words = names(ask(None, Battery(treebank=documents)))
    assert {"induction", "coreference", "syntactic.nsubj.to_dependent"} <= set(words)


def test_rows_of_both_sorts_stand_together(atlas, tmp_path):
    assert {"induction", "coreference", "syntactic.det.to_dependent"} <= set(atlas.kinds)
    det = atlas["L0H0"]["syntactic.det.to_dependent"]
    assert det["n"] >= 400
    assert det["details"]["prompts"] == "treebank"
    assert det["low"] <= det["excess"] <= det["high"]
    few = atlas["L0H0"]["syntactic.iobj.to_head"]
    assert few["grade"] == "insufficient"
    assert few["n"] < 400
    assert set(atlas.null_check["prompts"]) == {"random", "treebank"}
    back = HeadAtlas.load(atlas.save(tmp_path / "a.json"))
    assert repr(back) == repr(atlas)
    assert repr(back["L1H1"]) == repr(atlas["L1H1"])
    assert "too few instances to judge: " in repr(atlas)
    assert "syntactic.iobj.to_head" not in atlas["L0H0"].labels


def test_intervals_widen_with_the_hypotheses(atlas, documents):
    """The simultaneous level is over both sorts together."""
    alone = ha.classify(
        *ha.load("tiny"), kinds="induction", prompts=16, seq_len=96, prepend_bos=True
    )
    together = atlas["L2H2"]["induction"]
    own = alone["L2H2"]["induction"]
    assert own["excess"] == together["excess"]
    assert together["high"] - together["low"] > own["high"] - own["low"]


def test_a_kind_of_links_of_your_own(documents):
    def objects(parsed):
        for word, relation in enumerate(parsed.relations):
            if relation == "det":
                yield parsed.heads[word], [word]

    kind = WordKind("article", "The article of a noun.", objects)
    found = ha.classify(
        *ha.load("tiny"), kinds=[kind], treebank=documents, prompts=16, prepend_bos=True
    )
    assert [*found.kinds] == ["article"]
    assert found["L0H0"]["article"]["n"] >= 400


@pytest.mark.parametrize(
    ("treebank", "message"),
    [(3, "path of a CoNLL-U file, or Parsed documents; got int"), ([], "got none"),
     (["a"], "got str"), ({}, "got dict")],
)  # fmt: skip
def test_what_is_no_treebank_is_refused(treebank, message):
    with pytest.raises(InputError, match=message):
        Battery(treebank=treebank)


def test_words_need_a_tokenizer(documents):
    model, _ = ha.load("tiny")
    with pytest.raises(InputError, match=r"coreference needs natural text and so a tokenizer"):
        ha.classify(model, None, kinds="coreference")


def test_prompts_are_added_until_labels_settle():
    atlas = ha.classify(*ha.load("tiny"), kinds="previous_token", prompts="auto", seq_len=48)
    settled = atlas.settings["settled"]
    assert settled["settled"]
    assert atlas.settings["prompts"]["random"] == settled["documents"][-1] < 512
    fixed = ha.classify(
        *ha.load("tiny"), kinds="previous_token", prompts=settled["documents"][-1], seq_len=48
    )
    assert set(fixed.heads("previous_token")) == set(atlas.heads("previous_token"))


def test_parsed_documents_do_not_grow_and_the_settings_say_so():
    atlas = ha.classify(
        *ha.load("tiny"), kinds="previous_token, coreference", prompts="auto", seq_len=48
    )
    assert atlas.settings["settled"]["treebank"].startswith("a fixed number of documents")
    assert atlas.settings["prompts"]["treebank"] == 64
    parsed = atlas.settings["parsed"]
    assert (parsed["documents"], parsed["origin"]) == (64, "built-in grammar")
    assert parsed["words"] > 64 * 10


def test_given_documents_are_told_from_those_of_the_grammar(atlas, documents):
    words = sum(len(document.spans) for document in documents)
    assert atlas.settings["parsed"]["origin"] == "given"
    assert 0 < atlas.settings["parsed"]["words"] <= words
