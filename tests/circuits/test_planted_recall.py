"""The measurement on planted models, on a handful of them (`tests/bench/planted.py` runs 200)."""

import numpy as np
import pandas as pd
import pytest

from tests.bench.planted import KINDS, WORD, is_right, measure, planted_kind, tables

from .planted import draw_layers

SEEDS = (1, 3)


@pytest.fixture(scope="module")
def rows():
    return pd.concat([measure(seed) for seed in SEEDS], ignore_index=True)


def test_drawn_models_begin_with_what_induction_reads():
    for seed in range(20):
        layers = draw_layers(np.random.default_rng(seed))
        assert len(layers) in (3, 4)
        assert (layers[0][0].relation, layers[0][0].mass) == ("offset-1", 1.0)
        assert layers[0][1].relation != "induction"


def test_planted_heads_are_strong_and_nothing_else_is(rows):
    own = rows[[planted_kind(*pair) for pair in zip(rows["relation"], rows["kind"], strict=True)]]
    heavy = own[own["mass"] >= 0.4]
    assert len(heavy) >= 8
    assert (heavy["grade"] == "strong").all()
    strong = rows[rows["kind"].isin(KINDS) & (rows["grade"] == "strong")]
    assert is_right(strong).all()
    assert not (strong["kind"] == WORD)[strong["relation"] != "lexical"].any()


def test_measured_weights_are_those_planted(rows):
    own = rows[[planted_kind(*pair) for pair in zip(rows["relation"], rows["kind"], strict=True)]]
    # noise of up to 1 nat moves them, most of all those of the few pairs of words that are linked
    assert np.abs(own["true"] - own["mass"]).max() < 0.2


def test_a_fixed_offset_is_no_syntactic_head(rows):
    decoys = rows[(rows["kind"] == "fixed") & (rows["relation"] != "lexical")]
    assert len(decoys)
    assert not decoys["grade"].isin(["weak", "strong"]).any()


def test_heads_whose_output_is_zeroed_are_pattern_only(rows):
    tested = rows[rows["evidence"].notna() & rows["kind"].isin(["induction", WORD])]
    assert len(tested)
    wanted = tested["live"].map({True: "pattern + causal", False: "pattern only"})
    assert tested["evidence"].tolist() == wanted.tolist()


def test_the_tables_count_every_model(rows):
    text = tables(rows)
    assert text.startswith(f"{len(SEEDS)} planted models")
    assert text.count("\n|") > 20
