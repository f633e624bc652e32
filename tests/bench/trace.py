"""The induction circuit of a model, link by link, with what removing each head does.

python -m tests.bench.trace [MODEL]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import pandas as pd
import torch

import headatlas as ha
from headatlas.circuits.causal.chain import LINKS
from headatlas.circuits.causal.trace import trace_induction
from headatlas.circuits.causal.trace_rows import TRACED


def markdown(arguments: list[str] | None = None) -> str:
    """The chain as a paragraph and as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    options = parser.parse_args(arguments or [])
    torch.set_num_threads(1)
    trace = trace_induction(*ha.load(options.model))
    pairs = Counter(zip(trace.heads["role"], trace.heads["evidence"], strict=True))
    tested = "; ".join(
        f"{role}: {pairs[role, 'pattern + causal']} pattern + causal, "
        f"{pairs[role, 'pattern only']} pattern only"
        for role in TRACED
    )
    setting = trace.settings
    lines = [
        f"{options.model}, {setting['prompts']} documents of {setting['seq_len']} tokens, "
        f"{setting['ablation']} ablation. {tested}.",
        "",
        str(trace),
    ]
    if trace.chain is not None:
        lines += ["", "| head | link | value [95 %] |", "|---|---|---|"]
        lines += [_line(row) for row in trace.table().to_dict("records")]
    return "\n".join(lines)


def _line(row: dict) -> str:
    span = "" if pd.isna(row["low"]) else f" [{row['low']:.3f}, {row['high']:.3f}]"
    into = f" ({row['target']})" if row["target"] else ""
    return f"| {row['address']} | {LINKS[row['link']]}{into} | {row['value']:.3f}{span} |"


if __name__ == "__main__":
    print(markdown(sys.argv[1:]))
