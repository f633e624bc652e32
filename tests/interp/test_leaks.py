"""Over ten thousand blocks leave no hook, no object and no memory behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report():
    command = [sys.executable, "-m", "tests.interp.leaks"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_stays_on_the_model_or_with_us(report):
    first, *later = report["traces"]
    assert later == [first, first]
    kinds = ("hooks", "held", "acting", "frames", "watching", "noted")
    assert [first[name] for name in kinds] == [0] * len(kinds)
    assert first["implementation"] == "sdpa"


def test_fifteen_thousand_blocks(report):
    first, _, middle, last = report["held"]
    # An object lost in each block would add 15,000; one per forward pass 750, per exception 1,360,
    # per block of interventions 600.
    assert last[0] - first[0] < 100
    # Blocks also count what no collector tracks. The interpreter and torch fill tables for a while
    # (by 740, 180, 75, 22, 16, 9 in rounds of 5,000); one per forward pass would add 250 a round.
    assert last[1] - middle[1] < 200
    # Native memory: the smallest tensor takes an allocation of 64 bytes and some 200 of header, so
    # one per block would add 4 MB.
    assert last[2] - first[2] < 2 << 20


def test_captures_runs_watches_layers_and_threads(report):
    first, _, middle, last = report["beside"]
    # 300 turns of all of them, nested and in threads: an object lost in each would add 300, a
    # block 100 in the last round (which alone vary by 31), 4 KB of native memory 1.2 MB.
    assert last[0] - first[0] < 100
    assert last[1] - middle[1] < 80
    assert last[2] - first[2] < 1 << 20
