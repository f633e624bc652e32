"""A head's card: one paragraph, and a list of every number."""

import html

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headatlas as ha
from headatlas.circuits.card_text import _TELLERS, paragraph
from headatlas.interp.heads import HeadId

CAUSAL = {
    "site": "", "layer": 2, "head": 2, "kind": "induction", "behaviour": "second_copy_loss",
    "ablation": "mean", "effect": 0.859, "low": 0.708, "high": 1.009, "layer_effect": -0.007,
    "p": 0.053, "q": 0.053, "evidence": "pattern + causal",
}  # fmt: skip
OV = {
    "site": "", "layer": 2, "head": 2, "copying": 0.998, "copying_expected": 0.002,
    "copying_sd": 0.107, "copying_z": 9.32,
}  # fmt: skip
PAIRS = [
    {"site": "", "layer": 2, "head": 2, "kind": "K", "source": f"L1H{i}", "z": z}
    for i, z in enumerate([49.0, -2.0, 27.0, None])
]


@pytest.fixture(scope="module")
def atlas():
    model, tokenizer = ha.load("tiny")
    return ha.classify(model, tokenizer, kinds="induction,offset", prompts=16, seq_len=96)


def test_the_paragraph_holds_every_number(atlas):
    card = atlas.with_evidence([CAUSAL]).with_table("ov", [OV]).with_table("composition", PAIRS)
    text = str(card["L2H2"])
    row = card["L2H2"]["induction"]
    assert text.startswith("L2H2 is labelled induction (strong).")
    assert f"{row['score']:.3f} of its weight" in text
    assert f"over {row['n']:,} rows of random tokens, {row['expected']:.3f} expected" in text
    assert "evidence: pattern + causal" in text
    assert "to second_copy_loss, which induction predicts: mean +0.859 [0.708, 1.009]" in text
    assert "OV copying 0.998 where random rotations give 0.002 ± 0.107 (z 9.3)" in text
    assert text.endswith("Its keys read most from L1H0 (z 49), L1H2 (z 27).")
    assert "\n" not in text
    assert html.escape(text) in card["L2H2"]._repr_html_()


def test_a_head_without_labels_says_so(atlas):
    head = next(head for head in atlas if not atlas[head].labels)
    assert str(atlas[head]).startswith(f"{head} has no label among 2 kinds")


def test_long_tables_are_cut(atlas):
    card = atlas.with_table("mine", [{**OV, "number": i} for i in range(9)])["L2H2"]
    assert repr(card).count("mine: copying") == 6
    assert "mine: … 3 more rows" in repr(card)


def test_a_table_of_ones_own_is_told(atlas):
    rows = [{**OV, "number": i, "note": "a<b"} for i in range(5)]
    other = [{"site": "", "layer": 2, "head": 2, "kind": "K", "wrong": None}]
    bare = [{"site": "", "layer": 2, "head": 2}]
    card = atlas.with_table("mine", rows).with_table("composition", other).with_table("bare", bare)
    text = str(card["L2H2"])
    told = "copying 0.998, copying_expected 0.002, copying_sd 0.107, copying_z 9.320"
    told += ", number {}, note a<b"
    assert f"mine: {'; '.join(told.format(i) for i in range(3))}; and 2 more rows." in text
    assert "composition: kind K, wrong –." in text  # not the columns of a composition
    assert "bare" not in text
    assert "a&lt;b" in card["L2H2"]._repr_html_()
    assert "mine" not in str(card["L2H1"])


cells = (
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text("ab<", max_size=3)
)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(_TELLERS)), data=st.data())
def test_any_cells_can_be_told(name, data):
    columns = _TELLERS[name][0].split()
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(columns, cells)), max_size=3))
    grades = pd.DataFrame(columns=["grade", "kind"], dtype=object)
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    assert isinstance(paragraph(HeadId("", 0, 0), grades, {name: frame}), str)
