"""Labels between words on a treebank: the best head of each relation, with what it has to beat.

    python -m tests.bench.ewt --treebank FILE.conllu [MODEL]

The published table is of the dev part of UD English EWT, which has to be fetched from Universal
Dependencies; HEADATLAS_EWT may name the file instead of the option.
"""

from __future__ import annotations

import argparse
import sys

import torch

import headatlas as ha
from headatlas.circuits.words.label import WordRule, label_words
from headatlas.circuits.words.prompts import word_prompts
from headatlas.circuits.words.score import score_words
from headatlas.circuits.words.tables import kinds_table
from headatlas.interp.conllu import read_conllu

from .outside_data import checked_file, file_option


def markdown(arguments: list[str] | None = None) -> str:
    """The table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    file_option(parser, "treebank", "HEADATLAS_EWT", "a treebank in CoNLL-U")
    options = parser.parse_args(arguments or [])
    documents = read_conllu(checked_file(parser, options.treebank, "treebank"))
    torch.set_num_threads(1)
    model, tokenizer = ha.load(options.model)
    prompts = word_prompts(tokenizer, documents, sentences=True, prepend_bos=True)
    rows = label_words(score_words(model, prompts, "syntactic", mute="drop"))
    least = WordRule().min_instances
    counts = rows.drop_duplicates("kind").n
    return (
        f"{options.model}, {len(prompts):,} sentences in {prompts.n_units} documents, "
        f"{prompts.n_words:,} words, {prompts.unaligned:,} of them without a token of their own; "
        f"{int((counts >= least).sum())} of {len(counts)} kinds have {least} visible links:\n\n"
        + kinds_table(rows, least=least)
    )


if __name__ == "__main__":
    print(markdown(sys.argv[1:]))
