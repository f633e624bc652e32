"""The command `ablate`: what it prints and writes, and what it refuses before loading a model."""

import json

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from headatlas.circuits.ablate.command import ablate
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import natural_text

APP = typer.Typer()
APP.command()(ablate)
SMALL = ["--prompts", "16", "--seq-len", "24"]


def run(*arguments):
    """Standard output of the command, wide enough for its table; errors are raised."""
    done = CliRunner().invoke(
        APP, [*map(str, arguments)], catch_exceptions=False, env={"COLUMNS": "120"}
    )
    assert done.exit_code == 0, done.output
    return done.output


def test_some_heads_on_a_text(tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "out.json"
    text.write_text(natural_text(600, seed=2))
    said = run("tiny", "--heads", "L1H1,L2KV0,", "--text", text, "-o", out, *SMALL)
    assert "L1H1, L2H0, L2H1 removed (mean ablation)" in said
    assert "16 documents with a BOS, text.txt" in said
    assert f"wrote {out}: 2 rows" in said
    content = json.loads(out.read_text())
    assert content["heads"] == ["L1H1", "L2H0", "L2H1"]
    assert content["settings"]["seq_len"] == 24


def test_every_head_with_a_heat_map(tmp_path):
    out, figure = tmp_path / "out.parquet", tmp_path / "map.html"
    kept = tmp_path / "kept.safetensors"
    options = ["--all", "--method", "zero,mean", "--seed", 2, "--top", 3, *SMALL]
    said = run("tiny", *options, "--figure", figure, "--checkpoint", kept, "-o", out)
    assert "tiny: 32 heads removed one at a time (zero, mean)" in said
    assert "sampled" not in said or "seed 2" in said
    assert said.count("\nL") == 2 * 3
    assert "…" not in said
    assert len(pd.read_parquet(out)) == 32 * 2 * 2
    assert figure.read_text().count("plotly")
    assert len([*tmp_path.glob("kept-*.safetensors")]) == 2
    assert f"wrote {figure}: 4 heat maps" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say which heads to remove"),
        (["--heads", "L1H1", "--all"], "say which heads to remove"),
        (["--heads", ","], "say which heads to remove"),
        (["--heads", "18.6"], "a head is written L18H6"),
        (["--heads", "L1H1", "--method", "noise"], "heads are removed by one of"),
        (["--heads", "L1H1", "--method", "mean,zero"], "belong to --all"),
        (["--heads", "L1H1", "--checkpoint", "a.safetensors"], "belong to --all"),
        (["--heads", "L1H1", "--figure", "a.html"], "belong to --all"),
        (["--all", "--figure", "a.gif"], r"a figure is written as \.html or \.json"),
        (["--all", "--checkpoint", "a.json"], r"is a \.safetensors file"),
        (["--all", "-o", "a.txt"], "no known format"),
        (["--all", "-o", "no/such/folder/a.csv"], "does not exist"),
        (["--all", "--text", "no-such.txt"], "no file"),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(arguments, message):
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(APP, ["no-such-model", *arguments], catch_exceptions=False)


def test_heads_that_the_model_lacks_and_seeds_below_zero():
    with pytest.raises(InputError, match="no head L9H9"):
        CliRunner().invoke(APP, ["tiny", "--heads", "L9H9"], catch_exceptions=False)
    assert CliRunner().invoke(APP, ["--seed", "-1"]).exit_code == 2
