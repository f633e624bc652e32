"""The page on model families says what hooking says of them, and the sweep behind it ends."""

import re
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from .bench import coverage, small_models
from .conftest import FAMILIES

# every way to be hooked, and every reason not to be
REPRESENTATIVE = (
    *("albert", "apertus", "bamba", "bart", "big_bird", "bigbird_pegasus", "bloom", "codegen"),
    *("cohere2", "convbert", "cpmant", "ctrl", "deberta-v2", "deepseek_v32", "diffllama", "doge"),
    *("electra", "falcon", "falcon_h1", "fsmt", "funnel", "gemma4_text", "gpt_neo", "gpt_oss"),
    *("gptj", "granitemoehybrid", "jamba", "led", "longformer", "mamba", "minimax", "modernbert"),
    *("mpt", "openai-gpt", "pegasus_x", "qwen3_next", "t5", "whisper", "xglm", "xlnet"),
    *("dinov3_vit", "hubert", "sam_vision_model", "siglip_vision_model", "swin", "vit"),
)

DOCS = Path(__file__).parent.parent / "docs"


class TestCoverage:
    PAGE = (DOCS / "coverage.md").read_text("utf-8")
    ROWS = re.findall(
        r"^\| (?!family|-).*$", (DOCS / "families.md").read_text("utf-8"), re.MULTILINE
    )

    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_table_has_every_family_as_it_is(self, family):
        assert coverage.layout(family) in self.PAGE.splitlines()

    @pytest.mark.parametrize("family", REPRESENTATIVE)
    def test_the_rows_say_what_comes_out(self, family):
        """Families of the long table, tried again; the last digit of a drift may differ."""
        found = coverage.line(coverage.tried(family, dict(small_models.families())[family]))
        (listed,) = [row for row in self.ROWS if row.startswith(f"| {family} |")]
        cells, wanted = (line.strip("| ").split(" | ") for line in (found, listed))
        assert cells[:5] + cells[6:] == wanted[:5] + wanted[6:]
        assert cells[5] == wanted[5] == "–" or float(cells[5]) < 1e-5

    def test_every_family_has_its_row(self):
        families = [row.split(" | ")[0].strip("| ") for row in self.ROWS]
        assert families == sorted(family for family, _ in small_models.families())

    def test_the_counts_add_up(self):
        counts = r"(\d+) families, .*: (\d+) hooked .*, (\d+) refused, (\d+) not tried"
        total, hooked, refused, not_tried = map(int, re.search(counts, self.PAGE).groups())
        assert total == hooked + refused + not_tried
        stopped = re.findall(r"^\| not tried: (.*) \((\d+)\)", self.PAGE, re.MULTILINE)
        assert sum(int(count) for _, count in stopped) == not_tried
        why = (small_models.NO_CONFIG, small_models.NO_LIBRARY, small_models.NO_FORWARD)
        reasons = {*why, coverage.TOO_LONG, coverage.DIED}
        assert {text for text, _ in stopped} <= reasons
        listed = re.findall(r"^\| ([^|]*)\((\d+)\) \| (.*) \|$", self.PAGE, re.MULTILINE)
        assert sum(int(count) for _, count, _ in listed) == total
        for _, count, names in listed:
            assert len(names.split(", ")) == int(count)


class TestCoverageSweep:
    """What stops a family is told apart, and none ends the sweep."""

    def test_a_forward_that_fails_is_no_missing_config(self):
        found = coverage.tried("voxtral_realtime", "encoder-decoder")  # asks for sounds
        assert (found.outcome, found.reason) == ("not tried", small_models.NO_FORWARD)
        assert "input_features" in found.detail

    def test_no_config(self):
        found = coverage.tried("gemma4_assistant", "decoder")
        assert (found.outcome, found.reason) == ("not tried", small_models.NO_CONFIG)

    def test_a_missing_library(self, monkeypatch):
        def built(*_):
            raise ImportError("no timm")

        monkeypatch.setattr(small_models, "_built", built)
        assert coverage.tried("xglm", "decoder").reason == small_models.NO_LIBRARY

    def test_a_fault_of_ours_is_shown_as_one(self, monkeypatch):
        def broken(_):
            raise KeyError("head")

        monkeypatch.setattr(coverage, "attention_sites", broken)
        found = coverage.tried("llama", "decoder")
        assert (found.outcome, found.reason) == ("broken", "hooking raises KeyError")

    def test_no_handler_on_the_way_catches_the_alarm(self, monkeypatch):
        """Nor does code that goes on after the first alarm."""
        caught = []

        def slow(*_):
            for _ in range(2):
                try:
                    time.sleep(5)
                except Exception as error:
                    caught.append(error)
                except coverage.TooLongError:
                    if len(caught) or slow.rung:
                        raise
                    slow.rung = True

        slow.rung = False
        monkeypatch.setattr(coverage, "LIMIT_S", 0.2)
        monkeypatch.setattr(small_models, "_built", slow)
        monkeypatch.setattr(coverage.torch, "set_num_threads", lambda _: None)
        start = time.monotonic()
        found = coverage.tried_in_time("xglm", "decoder")
        assert (found.outcome, found.reason) == ("not tried", coverage.TOO_LONG)
        assert not caught
        assert slow.rung
        assert time.monotonic() - start < 4

    @pytest.mark.parametrize(("limit", "why"), [(60, coverage.DIED), (0, coverage.TOO_LONG)])
    def test_a_process_that_dies_does_not_end_the_sweep(self, monkeypatch, limit, why):
        class Pool:
            def __init__(self, *_, **__):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *_):
                return False

            def submit(self, _, family, sort):
                self.now = family, sort
                return self

            def result(self):
                if self.now[0] == "dies":
                    raise BrokenProcessPool
                return coverage.Tried(*self.now, "hooked")

        three = [("first", "decoder"), ("dies", "decoder"), ("last", "decoder")]
        monkeypatch.setattr(coverage, "ProcessPoolExecutor", Pool)
        monkeypatch.setattr(coverage, "families", lambda: three)
        monkeypatch.setattr(coverage, "_KILL_S", limit)
        found = coverage.sweep()
        assert [(row.family, row.outcome) for row in found] == [
            ("first", "hooked"), ("dies", "not tried"), ("last", "hooked"),
        ]  # fmt: skip
        assert found[1].reason == why
