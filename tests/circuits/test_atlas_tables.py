"""Further tables: kept whole, checked cell by cell, shown on the cards of the heads they name."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headatlas as ha
from headatlas.circuits.atlas import HeadAtlas
from headatlas.circuits.atlas_tables import check_table
from headatlas.interp.errors import InputError

EFFECTS = [
    {"site": "", "layer": 1, "head": 2, "kind": "offset", "effect": 0.25, "ablation": "mean",
     "evidence": "pattern + causal"},
    {"site": "", "layer": 1, "head": 3, "kind": "offset", "effect": math.nan, "ablation": "mean",
     "evidence": "pattern only"},
]  # fmt: skip


@pytest.fixture(scope="module")
def atlas():
    """Of `tiny`, with labels for the heads that the effects name."""
    found = ha.classify(*ha.load("tiny"), kinds="offset,current_token", prompts=16, seq_len=48)
    rows = found.rows.copy()
    rows.loc[(rows["layer"] == 1) & rows["head"].isin([2, 3, 4]), "grade"] = "strong"
    return replace(found, rows=rows)


@pytest.mark.parametrize("suffix", [".json", ".parquet"])
def test_tables_survive_a_file(atlas, tmp_path, suffix):
    rich = atlas.with_evidence(EFFECTS).with_table(
        "composition", pd.DataFrame({"source": ["L0H1"], "target": ["L2H3"], "z": [np.float32(4)]})
    )
    back = HeadAtlas.load(rich.save(tmp_path / f"a{suffix}"))
    assert list(back.tables) == ["causal", "composition"]
    for name, table in rich.tables.items():
        pd.testing.assert_frame_equal(back.tables[name], table)
    assert atlas.tables == {}


def test_cards_show_what_is_known_of_the_head(atlas):
    rich = atlas.with_evidence(EFFECTS)
    assert "causal: kind offset, effect 0.250, ablation mean" in repr(rich["L1H2"])
    assert "effect –" in repr(rich["L1H3"])
    assert "causal" not in repr(rich["L0H0"])
    assert "causal" not in repr(atlas["L1H2"])


def test_evidence_goes_to_the_label_it_is_about(atlas):
    rich = atlas.with_evidence(EFFECTS)
    assert rich["L1H2"]["offset"]["evidence"] == "pattern + causal"
    assert rich["L1H3"]["offset"]["evidence"] == "pattern only"
    untouched = rich.rows["evidence"] == atlas.rows["evidence"]
    changed = rich.rows[~untouched]
    assert set(changed["kind"]) <= {"offset"}
    assert set(changed["head"]) <= {2, 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": 99}, "L1H99 as offset, a label that this atlas"),
        ({"kind": "induction"}, "as induction, a label that this"),
        ({"head": -1}, "a head is a site of"),
        ({"layer": 1.5}, "a head is a site of"),
        ({"effect": math.inf}, "column effect: a cell is"),
        ({"effect": [1]}, "column effect: a cell is"),
        ({"evidence": "a\x1b[31m"}, "column evidence: a cell is"),
    ],
)
def test_wrong_effects_are_named(atlas, change, message):
    with pytest.raises(InputError, match=message):
        atlas.with_evidence([{**EFFECTS[0], **change}])


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("two words", [], "an identifier"),
        ("x", 3, "a DataFrame or a list"),
        ("x", [{"a": 1}, {"b": 1}], "the same fields"),
        ("x", [{"layer": 1, "head": 1}], "only layer, head"),
        ("x", pd.DataFrame([[1, 2]], columns=["a", "a"]), "each once"),
    ],
)
def test_what_is_no_table_is_refused(name, rows, message):
    with pytest.raises(InputError, match=message):
        check_table(name, rows)


def test_effects_without_a_kind_are_refused(atlas):
    with pytest.raises(InputError, match="no column kind"):
        atlas.with_evidence([{"site": "", "layer": 0, "head": 0, "effect": 1.0}])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=8,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=json_values, place=st.sampled_from(["tables", "causal", "row", "effect", "site"]))
def test_any_json_value_loads_whole_or_not_at_all(atlas, tmp_path, value, place):
    path = atlas.with_evidence(EFFECTS).save(tmp_path / "a.json")
    content = json.loads(path.read_text())
    tables = content["tables"]
    if place == "tables":
        content["tables"] = value
    elif place == "causal":
        tables["causal"] = value
    elif place == "row":
        tables["causal"][0] = value
    else:
        tables["causal"][0][place] = value
    path.write_text(json.dumps(content))
    try:
        back = HeadAtlas.load(path)
    except InputError:
        return
    assert [repr(back[head]) for head in back]
    again = HeadAtlas.load(back.save(tmp_path / "b.json"))
    for name, table in back.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table)


def test_evidence_of_other_kinds_stays(atlas):
    """Two tests after one another keep both numbers and both verdicts."""
    other = {**EFFECTS[0], "kind": "current_token", "head": 4}
    both = atlas.with_evidence(EFFECTS).with_evidence([other])
    assert set(both.tables["causal"]["kind"]) == {"offset", "current_token"}
    assert both["L1H2"]["offset"]["evidence"] == "pattern + causal"
    assert both["L1H4"]["current_token"]["evidence"] == "pattern + causal"
    again = both.with_evidence([{**EFFECTS[0], "effect": 9.0, "evidence": "pattern only"}])
    causal = again.tables["causal"]
    assert causal.loc[causal["kind"] == "offset", "effect"].tolist() == [9.0]
    assert "pattern + causal: " in repr(both)
    assert "pattern + causal" not in repr(atlas)
