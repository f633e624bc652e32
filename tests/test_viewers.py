"""What the comparison of viewers computes and says of its measurements."""

import json

import pytest
import torch

from .bench.viewer_opening import Opening
from .bench.viewer_pages import WRITERS, json_bytes, patterns
from .bench.viewers import line, megabytes, shown


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 3, 3), (3, 1, 4)])
def test_json_is_counted_without_holding_it(size):
    weights = torch.rand(size, generator=torch.Generator().manual_seed(0))
    assert json_bytes(weights) == len(json.dumps(weights.tolist()))


def test_all_viewers_get_causal_patterns_of_twelve_heads():
    weights, tokens = patterns(16)
    assert weights.shape == (12, 16, 16)
    assert len(tokens) == 16
    torch.testing.assert_close(weights.sum(-1), torch.ones(12, 16))
    assert weights.triu(1).abs().max() == 0
    assert 0.2 < weights[:, -1].max(-1).values.mean() < 0.8  # neither flat (1/16) nor one-hot


def test_a_row_tells_medians_and_how_a_page_fails():
    row = {"viewer": "one", "tokens": 4096, "bytes": 12_300_000, "problem": ""}
    row["opened"] = [
        Opening(0.1, second, 90_000, mib) for second, mib in ((3, 80), (1, 90), (2, 70))
    ]
    row["offline"] = Opening(problem="time-out")
    assert line(row) == "| one | 4,096 | 12.3 | 0.09 | blank | 0.10 | 2.00 | 80 |"
    row["offline"], row["opened"] = Opening(0.1, 3), row["opened"][:1]
    assert line(row) == "| one | 4,096 | 12.3 | 0.09 | drawn | 0.10 | 3.00, once | 80 |"
    row |= {"problem": "time-out", "opened": [Opening(peak_mib=512.4, problem="time-out")]}
    assert line(row) == "| one | 4,096 | 12.3 | 0 | – | – | time-out | 512 |"
    row |= {"bytes": None, "opened": [], "problem": "memory"}
    assert line(row) == "| one | 4,096 | – | – | – | – | memory | – |"


def test_sizes_keep_two_or_three_digits():
    assert [megabytes(size) for size in (0, 86_321, 9_990_000, 22_440_000)] == [
        "0", "0.09", "9.99", "22.4",
    ]  # fmt: skip


def test_every_viewer_has_its_own_sign_of_being_drawn():
    for viewer in WRITERS:
        condition = shown(viewer, 64)
        assert "return " in condition
        assert condition.count("{") == condition.count("}")
        assert ("64" in condition) == (
            "attention_patterns" in viewer or viewer.startswith("BertViz")
        )
