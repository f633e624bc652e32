"""The README's snippets run as they stand, in order, and the page keeps its length."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text("utf-8"), re.M | re.S)


def test_python_snippets_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    snippets = blocks("python")
    assert len(snippets) >= 4
    for snippet in snippets:
        exec(compile(snippet, str(README), "exec"), names)
    assert names["logits"].shape[:2] == (1, 5)
    assert (tmp_path / "atlas.parquet").is_file()


def test_commands_run(tmp_path):
    commands = [line for block in blocks("console") for line in block.splitlines()]
    assert commands
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "headatlas"
        code = "import sys; from headatlas.circuits.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True,
            env={**__import__("os").environ, "PYTHONPATH": str(README.parent)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"atlas.json", "pattern.html"}


def test_the_page_is_short():
    assert len(README.read_text("utf-8").splitlines()) < 150
