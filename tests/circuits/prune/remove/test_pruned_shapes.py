"""What attention costs after heads were cut out: by the folder, the model, and its weights."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from headatlas.circuits.cost.read import attention_shapes, config_shapes
from headatlas.circuits.cost.report import cost
from headatlas.circuits.prune.remove.files import load_pruned, save_pruned
from headatlas.circuits.prune.remove.pruned_shapes import UnevenShape, pruned_shapes
from headatlas.circuits.prune.remove.pruning import pruning_of
from headatlas.circuits.prune.remove.remove import remove_heads
from headatlas.circuits.prune.remove.report import cache_bytes_per_token
from headatlas.interp.errors import InputError

from .families import all_heads
from .test_remove import CASES

COUNTED = ("llama", "gpt2", "gemma3-mqa", "deepseek_v3", "phi3", "gpt_oss", "bert", "falcon-groups")


def projection_weights(smaller: Any) -> int:
    """Numbers in the projections of every attention module that still has heads."""
    pruning = pruning_of(smaller)
    assert pruning is not None
    found = {}
    for cut in pruning.cuts:
        if cut.kept:
            inside = smaller.get_submodule(cut.module).named_modules(prefix=cut.module)
            found |= {**dict(inside), cut.output: smaller.get_submodule(cut.output)}
    parts = [part for part in found.values() if isinstance(part, nn.Linear | Conv1D)]
    return sum(part.weight.numel() for part in parts)


@pytest.mark.parametrize("case", ["ragged", "first layer"])
@pytest.mark.parametrize("name", COUNTED)
def test_folder_model_and_weights_agree(name: str, case: str, whole: Any, tmp_path: Path):
    smaller = remove_heads(whole(name), CASES[case](all_heads(name)))
    found = attention_shapes(smaller)
    loaded, _ = load_pruned(save_pruned(smaller, tmp_path))
    assert attention_shapes(loaded).layers == found.layers
    assert attention_shapes(tmp_path).layers == found.layers
    assert sum(layer.weights for layer in found.layers) == projection_weights(smaller)
    if name not in ("bert", "deepseek_v3", "falcon-groups"):  # none; kept expanded
        numbers = sum(layer.cache_width for layer in found.layers)
        empty = len(config_shapes(whole(name).config).layers) - len(found.layers)
        assert 4 * (numbers + empty) == cache_bytes_per_token(smaller)


def test_layers_one_by_one(whole: Any, tmp_path: Path):
    """Of 2 groups of 2, layer 0 keeps one group, layer 1 a group of two and one of one."""
    save_pruned(remove_heads(whole("llama"), ["L0KV0", "L1H3"]), tmp_path)
    first, second = attention_shapes(tmp_path).layers
    assert (first.n_heads, first.n_kv_heads, first.kind) == (2, 1, "MQA")
    assert (second.n_heads, second.n_kv_heads, second.kind) == (3, 2, "GQA")
    assert (second.cache_width, second.weights) == (2 * 16, 32 * 8 * (3 + 3 + 2 + 2))


def test_a_report_shows_the_mixed_model_as_its_own(whole: Any, tmp_path: Path):
    save_pruned(remove_heads(whole("llama"), ["L0KV0", "L1H3"]), tmp_path)
    report = cost(tmp_path, seq_len=16)
    own = report.cache_table().query("own").to_dict("records")
    assert [(row["kind"], row["numbers"]) for row in own] == [("mixed", 24)]
    assert "1 × GQA, d_model 32, 3 heads of 8, 2 KV heads" in repr(report)
    assert report.cache_table()["kind"].tolist().count("mixed") == 1


def test_an_ordinary_cut_needs_no_record(whole: Any, tmp_path: Path):
    smaller = remove_heads(whole("llama"), ["L0KV0", "L1KV1"])
    assert attention_shapes(save_pruned(smaller, tmp_path)).layers == (
        attention_shapes(smaller).layers
    )
    assert config_shapes(smaller.config).layers[0].n_heads == 2


def test_the_config_alone_is_refused(whole: Any, tmp_path: Path):
    smaller = remove_heads(whole("llama"), ["L0H1"])
    save_pruned(smaller, tmp_path)
    with pytest.raises(InputError, match=r"before heads were cut out of it\. Pass"):
        config_shapes(smaller.config)
    (tmp_path / "pruned.json").unlink()
    with pytest.raises(InputError, match="or the folder that save_pruned wrote"):
        attention_shapes(tmp_path)
    assert config_shapes(whole("llama").config).layers[0].n_heads == 4


def test_cuts_of_another_model_are_refused(whole: Any):
    pruning = pruning_of(remove_heads(whole("llama"), ["L0H1"]))
    assert pruning is not None
    shapes = config_shapes(whole("llama").config)
    with pytest.raises(InputError, match=r"has 2 attention layers .* of 1 are said to be kept"):
        pruned_shapes(shapes, pruning.cuts[:1])
    wider = dataclasses.replace(pruning.cuts[0], d_head=16)
    with pytest.raises(InputError, match=r"self_attn of .* has 4 heads, 2 key-value heads"):
        pruned_shapes(shapes, [wider, pruning.cuts[1]])


def test_no_head_at_all(whole: Any, tmp_path: Path):
    save_pruned(remove_heads(whole("gpt2"), all_heads("gpt2")), tmp_path)
    with pytest.raises(InputError, match="no attention layers"):
        attention_shapes(tmp_path)


@pytest.mark.parametrize("changes", [{"n_kv_heads": 4}, {"n_heads": 0}, {"d_head": -1}])
def test_an_uneven_shape_is_checked(changes: dict[str, int]):
    sizes: dict[str, Any] = {
        "d_model": 16,
        "n_heads": 3,
        "n_kv_heads": 2,
        "d_head": 4,
        "d_value": 4,
    }
    assert UnevenShape(**sizes).kind == "GQA"
    with pytest.raises(InputError):
        UnevenShape(**{**sizes, **changes})


def test_scores_count_the_heads_that_are_left(whole: Any):
    """FLOPs of scores and AV of an uneven layer: 2·N²·h·d each."""
    shapes = attention_shapes(remove_heads(whole("llama"), ["L1H3"]))
    report = cost(shapes, seq_len=16)
    heads = torch.tensor([layer.n_heads for layer in shapes.layers]).sum().item()
    assert report.prefill["scores"].flops == report.prefill["av"].flops == 2 * 16 * 16 * heads * 8
