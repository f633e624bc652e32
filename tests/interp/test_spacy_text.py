"""spaCy's trees into Universal Dependencies, with a pipeline made by hand."""

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
from headatlas.interp.spacy_text import LABELS, parse_text


@dataclass(eq=False)
class Token:
    i: int
    idx: int
    text: str
    dep_: str
    pos_: str
    lemma_: str
    is_space: bool = False
    head: Any = field(default=None, repr=False)


def pipeline(*rows):
    """A stand-in for a loaded model: rows of word, label, head, part of speech, lemma."""

    def parse(text):
        tokens, at = [], 0
        for i, (word, label, _, pos, lemma) in enumerate(rows):
            at = text.index(word, at)
            tokens.append(Token(i, at, word, label, pos, lemma, is_space=word.isspace()))
            at += len(word)
        for token, row in zip(tokens, rows, strict=True):
            token.head = tokens[row[2]]
        return tokens

    return parse


def row(word, label, head, pos="NOUN", lemma=None):
    return word, label, head, pos, lemma or word


def edges(text, *rows):
    parsed = parse_text(text, model=pipeline(*rows))
    return {
        parsed.word(w): (relation, parsed.word(head) if head >= 0 else None)
        for w, (head, relation) in enumerate(zip(parsed.heads, parsed.relations, strict=True))
    }


def test_prepositions_become_case_marks():
    found = edges(
        "men of Rome saw by eye", row("men", "nsubj", 3), row("of", "prep", 0, "ADP"),
        row("Rome", "pobj", 1, "PROPN"), row("saw", "ROOT", 3, "VERB"),
        row("by", "agent", 3, "ADP"), row("eye", "pobj", 4),
    )  # fmt: skip
    assert found == {
        "men": ("nsubj", "saw"), "of": ("case", "Rome"), "Rome": ("nmod", "men"),
        "saw": ("root", None), "by": ("case", "eye"), "eye": ("obl:agent", "saw"),
    }  # fmt: skip


def test_copulas_and_negation():
    found = edges(
        "it is not hard", row("it", "nsubj", 1, "PRON"), row("is", "ROOT", 1, "AUX", "be"),
        row("not", "neg", 1, "PART"), row("hard", "acomp", 1, "ADJ"),
    )  # fmt: skip
    assert found == {
        "it": ("nsubj", "hard"), "is": ("cop", "hard"), "not": ("advmod", "hard"),
        "hard": ("root", None),
    }  # fmt: skip


def test_coordination_hangs_on_the_first_and_cc_on_the_next():
    found = edges(
        "ann bo and cy", row("ann", "ROOT", 0), row("bo", "conj", 0), row("and", "cc", 1),
        row("cy", "conj", 1),
    )  # fmt: skip
    assert found["cy"] == ("conj", "ann")
    assert found["and"] == ("cc", "cy")


def test_clauses_under_prepositions_and_prepositions_alone():
    found = edges(
        "after eating he went up", row("after", "prep", 3, "ADP"),
        row("eating", "pcomp", 0, "VERB"), row("he", "nsubj", 3, "PRON"),
        row("went", "ROOT", 3, "VERB"), row("up", "prep", 3, "ADP"),
    )  # fmt: skip
    assert found["eating"] == ("advcl", "went")
    assert found["after"] == ("mark", "eating")
    assert found["up"] == ("advmod", "went")


def test_renamed_labels_blanks_and_sentences():
    rows = (
        row("she", "nsubjpass", 2, "PRON"), row("was", "auxpass", 2, "AUX", "be"),
        row("seen", "ROOT", 2, "VERB"), row("\n", "dep", 2, "SPACE"), row("yes", "ROOT", 4, "INTJ"),
    )  # fmt: skip
    parsed = parse_text("she was seen\nyes", model=pipeline(*rows))
    assert parsed.relations == ("nsubj:pass", "aux:pass", "root", "root")
    assert parsed.sentences == (0, 0, 0, 1)
    assert parsed.upos == ("PRON", "AUX", "VERB", "INTJ")


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_tree_stays_a_tree(data):
    n = data.draw(st.integers(1, 9))
    order = data.draw(st.permutations(range(n)))
    heads = {order[0]: order[0]}
    for place in range(1, n):
        heads[order[place]] = order[data.draw(st.integers(0, place - 1))]
    labels = st.sampled_from(sorted(LABELS - {"root"}))
    rows = [
        row(
            f"w{i}", "ROOT" if heads[i] == i else data.draw(labels), heads[i],
            data.draw(st.sampled_from(["NOUN", "VERB", "ADP"])), data.draw(st.sampled_from("xb")),
        )
        for i in range(n)
    ]  # fmt: skip
    rows = [(*r[:4], "be" if r[4] == "b" else "x") for r in rows]
    parsed = parse_text(" ".join(r[0] for r in rows), model=pipeline(*rows))
    assert [head for head in parsed.heads if head < 0] == [-1]
    for word in range(n):
        steps, at = 0, word
        while parsed.heads[at] >= 0:
            at, steps = parsed.heads[at], steps + 1
            assert steps <= n
    assert not {"prep", "pobj", "dobj", "attr", "ROOT"} & set(parsed.relations)


def test_without_spacy(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(InputError, match=r"headatlas\[spacy\]"):
        parse_text("It fell.")


def test_without_the_model(monkeypatch):
    class Util:
        @staticmethod
        def is_package(name):
            return False

    class Spacy:
        util = Util

    monkeypatch.setitem(sys.modules, "spacy", Spacy)
    with pytest.raises(InputError, match="python -m spacy download en_core_web_md"):
        parse_text("It fell.", model="en_core_web_md")
    with pytest.raises(InputError, match="not installed"):
        parse_text("It fell.", model="../elsewhere")


def test_what_is_no_english_parse():
    with pytest.raises(InputError, match="has no parser"):
        parse_text("es", model=pipeline(row("es", "", 0)))
    with pytest.raises(InputError, match="labels 'es' as 'oa'"):
        parse_text("es", model=pipeline(row("es", "oa", 0)))
    with pytest.raises(InputError, match="with words in it"):
        parse_text(" ", model=pipeline())
    with pytest.raises(InputError, match="finds no words"):
        parse_text("\u2003x", model=lambda text: [])
