"""The command `prune`: what it prints and writes, and what it refuses before loading a model."""

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from headatlas.circuits.prune.command import prune
from headatlas.circuits.prune.prune_result import PruneResult
from headatlas.circuits.prune.remove.files import load_pruned
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import natural_text

APP = typer.Typer()
APP.command()(prune)
SMALL = ["--seq-len", "24", "--train-documents", "16", "--eval-documents", "16", "--steps", "2"]


def run(*arguments):
    """Standard output of the command, wide enough for its table; errors are raised."""
    done = CliRunner().invoke(
        APP, [*map(str, arguments)], catch_exceptions=False, env={"COLUMNS": "140"}
    )
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for seed, name in enumerate(("train", "eval")):
        (folder / f"{name}.txt").write_text(natural_text(600, seed=seed))
    return folder / "train.txt", folder / "eval.txt"


def test_a_folder_that_is_read_again(texts, tmp_path):
    train, held_out = texts
    out = tmp_path / "out"
    given = ["tiny", "--method", "l0,magnitude", "--target", "0.25,0.5", "--batch", "4", *SMALL]
    given += ["--train", train, "--eval", held_out, "-o", out]
    said = run(*given)
    assert "tiny: 32 heads, 4 cuts by l0, magnitude" in said
    assert f"in {out / 'model'} the model without the 16 heads that l0 chose" in said
    found = PruneResult.load(out)
    assert found.settings["text"]["origin"] == "eval.txt"
    assert [len(cut.heads) for cut in found.cuts] == [8, 16, 8, 16]
    assert len(pd.read_parquet(out / "curve.parquet")) == 5
    smaller, tokenizer = load_pruned(out / "model")
    assert smaller.generate(**tokenizer("a cat", return_tensors="pt"), max_new_tokens=2).numel()
    again = run(*given)
    assert again == said
    with pytest.raises(InputError, match="a finished pruning with other settings"):
        run(*given, "--seed", 3)


def test_text_that_is_written_by_the_model_and_a_price():
    said = run("tiny", "--lam", "0.01", *SMALL, "--draws", 1)
    assert "1 cut by l0" in said


def test_repeated_tokens_are_learnt_from_as_well(texts, tmp_path):
    train, held_out = texts
    given = ["tiny", "--method", "michel", "--train", train, "--eval", held_out, "--copies", 16]
    run(*given, *SMALL, "-o", tmp_path / "out")
    found = PruneResult.load(tmp_path / "out")
    assert found.settings["train"]["documents"] == 32
    assert found.settings["train"]["origin"] == "train.txt; repeated random tokens, seed 1"
    assert found.settings["repeated"]["origin"] == "repeated random tokens, seed 0"


@pytest.mark.parametrize(("arguments", "message"), [
    (["--target", "1"], "--target is a share of the heads, above 0 and below 1; got '1'"),
    (["--target", "0"], "above 0 and below 1"),
    (["--target", "-0.5"], "above 0 and below 1"),
    (["--target", "0.5,half"], "got 'half'"),
    (["--target", "nan"], "above 0 and below 1"),
    (["--lam", "-1"], "at least 0"),
    (["--lam", "inf"], "at least 0"),
    (["--lam", "1", "--target", "0.5"], "not both"),
    (["--lam", "1", "--method", "michel"], "price of heads in the training of l0"),
    (["--method", "best"], "methods are among"),
    (["--method", ","], "no method is named"),
    (["--method", "functional"], "takes what heads do from an atlas"),
    (["--per", "layer"], "per is one of"),
    (["--finetune", "some"], "finetune is one of"),
    (["--recover", "5"], "--recover trains weights"),
    (["--copies", "3"], "--copies is 0, or at least 16"),
    (["--train", "no-such.txt"], "no file"),
    (["--eval", "no-such.txt"], "no file"),
    (["--atlas", "no-such.json"], "no file"),
])  # fmt: skip
def test_what_is_refused_before_a_model_is_loaded(arguments, message):
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(APP, ["no-such-model", *arguments], catch_exceptions=False)


def test_the_same_text_on_both_sides_and_folders_of_something_else(texts, tmp_path):
    train, _ = texts
    with pytest.raises(InputError, match="both what is learnt from and what is measured on"):
        run("no-such-model", "--train", train, "--eval", train)
    copy = tmp_path / "copy.txt"
    copy.write_text(train.read_text())
    with pytest.raises(InputError, match="documents to measure on"):
        run("tiny", "--train", train, "--eval", copy, *SMALL)
    with pytest.raises(InputError, match="holds something else than a pruning"):
        run("no-such-model", "-o", tmp_path)


def test_models_that_cannot_be_cut(tmp_path):
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(InputError, match=r"decoder|language-model head"):
        run(tmp_path / "bert", *SMALL)
