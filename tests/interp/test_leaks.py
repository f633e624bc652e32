"""Over ten thousand blocks leave no hook, no object and no memory behind."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_fifteen_thousand_blocks():
    command = [sys.executable, "-m", "tests.interp.leaks"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    report = json.loads(done.stdout.splitlines()[-1])
    before, after = report["traces"]
    assert before == after
    assert [after[name] for name in ("held", "acting", "frames", "noted")] == [0, 0, 0, 0]
    assert after["implementation"] == "sdpa"
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
