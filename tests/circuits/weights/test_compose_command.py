"""`headatlas compose`: its table, its files, and what it refuses before loading a model."""

import json

import pytest
import typer
from typer.testing import CliRunner

from headatlas.circuits.weights.command import compose
from headatlas.interp.errors import InputError


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    app = typer.Typer()
    app.command()(compose)
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


def test_table_and_file(run, tmp_path):
    out = tmp_path / "pairs.json"
    done = run("tiny", "--kind", "K", "--heads", "L2H2,", "--delta", 1, "--top", 3, "-o", out)
    assert done.exit_code == 0, done.output
    assert "Composition in tiny, delta 1" in done.output
    assert len([line for line in done.output.splitlines() if line.startswith("K ")]) == 3
    content = json.loads(out.read_text())
    assert content["delta"] == 1
    assert len(content["pairs"]) == 16 + 8  # from two layers of 8, and into one
    assert all("L2H2" in (pair["source"], pair["target"]) for pair in content["pairs"])
    assert min(pair["p"] for pair in content["pairs"]) < 1e-20  # an order, no probability to quote
    assert "e-" not in done.output
    assert "<0.001 <0.001" in done.output
    assert f"wrote {out}: 24 pairs" in done.output.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "K,X"], "kinds of composition are Q, K and V; got 'X'"),
        (["--heads", "2.3"], "a head is written L18H6"),
        (["--heads", ","], "--heads names no head"),
        (["--by", "p"], "ordered by z or score; got 'p'"),
        (["-o", "pairs.txt"], "no known format"),
    ],
)
def test_refused_before_a_model_is_loaded(run, arguments, message):
    done = run("no/such-model", *arguments)
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
