"""Tokens and the words they belong to, for tokenizers of several makes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headatlas as ha
from headatlas.interp.alignment import _words, align
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Grammar
from headatlas.interp.parsed import from_grammar

from .checkpoints import byte_level, word_piece


def test_a_token_goes_to_the_word_it_holds_most_of():
    spans = [(0, 2), (2, 5), (6, 9)]  # do | n't | go!
    assert _words([(0, 3), (3, 5), (5, 9)], spans).tolist() == [0, 1, 2]
    assert _words([(0, 1), (1, 3), (3, 5)], spans).tolist() == [0, 0, 1]  # a tie: the earlier one


def test_tokens_between_words_and_words_of_one_span():
    assert _words([(0, 2), (2, 3), (3, 5)], [(0, 2), (3, 5), (3, 5)]).tolist() == [0, -1, 1]


@pytest.mark.parametrize("make", [byte_level, word_piece, lambda: ha.load("tiny")[1]])
def test_every_token_of_a_document_lies_in_its_word(make):
    tokenizer = make()
    parsed = from_grammar(Grammar(1).document(n_sentences=3))
    aligned = align(tokenizer, parsed.text, parsed.spans)
    offsets = tokenizer(parsed.text, add_special_tokens=False, return_offsets_mapping=True)[
        "offset_mapping"
    ]
    for (start, end), word in zip(offsets, aligned.words, strict=True):
        if word >= 0:
            a, b = parsed.spans[word]
            assert min(end, b) > max(start, a)
    assert set(aligned.words.tolist()) | set(aligned.missing.tolist()) >= set(
        range(aligned.n_words)
    )


def test_ids_are_those_of_the_text():
    tokenizer = ha.load("tiny")[1]
    text = "the harbours slept"
    aligned = align(tokenizer, text, [(0, 3), (4, 12), (13, 18)])
    assert aligned.ids.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(aligned.missing) == 0


def test_a_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(InputError, match="Slow does not say where its tokens stand"):
        align(Slow(), "text", [(0, 4)])


def test_a_spelled_special_token_is_refused():
    tokenizer = ha.load("tiny")[1]
    text = f"a {tokenizer.bos_token} b"
    aligned = align(tokenizer, text, [(0, 1)])  # spelled, it is text
    assert tokenizer.bos_token_id not in aligned.ids


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=12), st.data()
)
def test_the_sweep_finds_what_a_search_finds(lengths, data):
    spans, at = [], 0
    for length, gap in lengths:
        spans.append((at, at + length))
        at += length + gap
    edges = sorted(data.draw(st.sets(st.integers(0, at), min_size=2, max_size=10)))
    places = list(pairwise(edges))
    found = _words(places, spans)
    for (start, end), word in zip(places, found, strict=True):
        held = [max(0, min(end, b) - max(start, a)) for a, b in spans]
        assert word == (int(np.argmax(held)) if max(held) > 0 else -1)
