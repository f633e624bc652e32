"""The table on a terminal: nothing that matters is cut, whatever the width."""

import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headatlas.circuits.atlas import HeadAtlas
from headatlas.circuits.causal.effects import CausalEffects
from headatlas.circuits.columns import broken, fitting
from headatlas.circuits.show import show
from tests.circuits.test_atlas import MODEL, SETTINGS, row

WORDS = "syntactic.nsubj.to_dependent"
PARSED = {
    "prompts": {"random": 64, "treebank": 318}, "seq_len": {"random": 256, "treebank": 256},
}  # fmt: skip


def made(rows, **settings):
    return HeadAtlas(pd.DataFrame(rows), dict(MODEL), {"torch": "2"}, {**SETTINGS, **settings})


def printed(atlas, width=80):
    console = Console(file=io.StringIO(), width=width)
    show(atlas, console)
    return console.file.getvalue()


def effects(*evidence, kinds=("previous_token", WORDS), untested=None):
    """Effects, as much of them as an atlas reads."""
    rows = [
        {"site": "", "layer": 11, "head": 10, "kind": kind, "evidence": one}
        for kind, one in zip(kinds, evidence, strict=False)
    ]
    frame = pd.DataFrame(rows, columns=["site", "layer", "head", "kind", "evidence"])
    return CausalEffects(frame, {}, untested or {}, {"seed": 0})


def between(**changes):
    return row(
        11, 10, WORDS, 0.4, "strong", legacy=None, details={"prompts": "treebank"}, **changes
    )


def test_eighty_columns_hold_kinds_between_words_with_evidence():
    atlas = made([row(11, 10, "previous_token", 0.9, "strong"), between()])
    text = printed(atlas.with_evidence(effects("pattern + causal", "pattern only")))
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    first = next(line for line in lines if line.startswith("L11H10 previous_token"))
    assert first.split()[2:] == [
        "1.000", "0.90", "[0.85,", "0.95]", "strong", "pattern", "+", "causal",
    ]  # fmt: skip
    at = next(place for place, line in enumerate(lines) if "L11H10 syntactic.nsubj." in line)
    assert lines[at].endswith("0.40 [0.35, 0.45] strong pattern only")
    assert lines[at + 1].strip() == "to_dependent"
    assert "No room for: expected, natural, legacy;" in text
    assert "legacy: the field's" not in text


def test_columns_without_a_value_go_at_any_width():
    header = next(line for line in printed(made([between()]), 200).splitlines() if "kind" in line)
    assert header.split() == ["head", "kind", "score", "expected", "excess", "[95", "%]", "grade"]
    both = printed(made([between(), row(0, 0, "offset", 0.9, "strong")]), 200)
    assert "natural grade  legacy" in both
    assert "legacy: the field's" in both


@pytest.mark.parametrize("width", [20, 30, 45, 60, 80])
def test_no_number_is_elided_at_any_width(width):
    rows = [row(0, head, "offset", 0.5 + head / 100, "strong") for head in range(3)]
    table = printed(made(rows), width).split("score:")[0]
    assert "…" not in table
    assert sum(map(str.isdigit, table)) >= 3 * len("00 0600 051 050 055".replace(" ", ""))


def test_nothing_labelled_is_one_line():
    text = printed(made([row(0, 0, "offset", 0.0, "none")]))
    assert text.startswith("No head of m<b> is labelled.\n")
    assert "expected" not in text
    assert "score:" not in text


def test_parsed_documents_are_told_by_their_words():
    told = " ".join(printed(made([between()], **PARSED)).split())
    assert "64 × 256 random tokens, 318 parsed documents; BOS" in told
    parsed = {"documents": 318, "words": 25150, "origin": "given"}
    told = " ".join(printed(made([between()], parsed=parsed, **PARSED)).split())
    assert "318 parsed documents (25,150 words); BOS" in told
    own = {**parsed, "origin": "built-in grammar"}
    told = " ".join(printed(made([between()], parsed=own, **PARSED)).split())
    assert "318 parsed documents of the built-in grammar (25,150 words)" in told
    printed(made([between()], parsed={"words": "[bold]", "origin": []}, settled=3, **PARSED))


def test_documents_that_did_not_grow_are_told():
    rounds = {"settled": True, "treebank": "a fixed number of documents"}
    told = printed(made([between()], settled=rounds, **PARSED))
    assert "documents were added for kinds on tokens alone" in told
    assert "were added" not in printed(made([between()], settled={"settled": True}, **PARSED))


def test_what_was_not_tested_is_said_with_the_reason(tmp_path):
    """Of evidence that was sought and not found, `no head` is said only where heads were tested."""
    atlas = made([row(11, 10, "previous_token", 0.9, "strong"), between()])
    none = atlas.with_evidence(effects(untested={WORDS: "no text [bold]", "previous_token": "so"}))
    assert "pattern + causal: not tested\n" in repr(none)
    assert f"not tested by removal: {WORDS}: no text [bold]" in repr(none)
    assert "no head" not in repr(none)
    assert "no text [bold]" in printed(none)
    assert HeadAtlas.load(none.save(tmp_path / "a.json")).summary() == none.summary()
    one = none.with_evidence(effects("pattern only"))
    assert "pattern + causal: no head\n" in repr(one)
    assert "removal: previous_token" not in repr(one)
    assert f"not tested by removal: {WORDS}: no text [bold]" in repr(one)
    frame = effects("pattern + causal", kinds=[WORDS]).rows
    assert "not tested" not in repr(one.with_evidence(frame))
    assert "since no head is labelled" in repr(
        made([row(0, 0, "offset", 0.0, "none")]).with_evidence(effects())
    )


@given(name=st.from_regex(r"[a-z_]{1,9}(\.[a-z_]{1,9}){0,3}( [a-z+0-9]{1,9})?", fullmatch=True),
       width=st.integers(1, 40))  # fmt: skip
def test_a_broken_name_is_whole(name, width):
    lines = broken(name, width).split("\n")
    assert "".join(lines) == name.replace(" ", "") or " ".join(lines).replace(". ", ".") == name
    parts = name.replace(".", ". ").split()
    assert max(map(len, lines)) <= max(width, *map(len, parts), len(parts[0]))


@given(st.integers(1, 120))
def test_what_fits_is_no_wider_than_the_line(width):
    cells = {"a": ["L1H1", "L11H11"], "kind": [WORDS, "offset -1"], "x": ["1", "–"], "y": ["–"] * 2}
    shown = fitting(cells, width, spare=["y", "x"], wraps="kind")
    assert "y" not in shown
    assert ("x" in shown) == (width >= 7 + 29 + 2)
    total = sum(
        1 + max(len(line) for cell in (name, *own) for line in cell.split("\n"))
        for name, own in shown.items()
    )
    assert total <= max(width, 7 + len("syntactic.") + 4)
