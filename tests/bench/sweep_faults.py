"""A plan of more than 200 batches killed again and again: is anything lost, is any bit different?

    python -m tests.bench.sweep_faults      # needs fork; the full disk needs leave to mount a tmpfs

Each child process counts what it asks of the disk (fsync of a file or folder, rename) and is ended
by SIGKILL before or after the one whose turn it is; others are killed from outside at a random
moment. Then parts are torn, the disk is full, a checkpoint is cut off, and two processes meet.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headatlas as ha
from headatlas.circuits.plans.parts import Part

PLAN = """
lengths = [32, 48]
kinds = ["induction", "previous_token"]
batch_tokens = 64
models = [{name = "tiny"}]
prompts = [{name = "one", count = 32}, {name = "two", count = 32, seed = 1}]
"""
KILLS, OUTSIDE = 52, 8


def count_events(kill_at: int, log: Path) -> None:
    """Patch this process: it dies at an event, and notes each part that it begins to write."""
    seen, begin = [0], Part.write

    def event() -> None:
        seen[0] += 1
        if seen[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(call: Callable) -> Callable:
        def run(*given, **named):
            event()
            found = call(*given, **named)
            event()
            return found

        return run

    def write(self: Part, sums) -> None:
        with log.open("ab") as file:
            file.write(f"{self.path}\n".encode())
        begin(self, sums)

    os.fsync, os.replace = around(os.fsync), around(os.replace)
    Part.write = write


def child(plan: Path, out: Path, log: Path, kill_at: int = 0) -> int:
    """A process that runs the plan; its id."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            count_events(kill_at, log)
            status = 0 if ha.run_plan(plan, out).complete else 1
        finally:
            os._exit(status)
    return pid


def ended(pid: int) -> int:
    """The exit status; negative: the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def content(out: Path) -> dict[str, bytes]:
    """Parts and atlases by their path; what was half written would be among them."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted((out / "units").rglob("*"))
        if path.is_file() and path.suffix in (".safetensors", ".parquet")
    }


def markdown() -> str:
    """One row per fault."""
    here = Path(tempfile.mkdtemp())
    plan, log = here / "plan.toml", here / "log"
    plan.write_text(PLAN, encoding="utf-8")
    ha.forecast_plan(plan)  # whatever is imported late is there before the first fork
    assert ended(child(plan, here / "whole", log)) == 0
    whole = content(here / "whole")
    batches = len(log.read_text().splitlines())
    rows = [_killed(here, plan, whole, batches), _outside(here, plan, whole, batches)]
    rows += [_torn(here, plan, whole), _two(here, plan, whole), _full(here, plan, whole)]
    rows.append(_cut_off(here))
    shutil.rmtree(here)
    return "\n".join([
        f"{batches} batches in 4 units of `tiny`; the same bits: every part and every atlas, byte "
        "for byte, beside a run that nothing disturbed.",
        "",
        "| fault | what was seen |",
        "|---|---|",
        *rows,
    ])  # fmt: skip


def _again(log: Path, batches: int) -> int:
    return len(log.read_text().splitlines()) - batches


def _killed(here: Path, plan: Path, whole: dict[str, bytes], batches: int) -> str:
    out, log, kills, most = here / "killed", here / "log-killed", 0, 0
    spread = random.Random(0)
    while True:
        # parts take six events each; the first children die at every phase of the first files
        at = kills + 1 if kills < 20 else spread.randrange(20, 44)
        before = content(out) if out.exists() else {}
        status = ended(child(plan, out, log, at if kills < KILLS else 0))
        after = content(out)
        most += sum(before[name] != after.get(name) for name in before if _is_named(name))
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        kills += 1
    same = content(out) == whole
    return (
        f"| SIGKILL before or after an fsync or a rename | {kills} kills; {_again(log, batches)} "
        f"batches scored twice, never more than one a kill: "
        f"{_yes(_again(log, batches) <= kills)}; finished parts changed: {most}; the same bits: "
        f"{_yes(same)} |"
    )


