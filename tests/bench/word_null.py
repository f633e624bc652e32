"""How often shuffled links between words are labelled, and whether their p-values are uniform.

    python -m tests.bench.word_null [MODEL] [--documents 384] [--groups 12] [--draws 17]

The built-in grammar's documents are cut into disjoint groups, each a data set of its own. Every
draw moves each link to a word of another document that sees a word at the same offset; a false
label is any head of any kind whose simultaneous intervals of accuracy and mass both lie above 0.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import numpy as np
import torch
from scipy import stats

import headatlas as ha
from headatlas.circuits.bootstrap import halves
from headatlas.circuits.excess import permuted_excess
from headatlas.circuits.words.label import WordRule
from headatlas.circuits.words.null_check import check_words
from headatlas.circuits.words.prompts import word_prompts
from headatlas.circuits.words.score import score_words
from headatlas.circuits.words.sums import WordSums
from headatlas.interp.grammar import Grammar
from headatlas.interp.parsed import from_grammar

_SOME = 0.01
"""Heads with less mass than this live on a few large weights, and their p-values are coarse."""


def taken(sums: WordSums, documents: slice) -> WordSums:
    """The sums of some documents: all that `check_words` reads."""
    return replace(
        sums,
        mass=sums.mass.take(documents),
        hits=sums.hits.take(documents),
        null_guesses=sums.null_guesses[documents],
    )


def markdown(arguments: list[str] | None = None) -> str:
    """The table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    for name, value in (("documents", 384), ("groups", 12), ("draws", 17), ("length", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args(arguments or [])
    torch.set_num_threads(1)
    model, tokenizer = ha.load(options.model)
    documents = [from_grammar(d) for d in Grammar(1).documents(options.documents)]
    prompts = word_prompts(tokenizer, documents, seq_len=options.length, prepend_bos=True)
    sums = score_words(model, prompts, null_draws=options.draws, seed=1)
    part = options.documents // options.groups
    rule = WordRule(margin=0.0, resamples=500)
    checks = [
        check_words(taken(sums, slice(g * part, (g + 1) * part)), rule=rule, seed=g)
        for g in range(options.groups)
    ]
    return _table(options, sums, checks)


def _table(options: argparse.Namespace, sums: WordSums, checks: list) -> str:
    kinds = [sums.mass.statistics[column].kind for column in sums.mass.permuted]
    false = sum(int((check["false_labels"] > 0).sum()) for check in checks)
    p = np.stack([np.stack(list(check["p_values"])) for check in checks])
    p = p.reshape(*p.shape[:2], len(kinds), -1)  # [group, draw, kind, head]
    off, expected = _means(sums, options.draws)
    names = ", ".join(name.removeprefix("syntactic.") for name in kinds)
    lines = [
        f"{options.model}: {options.documents} documents of the built-in grammar in "
        f"{options.groups} disjoint groups, {options.draws} draws each, all heads, {len(kinds)} "
        f"kinds with 400 links ({names}). Any false label in {false} of {p.shape[0] * p.shape[1]} "
        "groups × draws.",
        "",
        "| kinds | heads × kinds | p < .05 | p < .01 | KS p against small p (× hypotheses) "
        "| KS p, both sides | mean excess of mass |",
        "|---|---|---|---|---|---|---|",
    ]
    between = np.array([name.startswith("syntactic.") for name in kinds])[:, None]
    some = expected >= _SOME
    rows = {
        f"syntactic, expected mass ≥ {_SOME}": between & some,
        f"syntactic, expected mass < {_SOME}": between & ~some,
        "coreference": ~between & np.ones_like(some),
    }
    return "\n".join([*lines, *(_row(n, p[:, :, o], off[o]) for n, o in rows.items() if o.any())])


def _means(sums: WordSums, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Mass over the profile and mass of the profile, means over the draws, [kind, head]."""
    half, slots = halves(len(sums.mass.rows), seed=0), range(len(sums.mass.permuted))
    every = [[permuted_excess(sums.mass, d, slot, half) for slot in slots] for d in range(draws)]
    over = np.mean([[one.excess for one in row] for row in every], axis=0)
    return over, np.mean([[one.expected for one in row] for row in every], axis=0)


def _row(name: str, p: np.ndarray, off: np.ndarray) -> str:
    """`p` is [group, draw, head × kind]; KS is of one draw, whose groups share no document."""
    low, both = (
        min(stats.kstest(values, "uniform", alternative=side).pvalue for values in p[:, 0].T)
        for side in ("greater", "two-sided")
    )
    n = p.shape[2]
    return (
        f"| {name} | {n} | {100 * (p < 0.05).mean():.1f} % | {100 * (p < 0.01).mean():.1f} % "
        f"| {low:.1e} ({min(1, low * n):.2f}) | {both:.1e} ({min(1, both * n):.2f}) "
        f"| {off.min():+.4f} to {off.max():+.4f} |"
    )


if __name__ == "__main__":
    print(markdown(sys.argv[1:]))
