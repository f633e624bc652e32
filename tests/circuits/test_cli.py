"""The command line: tables, files, one-line errors."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest


@pytest.fixture(scope="module")
def long_text(tmp_path_factory):
    from headatlas.interp.grammar import natural_text

    path = tmp_path_factory.mktemp("text") / "long.txt"
    path.write_text(natural_text(1500, seed=3))
    return path


def test_classify_prints_a_table_and_writes_json(tmp_path, long_text, command):
    out = tmp_path / "out.json"
    done = command(
        "classify", "--prompts", 16, "--seq-len", 64, "--text", long_text, "--seed", 1, "-o", out
    )
    assert done.status == 0, done.error
    assert "Heads of tiny" in done.out
    assert "tiny: 32 heads" in done.out
    content = json.loads(out.read_text())
    kinds = {entry["kind"] for entry in content["heads"]}
    assert kinds == {
        "previous_token", "offset", "first_position", "current_token", "duplicate_token",
        "induction", "delimiter", "rare_token", "ngram_induction", "semantic",
    }  # fmt: skip
    assert len(content["heads"]) == 32 * 10
    assert content["model"]["name"] == "tiny"
    assert content["settings"]["seed"] == 1
    assert len(content["settings"]["text_sha256"]) == 64


def test_classify_of_some_kinds_to_parquet(tmp_path, command):
    """An option of names may be repeated, and a comma at the end names nothing."""
    out = tmp_path / "out.parquet"
    done = command(
        "classify", "tiny", "--kinds", "induction,", "--kinds", "current_token", "--prompts", 16,
        "--seq-len", 48, "-o", out,
    )  # fmt: skip
    assert done.status == 0, done.error
    assert set(pd.read_parquet(out)["kind"]) == {"induction", "current_token"}
    assert not done.error  # progress is for terminals


def test_plot_writes_a_page(tmp_path, command):
    text, out = tmp_path / "text.txt", tmp_path / "page.html"
    text.write_text("The <b>cat</b> sat. </script><script>alert(1)</script>")
    done = command(
        "plot", "--heads", "L1H0,L2H3,", "--heads", "L1H0, L3H1", "--text", text, "-o", out
    )
    assert done.status == 0, done.error
    assert "3 pattern(s)" in done.out
    page = out.read_text()
    assert "L2H3" in page
    assert "L3H1" in page
    assert "<script>alert(1)" not in page


def test_plot_writes_a_picture_without_a_browser(tmp_path, command, monkeypatch):
    from PIL import Image

    monkeypatch.setenv("PATH", "")
    done = command("plot", "--heads", "L1H1,L2H2", "-o", tmp_path / "two.png")
    assert done.status == 0, done.error
    with Image.open(tmp_path / "two.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 200


def test_commands_take_a_pruned_model(tmp_path, command):
    import headatlas as ha

    model, tokenizer = ha.load("tiny")
    folder, page = tmp_path / "smaller", tmp_path / "page.html"
    smaller = ha.remove_heads(model, [f"L0H{head}" for head in range(8)] + ["L1H2"])
    ha.save_pruned(smaller, folder, tokenizer=tokenizer)
    done = command("plot", folder, "--heads", "L0H6", "-o", page)
    assert done.status == 0, done.error
    assert "L0H6" in page.read_text()
    done = command("plot", folder, "--heads", "L0H7", "-o", page)
    assert done.status == 2
    assert "L0H7" in done.error
    done = command("classify", folder, "--kinds", "induction", "--prompts", 16, "--seq-len", 32)
    assert done.status == 0, done.error
    assert "23 heads" in done.out
    done = command("cost", folder)
    assert done.status == 0, done.error
    assert "1 × GQA, d_model 128, 7 heads of 16, 4 KV heads" in done.out
    assert "2 × GQA, d_model 128, 8 heads of 16, 4 KV heads" in done.out


def unusable_models(folder):
    """A model with a NaN weight and one without attention, as local directories."""
    from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2))
    gpt2.transformer.h[0].attn.c_attn.weight.data[0, 0] = float("nan")
    gpt2.save_pretrained(folder / "nan")
    mamba = MambaForCausalLM(MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1))
    mamba.save_pretrained(folder / "mamba")
    return folder / "nan", folder / "mamba"


TREEBANK = "".join(
    "# text = It fell.\n1\tIt\tit\tPRON\t_\t_\t2\tnsubj\t_\t_\n"
    "2\tfell\tfall\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No\n"
    "3\t.\t.\tPUNCT\t_\t_\t2\tpunct\t_\t_\n\n"
    for _ in range(2)
)


def user_errors(tmp_path, long_text):
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_text(" \n")
    binary.write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder").mkdir()
    nan, mamba = unusable_models(tmp_path)
    treebank = tmp_path / "two.conllu"
    treebank.write_text(TREEBANK)
    return {
        ("classify", "no-such-model"): "no-such-model",
        ("classify", "tny"): "tiny",
        ("classify", tmp_path / "folder"): "config.json",
        ("classify", nan, "--kinds", "induction"): "not finite",
        ("classify", mamba, "--kinds", "induction"): "attention",
        ("classify", nan, "--kinds", "delimiter"): "not finite",
        ("classify", "--kinds", "nonsense"): "unknown kind nonsense",
        ("classify", "--kinds", " ,"): "no kind is named; known: previous_token",
        ("classify", "Tiny"): "Did you mean 'tiny'?",
        # refused before the model is looked for
        ("classify", "no-model", "--kinds", "induction", "--text", long_text): "go unread",
        ("classify", "no-model", "--kinds", "offset", "--null-draws", 3): "null draws permute",
        ("classify", "--text", tmp_path / "missing.txt"): "missing.txt",
        ("classify", "--text", empty): "empty",
        ("classify", "--text", binary): "binary.txt",
        ("classify", "-o", tmp_path / "out.xlsx"): ".json, .csv or .parquet",
        ("classify", "-o", tmp_path / "nowhere" / "out.json"): "does not exist",
        ("classify", "--seq-len", 5000): "context",
        ("classify", "--prompts", 2): "at least 16",
        ("classify", "--seq-len", 0): "at least 16",
        ("classify", "--prompts", "many"): "at least 16, or 'auto'; got 'many'",
        ("classify", "no-model", "--treebank", tmp_path / "missing.conllu"): "missing.conllu",
        ("classify", "no-model", "--treebank", binary): "binary.txt",
        ("classify", "no-model", "--kinds", "offset", "--treebank", treebank): "go unread",
        ("classify", "no-model", "--kinds", "syntactic.obj.sideways"): "to_head, to_dependent",
        ("classify", "no-model", "--checkpoint", "a.safetensors"): "add --evidence causal",
        ("classify", "no-model", "--evidence", "causal", "--checkpoint", "a.pt"): "got 'a.pt'",
        (
            "classify",
            "no-model",
            "--evidence",
            "causal",
            "--checkpoint",
            tmp_path / "nowhere" / "a.safetensors",
        ): "nowhere/a.safetensors': the folder",
        ("classify", "no-model", "--kinds", "syntactic", "--prompts", "auto"): "kinds on tokens",
        ("classify", "--evidence", "much"): "--evidence",
        ("compose", "--kind", "X"): "Q, K and V",
        ("compose", "--heads", "nonsense"): "L18H6",
        ("trace-induction", "--ablation", "half"): "half",
        ("classify", "--no-such-option"): "--no-such-option",
        ("clasify",): "clasify",
        ("classify", "--seq-len", 256, "--text", long_text, "--prompts", 64, "--kinds", "no"): "no",
        ("plot", "--heads", "nonsense"): "L18H6",
        ("plot", "--heads", ", ,"): "--heads names no head",
        ("plot", "--heads", "L99H0"): "L99H0",
        ("plot", "--text", long_text): "context",
        ("plot", "-o", tmp_path / "page.gif"): ".html",
    }


def test_user_errors_end_in_one_line_and_status_2(tmp_path, long_text):
    """One process for all of them: importing torch takes longer than each refusal."""
    cases = [
        ([*map(str, command)], text) for command, text in user_errors(tmp_path, long_text).items()
    ]
    script = (
        "import io, json, sys, contextlib\n"
        "from headatlas.circuits.cli import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['headatlas', *arguments]\n"
        "    error = io.StringIO()\n"
        "    try:\n"
        "        with contextlib.redirect_stderr(error): main(); status = 0\n"
        "    except SystemExit as stop: status = stop.code\n"
        "    print(json.dumps([status, error.getvalue()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps([command for command, _ in cases])],
        capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(results) == len(cases)
    for (command, expected), (status, error) in zip(cases, results, strict=True):
        lines = error.splitlines()
        assert status == 2, (command, error)
        assert len(lines) == 1, (command, error)
        assert lines[0].startswith("headatlas: "), (command, error)
        assert expected in lines[0], (command, error)
    assert not list(tmp_path.glob("out.*"))
    assert not list(tmp_path.glob("page.*"))


def test_the_file_is_written_even_if_nobody_reads_the_table(tmp_path):
    out = tmp_path / "out.json"
    command = f"{sys.executable} -m headatlas classify --prompts 16 --seq-len 32 -o {out}"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | true"],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert json.loads(out.read_text())["heads"]


def test_the_table_fits_eighty_columns_and_the_null_check_is_said(command):
    asked = ["--prompts", 16, "--seq-len", 32, "--null-draws", 2]
    done = command("classify", *asked, columns=80)
    assert done.status == 0, done.error
    assert max(len(line) for line in done.out.splitlines()) <= 80
    header = next(line for line in done.out.splitlines() if line.strip().startswith("head "))
    assert " ".join(header.split()) == "head kind score expected excess [95 %] natural grade legacy"
    summary = " ".join(done.out.split())
    assert "permuted labels: any false label in" in summary
    assert "of 2 draws on random" in summary
    assert "of 2 draws on natural" in summary
    assert "score: mean attention mass per row" in summary
    assert "fewer than 32 prompts: the intervals are rough" in done.out


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_lists_the_commands(arguments, command):
    done = command(*arguments)
    assert (done.status, done.error) == (0, "")
    lines = [line.split() for line in done.out.splitlines() if line.strip()]
    assert {"classify", "plot"} <= {line[0] for line in lines}
    assert "--null-draws" in command("classify", "--help").out


def test_the_package_runs_as_a_module():
    ran = [sys.executable, "-m", "headatlas", "--version"]
    done = subprocess.run(ran, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("headatlas ")


@pytest.mark.parametrize("option", [["--checkpoint", "a.safetensors"], ["--checkpoint=a"], []])
def test_an_interrupt_says_so(monkeypatch, capsys, option):
    """typer turns the interrupt into a status of its own."""
    from headatlas.circuits import cli

    monkeypatch.setattr(cli.sys, "argv", ["headatlas", "classify", *option])
    monkeypatch.setattr(cli, "app", lambda *_, **__: 130)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 130
    told = capsys.readouterr().err
    assert "interrupted; finished files are kept" in told
    assert ("The same command goes on from the checkpoint." in told) == bool(option)
