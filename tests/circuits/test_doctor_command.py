"""The command `headatlas doctor`: a table, a file, and a status that scripts can read."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

import headatlas as ha
from headatlas.interp.doctor.report import CheckReport
from headatlas.interp.sites import check_model

from ..test_readme import blocks, run_snippets

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def test_the_page_says_what_happens(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(PAGE)
    assert names["known"] == names["report"]
    told = re.findall(r"^\| ([\w, -]+) \| [^|]+ \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    lines = [line for row in told[1:] for line in row.split(", ")]
    assert lines == [finding.name for finding in names["known"].findings]
    (line,) = blocks("console", PAGE)
    program, name, _, *rest = shlex.split(line)
    assert (program, name) == ("headatlas", "doctor")
    assert command(name, "tiny", *rest).status == 0  # the other one takes long


def test_a_model_that_is_seen_faithfully(tmp_path, command):
    out = tmp_path / "report.json"
    done = command("doctor", "tiny", "-o", out)
    assert done.status == 0, done.error
    assert done.error == ""
    verdict, *rows = done.out.splitlines()
    assert verdict == "LlamaForCausalLM, sdpa, float32: seen faithfully (9 checks hold)"
    assert rows[0].startswith("  attention calls   holds    4 modules, each called once, in order")
    assert rows[-1] == f"wrote {out}"
    content = json.loads(out.read_text())
    assert content["holds"] is True
    assert content["schema_version"] == 1
    assert len(content["findings"]) == 10
    assert CheckReport.load(out).ok


@pytest.fixture
def broken(tmp_path):
    model, tokenizer = ha.load("tiny")
    with torch.no_grad():
        model.get_parameter("model.layers.1.mlp.up_proj.weight")[0, 0] = float("inf")
    check_model(model).save_pretrained(tmp_path / "broken")
    tokenizer.save_pretrained(tmp_path / "broken")
    return tmp_path / "broken"


def test_a_model_that_is_not(tmp_path, broken, command):
    out = tmp_path / "report.json"
    done = command("doctor", broken, "-o", out)
    assert done.status == 1
    assert done.error == (
        "headatlas: attention calls: the weight model.layers.1.mlp.up_proj.weight holds a value "
        "that is not finite. Reload or repair the model.\n"
    )
    assert "NOT seen faithfully (0 checks hold, 1 fails, 9 skipped)" in done.out
    assert not CheckReport.load(out).ok


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("tiny", "-o", "report.csv"), "a report is written as .json"),
        (("tiny", "-o", "nowhere/report.json"), "the folder"),
        (("no/such/model.gguf",), "no/such/model.gguf"),
        (("tiny", "--heads", "L0H0"), "No such option"),
    ],
)
def test_usage_errors(tmp_path, monkeypatch, command, arguments, told):
    monkeypatch.chdir(tmp_path)
    done = command("doctor", *arguments)
    assert done.status == 2
    assert told in done.error
    assert len(done.error.splitlines()) == 1
    assert not done.out
