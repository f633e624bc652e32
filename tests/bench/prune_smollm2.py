"""Prune smollm2-135m, frozen: L0 gates against the baselines. A few hours on a CPU.

    python -m tests.bench.prune_smollm2 --out DIR [--model smollm2-135m] [--train FILE --eval FILE]

One path of gates with warm starts through 10, 20, 30 and 50 %, and random (10 draws), random with
the layers of L0, magnitude and Michel at as many heads; all learn from the same documents. Stop it
at any time: with the same DIR it goes on. Without files the text is the generator's, of two seeds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import headatlas as ha
from headatlas.circuits.prune.prune import prune_heads
from headatlas.circuits.prune.prune_file import RESULT
from headatlas.circuits.prune.prune_result import PruneResult
from headatlas.circuits.prune.settings import GateTraining
from headatlas.interp.grammar import natural_text
from tests.bench.prune_tiny import _note, curve_table

NIGHTLY = Path(__file__).parents[2] / "build" / "prune-smollm2"
SHARES = (0.1, 0.2, 0.3, 0.5)
METHODS = ("l0", "random", "layer_random", "magnitude", "michel")
TRAIN_SEED, TEXT_SEED = 101, 202


def markdown(arguments: list[str] | None = None) -> dict[str, str]:
    """The curve, and how L0 differs from every other method, paired by document.

    Raises:
        SystemExit: no folder was named, and `make nightly` has left no finished result.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a folder that is taken up again")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--train", type=Path, help="a text to learn from")
    parser.add_argument("--eval", type=Path, help="a text to measure on")
    parser.add_argument("--steps", type=int, default=200, help="updates of gates per sparsity")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--documents", type=int, default=128, help="to learn from")
    parser.add_argument("--held-out", type=int, default=40, help="to measure on")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments or [])
    if options.out is None:
        options.out = NIGHTLY
        if not (NIGHTLY / RESULT).is_file() or not PruneResult.load(NIGHTLY).finished:
            print(
                "pruning smollm2-135m takes hours: run `make nightly`, or name a folder, --out DIR"
            )
            raise SystemExit(2)
    torch.set_num_threads(options.threads)
    model, tokenizer = ha.load(options.model)
    config = GateTraining(
        target=0.5, steps=options.steps, batch=options.batch, draws="document", every=10
    )
    result = prune_heads(
        model, tokenizer, options.train or [_text(TRAIN_SEED, options.documents, options.seq_len)],
        eval_texts=options.eval or [_text(TEXT_SEED, options.held_out, options.seq_len)],
        method=METHODS, sparsity=SHARES, config=config, draws=options.draws,
        train_documents=options.documents, eval_documents=options.held_out,
        seq_len=options.seq_len, folder=options.out, progress=_note,
    )  # fmt: skip
    return {"": f"{_said(options, result)}\n\n{curve_table(result)}", "against": _against(result)}


def _text(seed: int, documents: int, seq_len: int) -> str:
    return natural_text(documents * seq_len, seed=seed)


def _said(options: argparse.Namespace, result: PruneResult) -> str:
    train, text = result.settings["train"], result.settings["text"]
    return (
        f"{options.model}, {len(result.heads)} heads, frozen; every method learnt from the same "
        f"{train['tokens']:,} tokens ({train['origin']}), L0 in {options.steps} updates of "
        f"{options.batch} documents per sparsity; measured on {text['documents']} documents "
        f"({text['origin']}) and as many of repeated random tokens. Intervals are simultaneous; of "
        "random methods the range of the draws is told."
    )


def _against(result: PruneResult) -> str:
    """Δ loss of L0 minus that of the others on text, one row each."""
    values = list(dict.fromkeys(cut.asked for cut in result.cuts))
    lines = [
        f"| L0 minus …, nats/token | {' | '.join(f'{value:.0%}' for value in values)} |",
        "|---" * (len(values) + 1) + "|",
    ]
    found = {
        (row["other"], row["asked"]): row
        for row in result.differences.to_dict("records")
        if row["documents"] == "text"
    }
    for method in result.methods[1:]:
        cells = [found[method, value] for value in values]
        told = " | ".join(
            f"{row['difference_nats']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
            for row in cells
        )
        lines.append(f"| {method} | {told} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n\n".join(markdown(sys.argv[1:]).values()))
