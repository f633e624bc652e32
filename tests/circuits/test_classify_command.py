"""What `headatlas classify --help` says of the two sorts of documents."""

import typer
from typer.testing import CliRunner

from headatlas.circuits.causal.documents import DOCUMENTS, SEQ_LEN
from headatlas.circuits.classify_command import classify


def test_help_says_which_documents_removal_reads(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    app = typer.Typer()
    app.command()(classify)
    shown = CliRunner().invoke(app, ["--help"]).output
    text = " ".join(shown.replace("│", " ").split())
    assert f"{DOCUMENTS} of {SEQ_LEN} tokens" in text
    assert f"at most {4 * DOCUMENTS} sentences" in text
    assert "whatever --prompts and --seq-len say" in text
    assert text.count("Labels alone: see --evidence.") == 2
