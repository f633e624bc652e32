"""The page on kinds says what the registry has, and its formulas what the labels match."""

import re
from pathlib import Path

import pytest

import headatlas as ha
from headatlas.circuits.words.kinds import WORD_KINDS
from headatlas.circuits.words.syntax import DIRECTIONS, VOITA_MARGIN, syntactic_kind
from headatlas.interp.parsed import Parsed

from . import kind_formulas

DOCS = Path(__file__).parent.parent / "docs"


def one_line(text):
    return " ".join(text.split())


KINDS = (DOCS / "kinds.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### `([^`]+)`\n(.*?)(?=^##|\Z)", KINDS, re.MULTILINE | re.DOTALL))
NULLS = {"uniform": "every visible key alike", "profile": "the head's own habits of position"}


def formula(name):
    """The lines of a kind's formula, as they stand."""
    return tuple(line.strip() for line in re.findall(r"^    (.*)$", SECTIONS[name], re.MULTILINE))


class TestKinds:
    """docs/kinds.md against the registry.

    Definitions, nulls, prompts, verdicts and behaviours word for word; formulas by what a second
    reading of them gives on a document; sources by the list of references.
    """

    def test_it_has_every_kind_and_no_other(self):
        syntactic = [f"syntactic.RELATION.{way}" for way in DIRECTIONS]
        assert list(SECTIONS) == [*ha.KINDS, *syntactic, *WORD_KINDS]

    @pytest.mark.parametrize("name", list(SECTIONS))
    def test_each_has_a_formula_and_a_source(self, name):
        body = SECTIONS[name]
        assert re.search(r"^    score = ", body, re.MULTILINE)
        years = re.findall(r"([A-Z]\w+) (?:and \w+ )?(\d{4})", body.split("- Source:")[1])
        references = one_line(KINDS.split("References:")[1])
        for author, year in years:
            assert re.search(rf"{author} (et al\. |and \w+ )?{year}", references), (author, year)
        assert years

    def test_every_reference_is_somebodys_source(self):
        text, listed = one_line(KINDS).split("References:")
        for author, year in re.findall(r"(\w+) et al\. (\d{4})", listed):
            assert f"{author} {year}" in text, (author, year)

    @pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
    @pytest.mark.parametrize("name", list(ha.KINDS))
    def test_formulas_say_what_is_matched(self, name, causal):
        """Every cell of a document, by the formula as it stands and by the kind's labels."""
        lines, read = kind_formulas.READ[name]
        assert formula(name) == lines
        assert len(lines) == 2 or name in kind_formulas.SAME_IN_ENCODERS
        document = kind_formulas.document(causal)
        variants = ha.KINDS[name].variants(document)
        chosen = {"offset": "-3", "grid_neighbour": "up"}.get(name, "")
        expected = read(document, causal)
        assert kind_formulas.matched(variants[chosen], causal) == expected
        assert any(expected.values())

    def test_formulas_between_words(self):
        """Ann gave Bob tea: two words on one head, and each on it."""
        parsed = Parsed(
            "Ann gave Bob tea", ((0, 3), (4, 8), (9, 12), (13, 16)), (0,) * 4, (1, -1, 1, 1),
            ("nsubj", "root", "obj", "obj"),
        )  # fmt: skip
        read = {
            "to_head": ("score = mean over dependents w of [argmax_u W[w, u] = head(w)]",
                        [(2, (1,)), (3, (1,))]),
            "to_dependent": ("score = mean over heads w of [argmax_u W[w, u] ∈ dependents(w)]",
                             [(1, (2, 3))]),
        }  # fmt: skip
        for way, (line, links) in read.items():
            assert formula(f"syntactic.RELATION.{way}") == (line,)
            found = syntactic_kind("obj", way).linked(parsed)
            assert [(word, tuple(targets)) for word, targets in found] == links

    def test_names_are_told_apart(self):
        """`ha.KINDS` has the kinds on tokens alone."""
        assert "kinds on tokens stand in `ha.KINDS`" in one_line(KINDS)
        assert not {*WORD_KINDS, "syntactic"} & set(ha.KINDS)

    @pytest.mark.parametrize("kind", ha.KINDS.values(), ids=list(ha.KINDS))
    def test_kinds_on_tokens(self, kind):
        body = one_line(SECTIONS[kind.name])
        assert body.startswith(kind.definition)
        prompts = ", ".join(kind.prompts)
        assert f"By chance: {NULLS[kind.null]}. Prompts: {prompts}." in body
        legacy = kind.legacy.rule if kind.legacy else None
        assert ("Legacy verdict:" in body) == (legacy is not None)
        if legacy:
            assert f"Legacy verdict: {legacy}." in body
        assert ("Removal should harm:" in body) == (kind.behaviour is not None)
        if kind.behaviour:
            harmed = kind.behaviour.definition
            assert f"Removal should harm: {harmed[0].lower()}{harmed[1:]}" in body

    @pytest.mark.parametrize("way", DIRECTIONS)
    def test_syntactic_kinds(self, way):
        body = one_line(SECTIONS[f"syntactic.RELATION.{way}"])
        assert body.startswith(syntactic_kind("nsubj", way).definition.replace("nsubj", "RELATION"))

    def test_the_margin_of_syntactic_kinds(self):
        assert f"Voita 2019: by {VOITA_MARGIN * 100:.0f} points" in one_line(KINDS)

    @pytest.mark.parametrize("kind", WORD_KINDS.values(), ids=list(WORD_KINDS))
    def test_other_kinds_between_words(self, kind):
        body = one_line(SECTIONS[kind.name])
        assert body.startswith(kind.definition)
        assert re.findall(r"\(`(\w+)`\)", body) == list(kind.guesses)
