"""What is learnt from and what is measured on: limits, parts held out, no text on both sides."""

from dataclasses import replace

import numpy as np
import pytest

import headatlas as ha
from headatlas.circuits.behaviour import has_next
from headatlas.circuits.prune.held_out import Reading, read_material, refuse_overlap
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import natural_text
from headatlas.interp.probes import Prompts
from headatlas.interp.texts import Documents, read_documents
from tests.circuits.causal.models import VOCAB, llama
from tests.circuits.prune.trained import prune, text


def test_without_text_to_measure_on_some_is_held_out():
    model = llama()
    reading = Reading(12, 8, 20, None, 3)
    one, same = (read_material(model, None, text(1, 30), None, reading) for _ in range(2))
    assert one.train.fingerprints().isdisjoint(one.text.fingerprints())
    assert one.text.fingerprints() == same.text.fingerprints()
    assert (len(one.train), len(one.text)) == (12, 8)
    other = read_material(model, None, text(1, 30), None, Reading(12, 8, 20, None, 4))
    assert other.text.fingerprints() != one.text.fingerprints()
    with pytest.raises(InputError, match="a single document, of which none can be held out"):
        read_material(model, None, text(1, 1), None, reading)


def test_text_on_both_sides_is_refused():
    model = llama(layers=2)
    with pytest.raises(InputError, match=r"16 of 16 documents to measure on .* are among those"):
        prune(model, eval_texts=text(1))
    stream = np.random.default_rng(0).integers(1, VOCAB, 400)
    one, other = (
        Documents(Prompts("text", ids, ids > 0, bos=False), "stream")
        for ids in (stream[:360].reshape(-1, 40), stream[10:370].reshape(-1, 40))
    )
    assert one.fingerprints().isdisjoint(other.fingerprints())
    with pytest.raises(InputError, match=r"9 of 9 documents .* spans of 16 tokens"):
        refuse_overlap(one, other)
    refuse_overlap(one, text(5))


@pytest.fixture(scope="module")
def both():
    """Text of the built-in model, and repeated tokens of the seed that is measured with."""
    tiny = ha.load("tiny")
    words = read_documents([natural_text(900, seed=1)], *tiny, n=20, seq_len=32)
    return tiny, words, ha.repeated_probe(*tiny, prompts=16, seq_len=32)


def test_second_copies_are_of_tokens_that_were_not_learnt_from(both):
    tiny, words, probe = both
    found = read_material(*tiny, words + probe, None, Reading(None, 12, 32, None, 0))
    learnt = found.train.fingerprints() | found.text.fingerprints()
    assert not found.repeated.fingerprints() & learnt
    assert found.repeated.origin == "repeated random tokens, seed 1"
    alone = read_material(*tiny, words, None, Reading(None, 12, 32, None, 0))
    assert alone.repeated.origin == "repeated random tokens, seed 0"


def test_text_alone_is_held_out_where_repeated_tokens_are_learnt_from(both):
    tiny, words, probe = both
    found = read_material(*tiny, words + probe, None, Reading(None, 12, 32, None, 0))
    assert len(found.text) == 6  # a third of the text
    assert found.text.fingerprints() < words.fingerprints()
    whole = replace(found.text.prompts, counted=None)
    assert (has_next(found.text.prompts) == has_next(whole)).all()
    assert probe.fingerprints() < found.train.fingerprints()
    with pytest.raises(InputError, match="0 documents of text, of which none can be held out"):
        read_material(*tiny, probe, None, Reading(None, 12, 32, None, 3))


def test_a_limit_takes_of_both_sorts_and_says_so(both):
    tiny, words, probe = both
    found = read_material(*tiny, words + probe, None, Reading(15, 12, 32, None, 0))
    copies = len(found.train.fingerprints() & probe.fingerprints())
    assert len(found.train) == 15
    assert 3 <= copies <= 12
    assert found.train.origin.endswith(", 15 of 30 documents")


def test_limits_hold_for_documents_too():
    found = read_material(llama(), None, text(1, 30), text(2, 30), Reading(12, 8, 20, None, 3))
    assert (len(found.train), len(found.text)) == (12, 8)
    assert found.text.origin == "text 2, 8 of 30 documents"
    every = read_material(llama(), None, text(1, 30), text(2, 30), Reading(None, 30, 20, None, 3))
    assert (every.train.origin, every.text.origin) == ("text 1", "text 2")


@pytest.mark.parametrize("length", [6, 12, 40])
def test_documents_of_any_length_are_compared(length):
    stream = np.random.default_rng(0).integers(1, VOCAB, 400)
    ends = slice(0, 360 // length * length), slice(1, 360 // length * length + 1)
    one, other = (
        Documents(Prompts("text", ids, ids > 0, bos=False), "stream")
        for ids in (stream[end].reshape(-1, length) for end in ends)
    )
    with pytest.raises(InputError, match="share more than half of their spans"):
        refuse_overlap(one, other)
    refuse_overlap(one, text(5, length=length))


def test_few_documents_in_which_something_counts_have_no_interval():
    given = text(2, 20)
    counted = np.zeros_like(given.prompts.mask)
    counted[:2] = True
    few = Documents(replace(given.prompts, counted=counted), given.origin)
    found = prune(llama(layers=2), eval_texts=few, method=("magnitude", "random"), sparsity=0.5)
    assert "2 documents of held-out text: no interval" in repr(found)
    own = found.differences[found.differences["documents"] == "text"]
    assert own["low"].isna().all()
