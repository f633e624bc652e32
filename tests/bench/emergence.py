"""When induction heads emerge: labels over training checkpoints of the built-in model.

    python -m tests.bench.emergence [--until 900] [--every 50]

The recipe of `tiny` is followed for its first steps (all within its first stage, in which these
heads form) on one thread, and `run_plan` labels every checkpoint.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

import headatlas as ha
from headatlas.interp.builtin.train import Recipe, train

KINDS = ("previous_token", "induction")


def markdown(arguments: list[str] | None = None) -> str:
    """One row per checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until", type=int, default=900)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--run", type=Path, help="a folder that train has written, in its place")
    options = parser.parse_args(arguments or [])
    torch.set_num_threads(1)
    here = Path(tempfile.mkdtemp())
    run, took = options.run, 0.0
    if run is None:
        run, began = here / "run", time.perf_counter()
        train(Recipe(), run, checkpoints=options.every, until=options.until)
        took = time.perf_counter() - began
    folder = run / "checkpoints"
    steps = sorted(path.name for path in folder.iterdir())
    plan = here / "plan.toml"
    plan.write_text(
        f"lengths = [128]\nkinds = {[*KINDS]}\nprompts = [{{count = 64}}]\n"
        f"models = [{{name = {str(folder)!r}, checkpoints = {steps}}}]",
        encoding="utf-8",
    )
    began = time.perf_counter()
    report = ha.run_plan(plan, here / "out")
    if not report.complete:
        raise SystemExit(str(report))
    found = ha.load_plan(here / "out")
    labelled = time.perf_counter() - began
    lines = [
        f"{len(steps)} checkpoints, 64 documents of 128 tokens a set, one thread: labelled in "
        f"{labelled:.0f} s" + (f", trained in {took:.0f} s" if took else "") + ".",
        "",
        "| step | previous-token heads | largest excess | induction heads | largest excess |",
        "|---|---|---|---|---|",
    ]
    counts = found.counts().set_index(["checkpoint", "kind"])
    for step in steps:
        cells = []
        for kind in KINDS:
            row = counts.loc[(step, kind)]
            heads = f"{row['strong'] + row['weak']} {row['heads']}".strip()
            cells += [heads, f"{row['largest_excess']:.3f}"]
        lines.append(f"| {int(step.split('-')[1])} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(sys.argv[1:]))
