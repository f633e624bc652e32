"""The result object: questions, cards, files, and hostile files."""

import dataclasses
import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from headatlas.circuits.atlas import HeadAtlas
from headatlas.circuits.atlas_check import NULL_CHECK_COLUMNS, NUMBERS
from headatlas.circuits.atlas_file import COLUMNS, NATURAL, read_atlas
from headatlas.circuits.show import show
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId


def row(layer, head, kind, excess, grade, **changes):
    values = {
        "site": "", "layer": layer, "head": head, "kind": kind, "score": excess + 0.1,
        "expected": 0.1, "excess": excess, "low": excess - 0.05, "high": excess + 0.05, "n": 500,
        "grade": grade, "legacy": excess > 0.3, "evidence": "pattern only",
        "details": {
            "prompts": "random", "halves": [excess, excess], "companions": {"alpha64": 0.3},
            "natural": {
                "score": excess, "expected": 0.1, "excess": excess - 0.1, "low": excess - 0.2,
                "high": excess, "grade": grade,
            },
        },
    }  # fmt: skip
    return values | changes


MODEL = {"name": "m<b>", "dtype": "float32", "hook_drift": 1e-7, "heads": 4}
SETTINGS = {
    "seed": 0, "bos": True, "prompts": {"random": 16, "natural": 16},
    "seq_len": {"random": 64, "natural": 64},
}  # fmt: skip


@pytest.fixture
def atlas():
    rows = [
        row(0, 0, "previous_token", 0.9, "strong"),
        row(0, 1, "previous_token", 0.2, "weak"),
        row(1, 0, "previous_token", 0.12, "ambiguous"),
        row(1, 1, "previous_token", 0.0, "none", evidence="none"),
        row(0, 0, "delimiter", 0.0, "none", legacy=None, score=math.nan),
        row(1, 1, "delimiter", 0.5, "strong", legacy=None, details={"prompts": "natural"}),
        row(1, 0, "induction", 0.5, "strong", details={"prompts": "random"}),
    ]
    check = pd.DataFrame(
        [
            {
                "draw": 0, "prompts": "random", "kinds": 2, "mean_score": 0.1,
                "mean_expected": 0.1, "false_labels": 0, "p_values": np.array([0.5, 0.25]),
            }
        ]
    )  # fmt: skip
    return HeadAtlas(pd.DataFrame(rows), dict(MODEL), {"torch": "2"}, dict(SETTINGS), check)


def test_heads_by_grade_in_falling_order(atlas):
    assert atlas.heads("previous_token") == [HeadId("", 0, 0), HeadId("", 0, 1)]
    assert atlas.heads("previous_token", "strong") == [HeadId("", 0, 0)]
    assert len(atlas.heads("previous_token", grade="none")) == 4
    with pytest.raises(InputError, match="not scored; scored: previous_token, delimiter, in"):
        atlas.heads("current_token")
    with pytest.raises(InputError, match="grades are none, insufficient, ambiguous, weak"):
        atlas.heads("delimiter", grade="good")


@pytest.mark.parametrize("grade", ["insufficient", "none"])
def test_heads_with_too_few_instances_stand_by_excess_too(grade):
    """Without an excess they come last; ties are by address, however the rows are ordered."""
    excesses = {(1, 0): math.nan, (0, 2): 0.3, (0, 1): 0.5, (1, 1): math.nan, (0, 0): 0.3}
    rows = [row(*place, "rare", value, "insufficient") for place, value in excesses.items()]
    atlas = HeadAtlas(pd.DataFrame(rows), dict(MODEL), {"torch": "2"}, dict(SETTINGS))
    wanted = [(0, 1), (0, 0), (0, 2), (1, 0), (1, 1)]
    assert atlas.heads("rare", grade) == [HeadId("", *place) for place in wanted]
    backwards = HeadAtlas(pd.DataFrame(rows[::-1]), dict(MODEL), {"torch": "2"}, dict(SETTINGS))
    assert backwards.heads("rare", grade) == atlas.heads("rare", grade)


def legend(atlas, **rule):
    atlas.settings["rule"] = rule
    console = Console(file=io.StringIO(), width=1000)
    show(atlas, console)
    return console.file.getvalue()


