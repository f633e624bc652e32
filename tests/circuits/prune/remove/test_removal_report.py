"""What a report says of two models, however the second came about."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from headatlas.circuits.prune.remove.files import load_pruned, save_pruned
from headatlas.circuits.prune.remove.remove import remove_heads
from headatlas.circuits.prune.remove.report import RemovalReport, removal_report
from headatlas.interp.errors import InputError

from .families import all_heads


def test_report(whole: Any):
    smaller = remove_heads(whole("llama"), ["L0KV0", "L1H3"])
    report = removal_report(whole("llama"), smaller, seq_len=16, repeats=2)
    rows = report.frame.set_index("quantity")
    assert rows.loc["heads"].tolist() == [8, 5, 5 / 8]
    # of 32 wide: 3 queries' rows and columns of 8, and one key and one value of 8
    assert rows.before["parameters"] - rows.after["parameters"] == 32 * 8 * (3 * 2 + 2)
    assert rows.loc["kv_bytes_per_token"].tolist() == [4 * 8 * 8, 4 * 8 * 6, 0.75]
    # 2·N·(weights) and 4·N²·h·d, softmax aside: layer 0 loses 2 of 4 heads and 1 of 2 groups
    lost = 2 * 16 * 32 * 8 * (3 * 2 + 2) + 3 * 4 * 16 * 16 * 8
    softmax = rows.before["attention_flops"] - rows.after["attention_flops"] - lost
    assert 0 <= softmax <= 3 * 16 * 16 * 10
    assert (rows.loc[["prefill_ms", "decode_ms"], ["before", "after"]] > 0).all(axis=None)
    assert "latents" not in str(report)


def test_report_says_that_latents_stay(whole: Any):
    smaller = remove_heads(whole("deepseek_v3"), ["L0H1"])
    report = removal_report(whole("deepseek_v3"), smaller, seq_len=8, repeats=1)
    assert report.frame.set_index("quantity").ratio["kv_bytes_per_token"] == 1
    assert "The cache holds latents" in repr(report)
    with pytest.raises(InputError, match="a LlamaForCausalLM and a DeepseekV3ForCausalLM cannot"):
        removal_report(whole("llama"), whole("deepseek_v3"))
    with pytest.raises(InputError, match="repeats must be a positive whole number; got 0"):
        removal_report(whole("llama"), smaller, repeats=0)


def counts(report: RemovalReport) -> dict[str, list[float]]:
    rows = report.frame.set_index("quantity")[["before", "after"]]
    return {str(key): row.tolist() for key, row in rows.iterrows() if "_ms" not in str(key)}


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "phi3"])
def test_an_ordinary_cut_that_was_loaded_again(name: str, whole: Any, tmp_path: Path):
    heads = [head for head in all_heads(name) if head.head < 2]
    smaller = remove_heads(whole(name), heads)
    wanted = counts(removal_report(whole(name), smaller, seq_len=8, repeats=1))
    assert wanted["heads"] == [8, 4]
    save_pruned(smaller, tmp_path)
    for loaded in (load_pruned(tmp_path)[0], AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert counts(removal_report(whole(name), loaded, seq_len=8, repeats=1)) == wanted


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "falcon-groups"])
def test_any_cut_that_was_loaded_again(name: str, whole: Any, tmp_path: Path):
    heads = [head for head in all_heads(name) if head.layer == 0 or head.head == 3]
    smaller = remove_heads(whole(name), heads)
    before = removal_report(whole(name), smaller, seq_len=8, repeats=1)
    after = removal_report(
        whole(name), load_pruned(save_pruned(smaller, tmp_path))[0], seq_len=8, repeats=1
    )
    assert repr(counts(after)) == repr(counts(before))  # NaN is NaN
    assert counts(after)["heads"] == [len(all_heads(name)), len(all_heads(name)) - len(heads)]
    missing = "attention_flops is not counted" in repr(after)
    assert missing is (name == "t5")
    assert ("–" in repr(after)) is (name in ("t5", "bert"))


def test_of_two_models_that_know_nothing(whole: Any):
    """The same model twice: nothing is saved."""
    report = removal_report(whole("gpt2"), whole("gpt2"), seq_len=8, repeats=1)
    assert report.frame.set_index("quantity").ratio[["heads", "parameters"]].tolist() == [1, 1]
    assert "save_pruned" not in repr(report)


def test_all_heads_gone_cost_nothing(whole: Any):
    smaller = remove_heads(whole("llama"), all_heads("llama"))
    found = counts(removal_report(whole("llama"), smaller, seq_len=8, repeats=1))
    assert found["heads"] == [8, 0]
    assert found["attention_flops"][1] == 0


def test_it_reads_well(whole: Any):
    smaller = remove_heads(whole("llama"), ["L0KV0", "L1H3"])
    report = removal_report(whole("llama"), smaller, seq_len=8, repeats=1)
    table = report.table().set_index("quantity")
    assert table.loc["heads"].tolist() == ["8", "5", "0.625"]
    assert table.loc["kv_bytes_per_token"].tolist() == ["256", "192", "0.750"]
    assert "," in table.before["parameters"]
    assert "e+" not in repr(report)
    assert "at 8 tokens, batch 1, one run each, which is noise; ask for more repeats" in repr(
        report
    )
    assert "save_pruned makes of it a folder that headatlas.load_pruned alone reads" in repr(report)
    assert "<td>0.625</td>" in report._repr_html_()
    several = removal_report(whole("llama"), smaller, seq_len=8, repeats=3)
    assert "medians of 3 runs each, taken in turns" in repr(several)


def test_lengths_are_cut_to_the_context(whole: Any):
    smaller = remove_heads(whole("gpt2"), ["L0H0"])
    context = whole("gpt2").config.n_positions
    report = removal_report(whole("gpt2"), smaller, seq_len=10**6, repeats=1)
    assert report.seq_len == context
