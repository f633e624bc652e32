"""Coreference on Winogender schemas: the best heads, the rules they have to beat, the ceiling.

    python -m tests.bench.winogender --templates FILE.tsv [MODEL]

The file of 120 templates is published with the schemas (Rudinger 2018); HEADATLAS_WINOGENDER may
name it instead of the option.
"""

from __future__ import annotations

import argparse
import sys

import torch

import headatlas as ha
from headatlas.circuits.words.label import label_words
from headatlas.circuits.words.prompts import word_prompts
from headatlas.circuits.words.score import score_words
from headatlas.circuits.words.tables import ceiling_line, coreference_table
from headatlas.interp.winogender import read_winogender

from .outside_data import checked_file, file_option


def markdown(arguments: list[str] | None = None) -> str:
    """The table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--heads", type=int, default=8, help="heads to show")
    file_option(parser, "templates", "HEADATLAS_WINOGENDER", "the schemas' templates, as TSV")
    options = parser.parse_args(arguments or [])
    documents = read_winogender(checked_file(parser, options.templates, "templates"))
    torch.set_num_threads(1)
    model, tokenizer = ha.load(options.model)
    prompts = word_prompts(tokenizer, documents, prepend_bos=True)
    rows = label_words(score_words(model, prompts, "coreference"))
    grades = rows.grade.value_counts()
    return (
        f"{options.model}, {len(documents)} sentences in {prompts.n_units} groups of one "
        f"occupation; {grades.get('strong', 0)} heads strong, {grades.get('weak', 0)} weak, "
        f"{grades.get('ambiguous', 0)} ambiguous:\n\n"
        f"{coreference_table(rows, heads=options.heads)}\n\n{ceiling_line(documents)}"
    )


if __name__ == "__main__":
    print(markdown(sys.argv[1:]))
