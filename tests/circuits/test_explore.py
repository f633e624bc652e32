import subprocess
import sys

import pytest
import torch

import headatlas as ha

from ..interp.explorer.unpacked import page_data


@pytest.fixture(scope="module")
def atlas():
    return ha.classify(*ha.load("tiny"), kinds="induction, offset", prompts=16, seq_len=64)


def test_the_page_says_what_the_atlas_says(atlas):
    model, tokenizer = ha.load("tiny")
    page = ha.explore(model, tokenizer, "the cat sat", atlas=atlas)
    data, blocks = page_data(page.html)
    assert data["title"] == atlas.model["name"]
    assert [head["name"] for head in data["heads"]] == [str(head) for head in atlas]
    assert len(blocks) == 32
    strong = atlas.heads("induction", grade="strong")[0]
    place = list(atlas).index(strong)
    assert data["heads"][place]["text"] == str(atlas[strong])
    assert "induction (strong)" in data["heads"][place]["labels"]
    maps = {own["name"]: own for own in data["maps"]}
    row = atlas[strong]["induction"]
    assert maps["induction"]["values"][place] == pytest.approx(row["score"], abs=1e-5)
    assert maps["induction"]["grades"][place] == "strong"
    assert maps[":label"]["values"][place] in atlas[strong].labels
    previous = list(atlas).index(ha.HeadId.parse("L1H1"))
    assert maps[":label"]["values"][previous] == "offset"  # previous_token was not scored
    grades = [label.split("(")[1] for label in data["heads"][place]["labels"]]
    assert grades == sorted(grades, key=["strong)", "weak)", "ambiguous)"].index)
    assert set(maps) >= {":entropy_nats", ":first_position", ":previous_token"}
    kinds = [cells[0].split()[0] for cells in data["heads"][place]["rows"]]
    assert kinds == ["offset", "induction"]


def test_an_atlas_alone_has_no_patterns(atlas):
    data, blocks = page_data(atlas.explore(title="mine").html)
    assert (data["title"], data["tokens"], blocks) == ("mine", [], {})
    assert len(data["heads"]) == 32


def test_some_heads_of_a_model(atlas):
    model, tokenizer = ha.load("tiny")
    data, blocks = page_data(atlas.explore(model, tokenizer, "a cat", heads="L1H1").html)
    assert [head["name"] for head in data["heads"]] == [str(head) for head in atlas]
    assert list(blocks) == [list(atlas).index(ha.HeadId.parse("L1H1"))]
    assert repr(atlas.explore(model, tokenizer, "a cat", heads="L1H1")).startswith(
        "<Explorer: 1 of 32 heads × "
    )
    data, blocks = page_data(ha.explore(model, tokenizer, "a cat", heads=["L1KV0", "L1H1"]).html)
    assert [head["name"] for head in data["heads"]] == ["L1H0", "L1H1"]
    assert list(blocks) == [0, 1]


def test_effects_of_removal_get_maps(atlas):
    rows = [
        {"site": "", "layer": head.layer, "head": head.head, "kind": "induction",
         "ablation": "mean", "effect": 0.25, "evidence": "pattern + causal"}
        for head in atlas.heads("induction")
    ]  # fmt: skip
    data, _ = page_data(atlas.with_table("causal", rows).explore().html)
    own = next(own for own in data["maps"] if own["name"] == ":removal.induction.mean")
    assert own["signed"]
    assert sum(value == 0.25 for value in own["values"]) == len(rows)


def test_users_own_tables_and_hostile_words_stay_data(atlas):
    hostile = "</script><img src=x onerror=alert(1)>"
    rows = [{"site": "", "layer": 0, "head": 0, "note": hostile}]
    page = atlas.with_table("mine", rows).explore(title=hostile)
    assert hostile not in page.html
    data, _ = page_data(page.html)
    assert hostile in data["heads"][0]["text"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "or an atlas alone"),
        ({"text_or_ids": "a"}, "or an atlas alone"),
        ({"max_mib": 0}, "max_mib is a whole number of at least 1; got 0"),
        ({"max_mib": 2.5}, "got 2.5"),
        ({"title": 5}, "title is a int"),
        ({"atlas": "atlas.json"}, "HeadAtlas.load"),
        ({"title": "\ud83d"}, "lone surrogate"),
    ],
)
def test_what_makes_no_page_is_refused(as_users_call, options, part):
    with pytest.raises(ha.InputError, match=part):
        ha.explore(**options)


def test_a_model_without_a_text_or_with_another_atlas_is_refused(atlas, tiny):
    model, tokenizer = ha.load("tiny")
    with pytest.raises(ha.InputError, match="needs a text"):
        ha.explore(model, tokenizer)
    with pytest.raises(ha.InputError, match="takes no options about them"):
        atlas.explore(heads="L0H0")
    with pytest.raises(ha.InputError, match="it is of another model"):
        ha.explore(tiny("gpt2"), None, torch.tensor([[1, 2]]), atlas=atlas)


def test_the_model_is_left_as_it_was(tiny):
    model = tiny("llama").train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    ha.explore(model, None, torch.tensor([[1, 2, 3]]))
    assert model.training
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_the_page_is_the_same_every_time(tiny):
    model, ids = tiny("llama"), torch.tensor([[5, 6, 7, 8]])
    assert ha.explore(model, None, ids).html == ha.explore(model, None, ids).html


def test_the_command_writes_a_page(command, tmp_path, atlas):
    atlas.save(tmp_path / "atlas.json")
    (tmp_path / "text.txt").write_text("The cat sat on the mat. The cat sat.")
    done = command(
        "explore", "--text", tmp_path / "text.txt", "--atlas", tmp_path / "atlas.json",
        "--heads", "L1H1,L2H2", "-o", tmp_path / "page.html",
    )  # fmt: skip
    assert done.status == 0, done.error
    size = (tmp_path / "page.html").stat().st_size / 2**20
    assert f"{size:.2f} MiB of at most 25" in done.out
    data, blocks = page_data((tmp_path / "page.html").read_text("utf-8"))
    assert [data["heads"][number]["name"] for number in blocks] == ["L1H1", "L2H2"]
    assert data["columns"][0] == "kind"


def test_the_command_without_labels(command, tmp_path):
    done = command("explore", "--no-labels", "--bos", "-o", tmp_path / "page.html")
    assert done.status == 0, done.error
    data, _ = page_data((tmp_path / "page.html").read_text("utf-8"))
    assert data["tokens"][0] == "<s>"
    assert len(data["heads"]) == 32


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["-o", "page.pdf"], "one .html page"),
        (["-o", "nowhere/page.html"], "does not exist"),
        (["--heads", ","], "names no head"),
        (["--heads", "L9"], "a head is written"),
        (["--window", "L0H0"], "a window is written"),
        (["--atlas", "none.json"], "none.json"),
        (["--atlas", "none.json", "--no-labels"], "leave --atlas out"),
        (["--heads", "L9H9"], "L9H9"),
        (["--window", "all@0:9000,0:4"], "at most 8,192"),
        (["--window", "all@0:4000,0:4"], "queries 0:4000, but the text has"),
        (["--max-mib", "0"], "max-mib"),
    ],
)
def test_the_command_refuses_in_one_line(command, tmp_path, monkeypatch, arguments, part):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headatlas.circuits.classify.classify", None)  # it would take too long
    done = command("explore", *arguments)
    assert done.status == 2
    assert part in done.error
    assert done.error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_front_door_stays_light():
    code = "import headatlas, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
