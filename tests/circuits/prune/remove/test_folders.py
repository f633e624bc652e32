"""What stands in a folder after one model or several, and who reads it."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    LlamaForCausalLM,
    LlamaModel,
)

from headatlas.circuits.cost.read import attention_shapes
from headatlas.circuits.prune.remove.files import load_pruned, save_pruned
from headatlas.circuits.prune.remove.pruning import pruning_of
from headatlas.circuits.prune.remove.remove import remove_heads
from headatlas.circuits.prune.remove.saved_tokenizer import forget_tokenizer
from headatlas.interp.errors import InputError
from headatlas.interp.load import load
from tests.interp.checkpoints import byte_level, word_piece

from .families import inputs, logits
from .test_files import VALUES


def test_weights_of_another_model_are_refused(whole: Any, tmp_path: Path):
    """Two folders of the same shapes, with each other's weights."""
    one = save_pruned(remove_heads(whole("llama"), ["L0H1"]), tmp_path / "one")
    two = save_pruned(remove_heads(whole("llama"), ["L0H0"]), tmp_path / "two")
    shutil.copy(one / "pruned.safetensors", two)
    with pytest.raises(InputError, match=r"not the file that pruned\.json was written with"):
        load_pruned(two)
    assert load_pruned(one)[0] is not None


@pytest.mark.parametrize("heads", [["L0H0", "L0H1", "L0H2", "L0H3"], ["L0H1"]])
def test_transformers_refuses_what_it_would_fill_up(heads: list[str], whole: Any, tmp_path: Path):
    """A layer without heads has missing keys alone, which it would fill with random weights."""
    save_pruned(remove_heads(whole("llama"), heads), tmp_path)
    for auto in (AutoModel, AutoModelForCausalLM, LlamaForCausalLM, LlamaModel):
        tries: list[dict[str, Any]] = [{}, {"ignore_mismatched_sizes": True}]
        for options in tries:
            with pytest.raises(OSError, match="no file named"):
                auto.from_pretrained(tmp_path, **options)
    assert AutoConfig.from_pretrained(tmp_path).headatlas_pruned is True
    assert attention_shapes(tmp_path).layers == attention_shapes(load_pruned(tmp_path)[0]).layers
    with pytest.raises(InputError, match=r"headatlas\.load_pruned\("):
        load(tmp_path)


def test_a_tokenizer_goes_with_its_model(whole: Any, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "vocab.txt").write_text("mine")
    for heads in (["L0H1"], ["L0KV0", "L1KV0"]):  # of either kind
        smaller = remove_heads(whole("llama"), heads)
        save_pruned(smaller, tmp_path, tokenizer=byte_level())
        assert (tmp_path / "tokenizer.json").exists()
        (tmp_path / "tokenizer_config.json").write_text("{}")  # another by now
        save_pruned(smaller, tmp_path)
        names = {path.name for path in tmp_path.iterdir()}
        assert {"notes.txt", "vocab.txt", "tokenizer_config.json"} < names
        assert "tokenizer.json" not in names
        (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "vocab.txt").unlink()
    assert load_pruned(tmp_path)[1] is None


@pytest.mark.parametrize("second", [["L0H1"], ["L0H0", "L0H1"]])
def test_a_second_cut_comes_back_with_both(second: list[str], whole: Any, tmp_path: Path):
    """The folder's config is that of the first result, which was an ordinary one."""
    first = remove_heads(whole("llama"), ["L0H1", "L0H3", "L1H0", "L1H2"])
    twice = remove_heads(first, second)
    loaded, _ = load_pruned(save_pruned(twice, tmp_path))
    before, after = pruning_of(twice), pruning_of(loaded)
    assert before is not None
    assert after is not None
    assert not before.ordinary
    assert after.removed == before.removed
    assert after.n_removed == 4 + len(second)
    assert after.heads_before == before.heads_before
    assert attention_shapes(tmp_path).layers == attention_shapes(twice).layers
    tokens = inputs("llama", True)
    assert torch.equal(logits(loaded, tokens), logits(twice, tokens))


def test_one_tokenizer_replaces_another(whole: Any, tmp_path: Path):
    smaller = remove_heads(whole("llama"), ["L0H1"])
    save_pruned(smaller, tmp_path, tokenizer=byte_level())
    save_pruned(smaller, tmp_path, tokenizer=word_piece())
    assert load_pruned(tmp_path)[1]("the cat")["input_ids"] == word_piece()("the cat")["input_ids"]


def test_an_empty_path_is_none(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="the folder to write is empty"):
        save_pruned(whole("llama"), "")
    with pytest.raises(InputError, match="no folder ''"):
        load_pruned("")
    assert not list(tmp_path.iterdir())


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    content=VALUES
    | st.dictionaries(
        st.just("tokenizer_files"),
        st.dictionaries(
            st.sampled_from(["own", "../outside", "..", "", ".", "folder", "a\0b", "none"]),
            st.sampled_from([hashlib.sha256(b"x").hexdigest(), "0" * 64, ""]) | VALUES,
        ),
        min_size=1,
    )
)
def test_any_record_of_files_leaves_what_is_not_ours(content: Any, tmp_path: Path):
    """Only a file right in the folder, with the very content, goes."""
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True, exist_ok=True)
    for path in (tmp_path / "outside", folder / "own", folder / "other"):
        path.write_bytes(b"x")
    (folder / "saved.json").write_text(json.dumps(content))
    forget_tokenizer(folder)
    assert (tmp_path / "outside").exists()
    assert (folder / "folder").is_dir()
    assert (folder / "other").exists()
    gone = not (folder / "own").exists()
    assert gone is (gone and content["tokenizer_files"]["own"] == hashlib.sha256(b"x").hexdigest())
