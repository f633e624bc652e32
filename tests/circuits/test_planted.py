"""Planted heads are found with their masses; decoys are not."""

import numpy as np
import pytest

from headatlas.circuits.classify import classify
from headatlas.circuits.score import score
from headatlas.interp.probes import random_prompts, token_pool

from .planted import POSITIONS, VOCAB, planted_model

MASSES = (0.15, 0.3, 0.5, 0.8, 1.0)


def battery(n=12, seed=0):
    pool = token_pool(VOCAB, special=(0,))
    return random_prompts(pool, n, POSITIONS, bos_id=0, seed=seed)


@pytest.mark.parametrize("mass", MASSES)
def test_planted_masses_are_recovered(mass):
    model = planted_model(
        (("offset-1", 1.0), ("offset-3", mass)),
        (("induction", mass), ("duplicate", mass)),
        (("first", 1.0), ("offset-1", mass)),
    )
    sums = score(model, battery(), "previous_token,offset,first_position,duplicate_token,induction")
    place = {str(head): index for index, head in enumerate(sums.heads)}
    assert sums.mean("previous_token")[place["L0H0"]] == pytest.approx(1.0, abs=1e-3)
    assert sums.mean("induction")[place["L1H0"]] == pytest.approx(mass, abs=2e-3)
    assert sums.mean("duplicate_token")[place["L1H1"]] == pytest.approx(mass, abs=2e-3)
    assert sums.mean("first_position")[place["L2H0"]] == pytest.approx(1.0, abs=1e-3)
    # the row at position k has its target and the sink at the same key: its weight is 1
    rows = POSITIONS - 1
    for head, offset in (("L0H1", 3), ("L2H1", 1)):
        wanted = (mass * (rows - offset) + 1) / (rows - offset + 1)
        got = sums.mean("offset", f"-{offset}")[place[head]]
        assert got == pytest.approx(wanted, abs=2e-3)


def atlas_of(*layers, kinds=None, prompts=24):
    return classify(
        planted_model(*layers), None, kinds=kinds, prompts=prompts, seq_len=POSITIONS,
        prepend_bos=False, seed=1,
    )  # fmt: skip


def test_grades_follow_the_mass():
    atlas = atlas_of(
        (("offset-1", 1.0), ("offset-3", 0.45)),
        (("induction", 1.0), ("induction", 0.4)),
        (("induction", 0.1), ("duplicate", 0.45)),
        (("first", 1.0), ("offset-5", 0.02)),
    )
    grade = {kind: {str(h) for h in atlas.heads(kind, "strong")} for kind in atlas.kinds}
    assert grade["previous_token"] == {"L0H0"}
    assert grade["offset"] == {"L0H0", "L0H1"}
    assert grade["induction"] == {"L1H0", "L1H1"}
    assert grade["duplicate_token"] == {"L2H1"}
    assert {"L3H0", "L2H0"} <= grade["first_position"]
    # the sink head with a tenth of its mass on induction is no induction head
    card = atlas["L2H0"]["induction"]
    assert card["score"] == pytest.approx(0.1, abs=0.02)
    assert card["grade"] in ("none", "ambiguous")
    assert atlas["L0H1"]["offset"]["details"]["variant"] == "-3"


def test_a_positional_head_is_no_induction_head():
    """On the classic battery a fixed offset looks like induction; with random gaps it does not."""
    atlas = atlas_of(
        (("offset-1", 1.0), ("offset-9", 1.0)), (("first", 1.0), ("offset-8", 1.0)),
        kinds=["induction", "duplicate_token"],
    )  # fmt: skip
    assert atlas.heads("induction", "ambiguous") == []
    assert atlas.heads("duplicate_token", "ambiguous") == []


def test_the_interval_covers_the_planted_excess():
    atlas = atlas_of((("offset-1", 1.0), ("first", 1.0)), (("induction", 0.5), ("induction", 0.3)))
    for head, mass in (("L1H0", 0.5), ("L1H1", 0.3)):
        row = atlas[head]["induction"]
        assert row["low"] <= row["excess"] <= row["high"]
        assert row["expected"] < 0.1
        assert np.isclose(row["score"], mass, atol=0.01)
        assert row["low"] <= mass - row["expected"] <= row["high"]