def test_the_legend_is_of_the_kinds_that_were_scored(atlas):
    tokens = legend(atlas, margin=0.1, strong=0.25)
    assert "at or above .25; weak: above .10" in tokens
    assert "linked" not in tokens
    assert "at or above .40; weak: above .20" in legend(atlas, margin=0.2, strong=0.4)
    assert "at or above" not in legend(atlas, margin="high")  # a file may say anything
    words = [row(0, 0, "coreference", 0.2, "strong", details={"prompts": "treebank"})]
    atlas.settings.update(prompts={"treebank": 40}, seq_len={"treebank": 96})
    both = HeadAtlas(pd.concat([atlas.rows, pd.DataFrame(words)]), MODEL, {}, atlas.settings)
    told = legend(both, margin=0.1, strong=0.25)
    assert "at or above .25; weak: above .10" in told
    assert "Kinds between words: score: share of words whose strongest word is the linked" in told
    assert "at or above 10 points; weak: above 5." in told
    alone = legend(
        HeadAtlas(pd.DataFrame(words), MODEL, {}, atlas.settings), margin=0.1, strong=0.25
    )
    assert "at or above 10 points; weak: above 5." in alone
    assert "above .10" not in alone
    assert "random tokens" not in alone


def test_table_and_card(atlas):
    table = atlas.table()
    assert table["address"].tolist() == ["L0H0", "L0H1", "L1H1", "L1H0"]
    assert len(atlas.table(grade="none")) == 7
    card = atlas["L0H0"]
    assert card.labels == {"previous_token": "strong"}
    assert card["previous_token"]["n"] == 500
    lines = repr(card).splitlines()
    assert lines[0] == "L0H0: previous_token (strong)"
    assert lines[1] == (
        "  previous_token   score 1.000, expected 0.100, excess +0.900 [+0.850, +0.950] on random "
        "(n 500); on natural 0.900, excess +0.800 [+0.700, +0.900], strong; alpha64 0.300; grade "
        "strong; legacy yes; evidence pattern only"
    )
    assert "score –, expected 0.100" in lines[2]
    with pytest.raises(InputError, match="no head L7H0 in this atlas"):
        atlas["L7H0"]
    with pytest.raises(InputError, match="a head is written L18H6"):
        atlas["18.6"]


def test_an_atlas_contains_its_heads(atlas):
    everyone = [HeadId("", layer, head) for layer in (0, 1) for head in (0, 1)]
    assert list(atlas) == everyone
    assert len(atlas) == atlas.n_heads == 4
    assert all(head in atlas and str(head) in atlas for head in everyone)
    for foreign in ("L7H0", "enc.L0H0", "nonsense", "L0KV0", 3, None, ("", 0, 0)):
        assert foreign not in atlas


def test_heads_that_do_something_besides(atlas):
    every = {"previous_token": "strong"}, {"previous_token": "weak"}
    assert atlas.labels() == {
        HeadId("", 0, 0): every[0],
        HeadId("", 0, 1): every[1],
        HeadId("", 1, 0): {"induction": "strong"},
        HeadId("", 1, 1): {"delimiter": "strong"},
    }
    besides = atlas.labels(exclude="previous_token")
    assert list(besides) == [HeadId("", 1, 0), HeadId("", 1, 1)]
    assert list(atlas.labels(exclude=("previous_token", "induction"))) == [HeadId("", 1, 1)]
    assert HeadId("", 1, 0) not in atlas.labels(exclude={"induction"})
    assert "previous_token" in atlas.labels(grade="ambiguous")[HeadId("", 1, 0)]
    with pytest.raises(InputError, match="'sink' was not scored"):
        atlas.labels(exclude="sink")
    with pytest.raises(InputError, match="grades are"):
        atlas.labels(grade="good")


def test_the_numbers_that_decide_stand_in_columns(atlas, tmp_path):
    """A positional kind's grade is the lower of two: both intervals are in the table."""
    table = atlas.table().set_index("kind")
    assert list(atlas.table())[5:10] == ["low", "high", *NATURAL]
    numbers = table[list(NATURAL)]
    assert numbers.loc["previous_token"].to_numpy().tolist()[0] == pytest.approx([0.9, 0.7, 0.9])
    assert numbers.loc["delimiter"].tolist() == pytest.approx([0.6, 0.45, 0.55])  # its own
    assert numbers.loc["induction"].isna().all()  # never scored there
    for read, suffix in ((pd.read_csv, ".csv"), (pd.read_parquet, ".parquet")):
        frame = read(atlas.save(tmp_path / f"a{suffix}"))
        assert frame["natural_low"].tolist() == pytest.approx(
            [0.7, 0.0, -0.08, -0.2, -0.2, 0.45, math.nan], nan_ok=True
        )


def test_files_of_before_the_columns_can_be_read(atlas, tmp_path):
    import pyarrow.parquet as pq

    path = atlas.save(tmp_path / "a.parquet")
    pq.write_table(pq.read_table(path).drop_columns([*NATURAL]), path)
    assert list(HeadAtlas.load(path).rows) == list(COLUMNS)


