"""The result object: questions, cards, files, and hostile files."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headatlas.circuits.atlas import HeadAtlas
from headatlas.circuits.atlas_file import _NUMBERS, COLUMNS, read_atlas
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId


def row(layer, head, kind, excess, grade, **changes):
    values = {
        "site": "", "layer": layer, "head": head, "kind": kind, "score": excess + 0.1,
        "expected": 0.1, "excess": excess, "low": excess - 0.05, "high": excess + 0.05, "n": 500,
        "grade": grade, "legacy": excess > 0.3, "evidence": "pattern only",
        "details": {"prompts": "random", "halves": [excess, excess]},
    }  # fmt: skip
    return values | changes


@pytest.fixture
def atlas():
    rows = [
        row(0, 0, "previous_token", 0.9, "strong"),
        row(0, 1, "previous_token", 0.2, "weak"),
        row(1, 0, "previous_token", 0.12, "ambiguous"),
        row(1, 1, "previous_token", 0.0, "none", evidence="none"),
        row(0, 0, "delimiter", 0.0, "none", legacy=None, score=math.nan),
        row(1, 1, "delimiter", 0.5, "strong", legacy=None),
    ]
    model = {"name": "m<b>", "dtype": "float32"}
    check = pd.DataFrame(
        [
            {
                "draw": 0, "prompts": "random", "kinds": 2, "mean_score": 0.1,
                "mean_expected": 0.1, "false_labels": 0, "p_values": np.array([0.5, 0.25]),
            }
        ]
    )  # fmt: skip
    return HeadAtlas(pd.DataFrame(rows), model, {"torch": "2"}, {"seed": 0}, check)


def test_heads_by_grade_in_falling_order(atlas):
    assert atlas.heads("previous_token") == [HeadId("", 0, 0), HeadId("", 0, 1)]
    assert atlas.heads("previous_token", "strong") == [HeadId("", 0, 0)]
    assert len(atlas.heads("previous_token", grade="none")) == 4
    with pytest.raises(InputError, match="not scored; scored: previous_token, delimiter"):
        atlas.heads("induction")
    with pytest.raises(InputError, match="grades are none, ambiguous, weak, strong"):
        atlas.heads("delimiter", grade="good")


def test_table_and_card(atlas):
    table = atlas.table()
    assert table["address"].tolist() == ["L0H0", "L0H1", "L1H1"]
    assert len(atlas.table(grade="none")) == 6
    card = atlas["L0H0"]
    assert card.labels == {"previous_token": "strong"}
    assert card["previous_token"]["n"] == 500
    assert "L0H0: previous_token (strong)" in repr(card)
    with pytest.raises(InputError, match="no head L7H0 in this atlas"):
        atlas["L7H0"]
    with pytest.raises(InputError, match="a head is written L18H6"):
        atlas["18.6"]


def test_summary_counts(atlas):
    text = repr(atlas)
    assert "4 heads" in text
    assert "previous_token   1 strong, 1 weak, 1 ambiguous" in text
    assert "m&lt;b&gt;" in atlas._repr_html_()
    assert "<b>" not in atlas._repr_html_()


@pytest.mark.parametrize("suffix", [".json", ".parquet"])
def test_files_round_trip(atlas, tmp_path, suffix):
    loaded = HeadAtlas.load(atlas.save(tmp_path / f"a{suffix}"))
    assert (loaded.model, loaded.versions, loaded.settings) == (
        atlas.model,
        atlas.versions,
        atlas.settings,
    )
    assert loaded.null_check is not None
    assert loaded.null_check["p_values"][0] == [0.5, 0.25]
    pd.testing.assert_frame_equal(
        loaded.rows, atlas.rows.astype({"legacy": object}), check_dtype=False
    )


def test_json_has_the_documented_fields(atlas, tmp_path):
    content = json.loads(atlas.save(tmp_path / "a.json").read_text())
    top = ["schema_version", "model", "versions", "settings", "null_check", "heads"]
    assert list(content) == top
    plain = dataclasses.replace(atlas, null_check=None)
    assert list(json.loads(plain.save(tmp_path / "b.json").read_text())) == [
        name for name in top if name != "null_check"
    ]
    assert list(content["heads"][0]) == list(COLUMNS)
    assert content["heads"][4]["score"] is None  # no number is null, never NaN


def test_csv_holds_the_rows(atlas, tmp_path):
    frame = pd.read_csv(atlas.save(tmp_path / "a.csv"))
    assert list(frame) == list(COLUMNS)
    assert json.loads(frame["details"][0])["halves"] == [0.9, 0.9]


def test_bad_targets_are_refused_and_nothing_is_lost(atlas, tmp_path):
    with pytest.raises(InputError, match=r"use \.json, \.csv or \.parquet"):
        atlas.save(tmp_path / "a.xlsx")
    with pytest.raises(InputError, match="does not exist"):
        atlas.save(tmp_path / "missing" / "a.json")
    old = atlas.save(tmp_path / "a.json").read_text()
    atlas.rows.loc[0, "details"] = [{"bad": object()}]  # cannot be written as JSON
    with pytest.raises(TypeError):
        atlas.save(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == old
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(schema_version=99), "schema_version is 99"),
        (lambda c: c.pop("model"), "model is not an object"),
        (lambda c: c.update(heads=[]), "no list of heads"),
        (lambda c: c["heads"][0].pop("n"), "needs the fields"),
        (lambda c: c["heads"][0].update(grade="great"), "a grade"),
        (lambda c: c["heads"][0].update(legacy="yes"), "legacy verdict"),
        (lambda c: c["heads"][0].update(details=3), "details"),
        (lambda c: c["heads"][0].update(layer=1.5), "whole number"),
        (lambda c: c["heads"][0].update(kind=None), "a kind that is not a name"),
        (lambda c: c["heads"][0].update(kind="\x1b[31m"), "a kind that is not a name"),
        (lambda c: c["heads"][0].update(site="<script>"), "a site"),
        (lambda c: c["heads"][0].update(evidence="\x1b"), "evidence"),
        (lambda c: c["heads"][0].update(layer=99999), "beyond 9999"),
        (lambda c: c["heads"][0].update(n=10**25), "whole number"),
        (lambda c: c["heads"][0].update(score=10**400), "not a number"),
        (lambda c: c["heads"].append(c["heads"][0]), "two rows are of the same head"),
        (lambda c: c.update(schema_version=True), "schema_version is True"),
        (lambda c: c.update(null_check=[{}]), "null_check"),
        (lambda c: c["heads"][0].update(score="much"), "not a number"),
    ],
)
def test_wrong_content_is_named(atlas, tmp_path, change, message):
    path = atlas.save(tmp_path / "a.json")
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        HeadAtlas.load(path)


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(InputError, match="no file"):
        HeadAtlas.load(tmp_path / "a.json")
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(InputError, match=r"an atlas is a \.json or \.parquet file"):
        HeadAtlas.load(tmp_path / "a.csv")
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="is not an atlas"):
        HeadAtlas.load(tmp_path / "a.parquet")


FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FUZZ
@given(data=st.binary(max_size=300), suffix=st.sampled_from([".json", ".parquet"]))
def test_random_bytes_are_refused(tmp_path, data, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data)
    with pytest.raises(InputError, match="is not an atlas"):
        read_atlas(path)


@FUZZ
@given(
    place=st.integers(0, 10**6), data=st.binary(min_size=1, max_size=8), cut=st.booleans(),
    suffix=st.sampled_from([".json", ".parquet"]),
)  # fmt: skip
def test_damaged_files_load_whole_or_not_at_all(atlas, tmp_path, place, data, cut, suffix):
    path = atlas.save(tmp_path / f"a{suffix}")
    content = path.read_bytes()
    at = place % len(content)
    path.write_bytes(content[:at] if cut else content[:at] + data + content[at + len(data) :])
    try:
        rows, meta, _ = read_atlas(path)
    except InputError:
        return
    assert list(rows) == list(COLUMNS)
    assert set(meta) == {"model", "versions", "settings"}
    assert rows["layer"].ge(0).all()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=8,
)  # fmt: skip


@FUZZ
@given(field=st.sampled_from(COLUMNS), value=json_values)
def test_any_json_value_in_any_field(atlas, tmp_path, field, value):
    path = atlas.save(tmp_path / "a.json")
    content = json.loads(path.read_text())
    content["heads"][1][field] = value
    path.write_text(json.dumps(content))
    try:
        rows, _, _ = read_atlas(path)
    except InputError:
        return
    got = rows[field][1]
    if field in _NUMBERS and value is None:
        assert np.isnan(got)
    else:
        assert got == value or got is value is None