def _is_named(name: str) -> bool:
    return not Path(name).name.startswith(".")


def _outside(here: Path, plan: Path, whole: dict[str, bytes], batches: int) -> str:
    out, log, kills = here / "outside", here / "log-outside", 0
    spread = random.Random(1)
    while True:
        pid = child(plan, out, log)
        if kills < OUTSIDE:
            time.sleep(spread.uniform(0.3, 1.0))
            os.kill(pid, signal.SIGKILL)
        status = ended(pid)
        if status == 0:
            break
        kills += 1
    return (
        f"| SIGKILL from outside at a random moment | {kills} kills; {_again(log, batches)} "
        f"batches scored twice; the same bits: {_yes(content(out) == whole)} |"
    )


def _torn(here: Path, plan: Path, whole: dict[str, bytes]) -> str:
    out = here / "torn"
    shutil.copytree(here / "whole", out)
    for word in out.rglob("unit.json"):
        word.unlink()  # as if it had stopped before its end
    parts = sorted(out.rglob("*.safetensors"))
    for place, part in enumerate(parts[:40]):
        data = bytearray(part.read_bytes())
        if place % 4 == 0:
            data = data[: len(data) * place // 40]
        elif place % 4 == 1:
            data[-1 - 97 * place] ^= 1
        elif place % 4 == 2:
            data[8 + place] ^= 0xFF
        else:
            data += b"\0"
        part.write_bytes(data)
    report = ha.run_plan(plan, out)
    found = sum(map(len, report.torn.values()))
    return (
        f"| {len(parts[:40])} parts cut short, lengthened, or with one bit or byte turned | "
        f"{found} found out and scored again; the same bits: {_yes(content(out) == whole)} |"
    )


def _two(here: Path, plan: Path, whole: dict[str, bytes]) -> str:
    out, log = here / "two", here / "log-two"
    one, other = child(plan, out, log), child(plan, out, log)
    statuses = {ended(one), ended(other)}
    lines = log.read_text().splitlines()
    return (
        f"| two processes on one folder | batches scored twice: {len(lines) - len(set(lines))}; "
        f"either ended without a fault: {_yes(statuses <= {0, 1})}; the same bits: "
        f"{_yes(content(out) == whole)} |"
    )


def _full(here: Path, plan: Path, whole: dict[str, bytes]) -> str:
    out = here / "full"
    out.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(out)]
    if subprocess.run(mount, capture_output=True).returncode:
        return "| a full disk | not measured: no leave to mount a tmpfs |"
    try:
        report = ha.run_plan(plan, out)
        kept = len([*out.rglob("*.safetensors")])
        told = sum("No space left" in why for why in report.failed.values())
        subprocess.run(["mount", "-o", "remount,size=64m", str(out)], check=True)
        again = ha.run_plan(plan, out)
        return (
            f"| a full disk (tmpfs of 2 MiB) | {len(report.done)} units done, {told} failures say "
            f"that no space is left, {kept} parts kept; with room made, {len(again.done)} of "
            f"{again.units} units and the same bits: {_yes(content(out) == whole)} |"
        )
    finally:
        subprocess.run(["umount", str(out)], check=True)


def _cut_off(here: Path) -> str:
    loaded: Any = ha.load("tiny")
    model, tokenizer = loaded
    for name in ("good", "bad"):
        model.save_pretrained(here / name)
        tokenizer.save_pretrained(here / name)
    shard = here / "bad" / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    plan = here / "shards.toml"
    plan.write_text(
        'lengths = [32]\nkinds = ["induction"]\nmodels = [{name = "bad"}, {name = "good"}]\n'
        "prompts = [{count = 16}]",
        encoding="utf-8",
    )
    report = ha.run_plan(plan, here / "shards")
    return (
        f"| the weights of one of two models cut off in the middle | {len(report.done)} unit done, "
        f"{len(report.failed)} failed and named |"
    )


def _yes(true: bool) -> str:
    return "yes" if true else "**no**"


if __name__ == "__main__":
    print(markdown(), file=sys.stdout)
