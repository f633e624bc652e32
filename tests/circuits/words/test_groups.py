"""Documents of one group count as one where intervals are made."""

from dataclasses import replace

import headatlas as ha
from headatlas.circuits.words.prompts import word_prompts
from headatlas.interp.grammar import Grammar
from headatlas.interp.parsed import from_grammar, passage


def test_near_copies_are_one_unit():
    documents = [from_grammar(document) for document in Grammar(0).documents(3)]
    documents += [replace(documents[0], group="a"), replace(documents[1], group="a")]
    prompts = word_prompts(ha.load("tiny")[1], documents)
    assert prompts.unit.tolist() == [0, 1, 2, 3, 3]
    assert passage(documents[3], 0, 1).group == "a"