def test_what_could_not_be_read_again_is_not_written(atlas, tmp_path):
    for change in ({"model": {}}, {"settings": {}}, {"model": MODEL | {"name": "\x1b[31m"}}):
        with pytest.raises(InputError, match=r"model\.name|settings\.seed"):
            dataclasses.replace(atlas, **change).save(tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


def test_summary_counts(atlas):
    text = repr(atlas)
    assert "4 heads" in text
    assert "previous_token 1 strong, 1 weak, 1 ambiguous" in text
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
    assert set(frame) == {*COLUMNS, *NATURAL}
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
        (lambda c: c["heads"][0].update(low=2, high=1), "low above its high"),
        (lambda c: c["heads"][0].update(low=None), "a label and no numbers"),
        (lambda c: c["heads"][0].update(details={}), "no prompt set"),
        (lambda c: c["heads"][0]["details"].update(variant=3), "variant that is not a text"),
        (lambda c: c["heads"][0]["details"].update(companions=[1]), "companions"),
        (lambda c: c["heads"][0]["details"].update(natural={}), "a further prompt set"),
        (lambda c: c["heads"][0]["details"]["natural"].update(low=9), "a further prompt set"),
        (lambda c: c.update(model={}), r"model\.name"),
        (lambda c: c["model"].update(name="\x1b[31m"), r"model\.name"),
        (lambda c: c["model"].update(hook_drift=None), "hook_drift"),
        (lambda c: c.update(versions={"torch": 2}), "versions are not"),
        (lambda c: c.update(settings={}), r"settings\.seed"),
        (lambda c: c["settings"].update(bos=0), r"settings\.bos"),
        (lambda c: c["settings"].update(prompts={}), r"settings\.prompts"),
        (lambda c: c["settings"].update(seq_len={"random": 9}), r"settings\.seq_len"),
        (lambda c: c["null_check"][0].update(false_labels="0"), "null_check"),
        (lambda c: c["null_check"][0].update(mean_score=None), "null_check"),
        (lambda c: c["null_check"][0].update(p_values=[2]), "null_check"),
        (lambda c: c["null_check"][0].update(prompts="other"), "null_check"),
    ],
)
def test_wrong_content_is_named(atlas, tmp_path, change, message):
    path = atlas.save(tmp_path / "a.json")
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        HeadAtlas.load(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
@pytest.mark.parametrize("place", ["settings", "details"])
def test_numbers_that_are_none_are_refused_wherever_they_stand(atlas, tmp_path, number, place):
    path = atlas.save(tmp_path / "a.json")
    seed, halves = '"seed": 0', '"halves": ['
    text = path.read_text()
    assert seed in text
    assert halves in text
    changed = (
        text.replace(seed, f'"other": {number}, {seed}')
        if place == "settings"
        else text.replace(halves, f'"other": {number}, {halves}', 1)
    )
    path.write_text(changed)
    with pytest.raises(InputError, match="is not an atlas"):
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
        found = read_atlas(path)
    except InputError:
        return
    assert list(found["rows"]) == list(COLUMNS)
    assert set(found) == {"rows", "model", "versions", "settings", "null_check", "tables"}
    assert found["rows"]["layer"].ge(0).all()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=8,
)  # fmt: skip


def shown(atlas):
    """Everything a reader may ask of an atlas, which no file that loads may break."""
    show(atlas, Console(file=io.StringIO()))
    return [repr(atlas), atlas._repr_html_(), *(repr(atlas[head]) for head in atlas)]


@FUZZ
@given(field=st.sampled_from(COLUMNS), value=json_values)
def test_any_json_value_in_any_field(atlas, tmp_path, field, value):
    path = atlas.save(tmp_path / "a.json")
    content = json.loads(path.read_text())
    content["heads"][1][field] = value
    path.write_text(json.dumps(content))
    try:
        loaded = HeadAtlas.load(path)
    except InputError:
        return
    got = loaded.rows[field][1]
    if field in NUMBERS and value is None:
        assert np.isnan(got)
    else:
        assert got == value or got is value is None
    assert shown(loaded)


PLACES = [
    *(("heads", 1, "details", name) for name in ("prompts", "variant", "companions", "natural")),
    ("heads", 1, "details", "companions", "alpha64"),
    *(("heads", 1, "details", "natural", name) for name in (*NUMBERS, "grade")),
    *(("model", name) for name in MODEL),
    *(("settings", name) for name in SETTINGS),
    ("settings", "prompts", "random"),
    ("settings", "seq_len", "natural"),
    ("versions", "torch"),
    ("null_check",),
    *(("null_check", 0, name) for name in NULL_CHECK_COLUMNS),
    ("null_check", 0, "p_values", 0),
]


@FUZZ
@given(place=st.sampled_from(PLACES), value=json_values)
def test_any_json_value_in_any_nested_place(atlas, tmp_path, place, value):
    """A file that loads can be shown, whatever stands in it."""
    path = atlas.save(tmp_path / "a.json")
    content = inner = json.loads(path.read_text())
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    try:
        loaded = HeadAtlas.load(path)
    except InputError:
        return
    assert shown(loaded)
    loaded.save(tmp_path / "b.parquet")
