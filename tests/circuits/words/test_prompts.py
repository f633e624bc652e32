"""Parsed documents as tokens: alignment, cutting, units, what is left out."""

import numpy as np
import pytest

import headatlas as ha
from headatlas.circuits.words.prompts import word_prompts
from headatlas.interp.alignment import align
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Grammar
from headatlas.interp.parsed import Parsed, from_grammar, passage

from ...interp.checkpoints import byte_level, unigram, word_piece
from .made import one_token_words, sentence


def grammar(n, **options):
    source = Grammar(0)
    return [from_grammar(source.document(**options), name=str(i)) for i in range(n)]


@pytest.mark.parametrize(
    ("make", "before", "after"),
    [
        (lambda: byte_level(bos=True), [1], []),
        (byte_level, [], []),
        (unigram, [], [1]),
        (word_piece, [2], [3]),
    ],
)
def test_tokens_are_those_of_the_text_between_the_special_ones(make, before, after):
    tokenizer, document = make(), Parsed("the cat sat", ((0, 3), (4, 7), (8, 11)), (0, 0, 0),
        (1, 2, -1), ("det", "nsubj", "root"))  # fmt: skip
    prompts = word_prompts(tokenizer, [document])
    aligned = align(tokenizer, document.text, document.spans)
    assert prompts.ids[0].tolist() == [*before, *aligned.ids, *after]
    assert prompts.word_of[0].tolist() == [
        *[-1] * len(before), *aligned.words, *[-1] * len(after)
    ]  # fmt: skip
    assert prompts.bos == bool(before)
    assert prompts.usable[0].all()
    assert prompts.unaligned == 0


def test_last_tokens_and_counts():
    prompts = word_prompts(one_token_words(), [sentence(["a", "zzz", "b"])])
    assert prompts.word_of[0].tolist() == [-1, 0, 1, 1, 1, 2]
    assert prompts.n_tokens[0].tolist() == [1, 3, 1]
    assert prompts.last_token[0].tolist() == [1, 4, 5]


def test_words_that_share_a_span_are_left_out_and_counted():
    shared = Parsed("the dels cat", ((0, 3), (4, 8), (4, 8), (9, 12)), (0,) * 4, (3, 3, 3, -1),
        ("det", "case", "det", "root"))  # fmt: skip
    prompts = word_prompts(byte_level(bos=True), [shared])
    assert prompts.usable[0].tolist() == [True, False, False, True]
    assert prompts.unaligned == 2
    assert prompts.visible(0, 3, 0)
    assert not prompts.visible(0, 3, 1)


def test_a_contraction_within_one_token_has_one_usable_word():
    together = Parsed("the cat sats", ((0, 3), (4, 7), (8, 10), (10, 12)), (0,) * 4,
        (1, 2, -1, 2), ("det", "nsubj", "root", "advmod"))  # fmt: skip
    prompts = word_prompts(word_piece(), [together])  # sat ##s
    assert prompts.word_of[0].tolist() == [-1, 0, 1, 2, 3, -1]
    prompts = word_prompts(word_piece(), [Parsed("cat", ((0, 1), (1, 3)), (0, 0), (1, -1),
        ("det", "root"))])  # fmt: skip
    assert prompts.usable[0].tolist() == [False, True]


def test_without_a_bos_the_first_position_cannot_be_linked_to():
    document = sentence(["a", "b", "c"])
    bare = word_prompts(one_token_words(bos=False), [document], prepend_bos=False)
    assert not bare.visible(0, 2, 0)
    assert bare.visible(0, 2, 1)
    assert not bare.visible(0, 1, 2)
    assert word_prompts(one_token_words(), [document]).visible(0, 2, 0)
    both = word_prompts(one_token_words(bos=False), [document], prepend_bos=False, causal=False)
    assert both.visible(0, 2, 0)
    assert both.visible(0, 0, 2)


def test_documents_are_cut_at_the_ends_of_sentences():
    tokenizer, documents = ha.load("tiny")[1], grammar(4)
    prompts = word_prompts(tokenizer, documents, seq_len=64, prepend_bos=True)
    assert prompts.ids.shape[1] <= 64
    assert prompts.n_units == 4
    for unit, document in enumerate(documents):
        parts = [d for d, u in zip(prompts.documents, prompts.unit, strict=True) if u == unit]
        words = [part.word(w) for part in parts for w in range(len(part.spans))]
        assert prompts.left_out == 0
        assert words == [document.word(w) for w in range(len(document.spans))]
    lengths = prompts.mask.sum(1)
    for first in range(len(prompts) - 1):  # no two neighbours would have fitted together
        if prompts.unit[first] == prompts.unit[first + 1]:
            sentence = passage(prompts.documents[first + 1], 0, 1)
            more = len(align(tokenizer, sentence.text, sentence.spans).ids)
            assert lengths[first] + more > 62


def test_sentences_that_are_too_long_are_left_out_and_counted():
    tokenizer, documents = one_token_words(), [sentence(["a"] * 5), sentence(["b"] * 9)]
    prompts = word_prompts(tokenizer, documents, seq_len=8)
    assert (len(prompts), prompts.left_out) == (1, 1)
    with pytest.raises(InputError, match="every sentence has more than seq_len=3"):
        word_prompts(tokenizer, documents, seq_len=3)


def test_sentences_of_a_document_share_its_unit():
    documents = grammar(2, n_sentences=3)
    prompts = word_prompts(ha.load("tiny")[1], documents, sentences=True)
    assert prompts.unit.tolist() == [0, 0, 0, 1, 1, 1]
    together = word_prompts(ha.load("tiny")[1], documents, units=["x", "x"])
    assert together.n_units == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t, d: word_prompts(t, []), "at least one; got none"),
        (lambda t, d: word_prompts(t, ["text"]), "got str"),
        (lambda t, d: word_prompts(t, d, units=[1, 2]), "2 units for 1 documents"),
        (lambda t, d: word_prompts(t, d, seq_len=1), "leaves no room"),
        (lambda t, d: word_prompts(t, d, seq_len=0), "seq_len is a whole number"),
    ],
)
def test_what_cannot_be_made(call, message, as_users_call):
    with pytest.raises(InputError, match=message):
        call(one_token_words(), [sentence(["a", "b"])])


def test_parts_that_do_not_fit_together():
    prompts = word_prompts(one_token_words(), [sentence(["a", "b"])])
    fields = dict(prompts.__dict__)
    known = {k: fields[k] for k in ("documents", "ids", "mask", "word_of", "unit", "bos")}
    for name, value, message in (
        ("word_of", np.array([[-1, 0, 5]]), "does not have"),
        ("mask", np.array([[True, True, False]]), "padding has a word"),
        ("unit", np.array([1]), "without a gap"),
    ):
        with pytest.raises(InputError, match=message):
            type(prompts)(**{**known, name: value})
