"""The snippets of README and docs run as they stand, in order; the README keeps its length."""

import re
import shlex
from pathlib import Path

import torch

import headatlas as ha

README = Path(__file__).parent.parent / "README.md"
HOOKS = README.parent / "docs" / "hooks.md"
PRUNING = README.parent / "docs" / "pruning.md"
LABELS = README.parent / "docs" / "labels.md"
KERNELS = README.parent / "docs" / "kernels.md"
PLOTS = README.parent / "docs" / "plots.md"
EXPLORER = README.parent / "docs" / "explorer.md"


def blocks(language, page=README):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def run_snippets(page):
    """Run a page's Python blocks in one namespace, which is returned."""
    names: dict = {}
    snippets = blocks("python", page)
    assert len(snippets) >= 2
    for snippet in snippets:
        exec(compile(snippet, str(page), "exec"), names)
    return names


def test_python_snippets_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(README)
    assert names["logits"].shape[0] == 1
    assert (tmp_path / "atlas.parquet").is_file()


def test_the_page_on_hooks_says_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(HOOKS)
    assert names["logits"].shape[:2] == (1, 5)
    assert not names["plain"].equal(names["without"])
    assert not names["without"].equal(names["through_values"])
    assert names["cache"]["q", 1].shape[1] == 1
    torch.testing.assert_close(names["out"], names["layer"](names["x"])[:, 4:])
    torch.testing.assert_close(names["trace"].result.sum(2), names["trace"].out)


def test_the_page_on_plots_says_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(PLOTS)
    assert len(names["grid"].data) == 8
    assert {path.name for path in tmp_path.iterdir()} == {"grid.html", "pattern.png"}


def test_the_page_on_the_explorer_says_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(EXPLORER)
    assert (tmp_path / "page.html").stat().st_size == names["page"].size_bytes


def test_the_page_on_labels_says_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(LABELS)
    assert names["effects"].heads("previous_token")
    assert len(names["links"].table("syntactic.nsubj.to_dependent", grade="none"))
    assert "ov" in names["atlas"].tables


def test_the_page_on_pruning_says_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(PRUNING)
    assert names["lost"].delta_loss_nats > 0
    assert len(names["found"].removed()) == 8
    sites = sum(site.n_heads for site in ha.attention_sites(names["smaller"]))
    assert sites == 24


def test_the_page_on_kernels_says_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(KERNELS)
    probe = names["probe"]
    assert (probe.mass.shape, probe.received.shape) == ((1, 8, 64, 2), (1, 8, 64))
    assert probe.weights.shape == (1, 2, 4, 4)
    assert len(names["exact"].rows) == 32


def test_commands_run(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("console") for line in block.splitlines()]
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "headatlas"
        done = command(*arguments)
        assert done.status == 0, done.error
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"atlas.json", "page.html", "pattern.html"}


def test_the_page_is_short():
    assert len(README.read_text("utf-8").splitlines()) < 150
