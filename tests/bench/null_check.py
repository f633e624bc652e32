"""How often permuted labels are labelled, and whether their p-values are uniform.

    python -m tests.bench.null_check [MODEL] [--documents 192] [--length 96] [--groups 8] …

The documents are cut into disjoint groups, each a data set of its own. Every draw permutes the
labels of the content kinds within each document; a false label is any head of any kind whose
simultaneous interval lies above 0.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np
import torch
from scipy import stats

import headatlas as ha
from headatlas.circuits.grade import Rule
from headatlas.circuits.null_check import check_null
from headatlas.interp.probes import natural_prompts, random_prompts, token_pool


def rows(options: argparse.Namespace) -> Iterator[str]:
    """One row of the table per prompt set."""
    torch.set_num_threads(1)
    model, tokenizer = ha.load(options.model)
    size = (options.documents, options.length)
    pool = token_pool(model.config.vocab_size, tokenizer)
    sets = {
        "duplicate_token,induction": random_prompts(
            pool, *size, bos_id=tokenizer.bos_token_id, seed=1
        ),
        "duplicate_token,induction,delimiter": natural_prompts(
            tokenizer, *size, prepend_bos=True, seed=1
        ),
    }
    for kinds, prompts in sets.items():
        sums = ha.score(model, prompts, kinds, null_draws=options.draws, seed=1)
        part = options.documents // options.groups
        checks = [
            check_null(
                {prompts.name: sums.take(slice(g * part, (g + 1) * part))},
                Rule(margin=0.0, resamples=500),
                seed=g,
            )
            for g in range(options.groups)
        ]
        false = sum(int((check["false_labels"] > 0).sum()) for check in checks)
        p = np.stack([np.stack(list(check["p_values"])) for check in checks])
        worst = min(stats.kstest(p[:, 0, h], "uniform").pvalue for h in range(p.shape[2]))
        yield (
            f"| {prompts.name} ({kinds.replace(',', ', ')}) | {false} of {p.shape[0] * p.shape[1]} "
            f"| {100 * (p < 0.05).mean():.1f} % | {100 * (p < 0.01).mean():.1f} % "
            f"| {worst:.4f} ({min(1, worst * p.shape[2]):.2f}) |"
        )


def markdown(arguments: list[str] | None = None) -> str:
    """The table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    for name, value in (("documents", 192), ("length", 96), ("groups", 8), ("draws", 25)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args(arguments or [])
    head = (
        f"{options.model}: {options.documents} documents of {options.length} tokens per set in "
        f"{options.groups} disjoint groups, {options.draws} draws each, all heads:\n\n"
        "| prompts | groups × draws with any false label | p < .05 | p < .01 "
        "| smallest KS p (× hypotheses) |\n|---|---|---|---|---|"
    )
    return "\n".join([head, *rows(options)])


if __name__ == "__main__":
    print(markdown(sys.argv[1:]))
