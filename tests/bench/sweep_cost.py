"""What it takes to remove every head in turn: the sweep of `headatlas classify --evidence causal`.

    python -m tests.bench.sweep_cost [MODEL] [--kinds K,K] [--threads 2]

Every set of documents on which one of the labelled kinds is tested is swept over all heads with
zero, mean and resample ablation, as by default. CPU time is that of all threads.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Mapping

import torch

import headatlas as ha
from headatlas.circuits.causal.sweep import Sweep


class Clock:
    """CPU and wall seconds of each stage, as progress reports come."""

    def __init__(self) -> None:
        self.spent: dict[str, tuple[float, float]] = {}
        self._mark = time.process_time(), time.monotonic()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.process_time(), time.monotonic()
        before = self.spent.get(stage, (0.0, 0.0))
        self.spent[stage] = (
            before[0] + now[0] - self._mark[0],
            before[1] + now[1] - self._mark[1],
        )
        self._mark = now
        print(f"\r{stage} {done} of {total}", end="", file=sys.stderr, flush=True)


def markdown(arguments: list[str] | None = None) -> dict[str, str]:
    """One row per set of documents; for prose, the CPU minutes that `classify` takes by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--kinds", default="previous_token,duplicate_token,induction")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments or [])
    torch.set_num_threads(options.threads)
    model, tokenizer = ha.load(options.model)
    clock = Clock()
    atlas = ha.classify(model, tokenizer)
    clock("classify", 1, 1)
    effects = ha.causal_effects(model, tokenizer, atlas, kinds=options.kinds, progress=clock)
    minutes = clock.spent["classify"][0] / 60
    return {"": _table(options, effects.sweeps, clock), "classify": f"{minutes:.1f}"}


def _peak() -> float:
    """MiB of resident memory at most, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _table(options: argparse.Namespace, sweeps: Mapping[str, Sweep], clock: Clock) -> str:
    lines = [
        f"{options.model}, {options.threads} thread{'s' * (options.threads > 1)}: all heads; zero, "
        "mean and resample ablation; documents by default. The process's memory never exceeded "
        f"{_peak() / 1024:.1f} GiB, model and libraries included.",
        "",
        "| documents | heads | removals | behaviours | CPU s | wall s |",
        "|---|---|---|---|---|---|",
    ]
    for name, swept in sweeps.items():
        cpu, wall = clock.spent[f"ablate {name}"]
        removals = len(swept.heads) * len(swept.ablations)
        lines.append(
            f"| {swept.n.shape[1]} {name} | {len(swept.heads)} | {removals} "
            f"| {len(swept.behaviours)} | {cpu:.0f} | {wall:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(sys.argv[1:])[""])
