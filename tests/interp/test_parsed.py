"""Parsed documents: passages, single mentions, parts of speech, and what is no document."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.conllu import read_conllu
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Grammar, Mention
from headatlas.interp.parsed import Parsed, by_sentence, find_circle, from_grammar, passage


def test_a_passage_keeps_words_trees_and_mentions():
    whole = from_grammar(Grammar(2).document(n_sentences=6))
    part = passage(whole, 2, 5)
    words = [w for w, s in enumerate(whole.sentences) if 2 <= s < 5]
    assert [part.word(i) for i in range(len(words))] == [whole.word(w) for w in words]
    assert list(part.heads) == [
        whole.heads[w] - words[0] if whole.heads[w] >= 0 else -1 for w in words
    ]
    kept = [[m for m in cluster if 2 <= m.sentence < 5] for cluster in whole.clusters]
    kept = [[(m.sentence - 2, m.head) for m in cluster] for cluster in kept if len(cluster) > 1]
    assert [[(m.sentence, m.head) for m in cluster] for cluster in part.clusters] == kept


def test_a_single_mention_stays_and_a_torn_one_goes():
    spans, one = ((0, 1), (2, 3), (4, 5)), Mention(0, 0, 1, 0)
    two = (Mention(0, 0, 1, 0), Mention(1, 0, 1, 0))
    document = Parsed("a b c", spans, (0, 1, 2), (-1,) * 3, ("root",) * 3, ((one,), two),
        upos=("NOUN", "VERB", "X"))  # fmt: skip
    assert passage(document, 0, 1).clusters == ((one,),)
    assert passage(document, 0, 2).clusters == ((one,), two)
    assert passage(document, 1, 3).upos == ("VERB", "X")
    with pytest.raises(InputError, match="has no sentence 7 to 8"):
        passage(document, 7, 9)


def test_parts_of_speech_come_from_the_treebank(tmp_path):
    path = tmp_path / "bank.conllu"
    path.write_text(
        "1\tIt\tit\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\tfell\tfall\t_\t_\t_\t0\troot\t_\t_\n\n",
        encoding="utf-8",
    )
    assert read_conllu(path)[0].upos == ("PRON", "")
    with pytest.raises(InputError, match="1 parts of speech for 2 words"):
        Parsed("a b", ((0, 1), (2, 3)), (0, 0), (-1, -1), ("root", "root"), upos=("X",))


# two sentences: a ← b → c, and d → e
PARTS = {
    "text": "a b c d e",
    "spans": ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)),
    "sentences": (0, 0, 0, 1, 1),
    "heads": (1, -1, 1, -1, 3),
    "relations": ("nsubj", "root", "obj", "root", "obj"),
    "clusters": ((Mention(0, 0, 1, 0), Mention(1, 0, 2, 1)),),
}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"heads": (1, 2, 0, -1, 3)}, r"words \(0, 1, 2\) are each other's heads in a circle"),
        ({"heads": (1, -1, 1, 4, 3)}, r"words \(3, 4\) are each other's heads"),
        ({"heads": (0, -1, 1, -1, 3)}, "word 0 cannot have the head 0; a head is another of the 5"),
        ({"heads": (1, -1, 1, -1, 5)}, "word 4 cannot have the head 5"),
        ({"heads": (1, -2, 1, -1, 3)}, "word 1 cannot have the head -2"),
        ({"heads": (10**5000, -1, 1, -1, 3)}, "more than 30 digits"),
        ({"heads": (1, -1, 1, -1, 1)}, "word 4 has its head, word 1, in another sentence"),
        ({"sentences": (0, 0, 1, 0, 0)}, "in order from 0; word 3 is in sentence 0 where 1 or 2"),
        ({"sentences": (0, 0, 0, 2, 2)}, "word 3 is in sentence 2 where 0 or 1 should stand"),
        ({"sentences": (1, 1, 1, 2, 2)}, "word 0 is in sentence 1 where 0 should stand"),
        ({"sentences": (-1, -1, -1, 0, 0)}, "word 0 is in sentence -1 where 0 should stand"),
        ({"spans": ((2, 3), (0, 1), (4, 5), (6, 7), (8, 9))}, "word 1 starts before word 0"),
        (
            {"spans": ((0, 1), (2, 3), (4, 5), (6, 7), (8, 10))},
            r"the span \(8, 10\) in a text of 9",
        ),
        ({"clusters": ((Mention(2, 0, 1, 0),),)}, "cluster 0 has a mention in sentence 2"),
        ({"clusters": ((Mention(-1, 0, 1, 0),),)}, "a mention in sentence -1; .* are 0 to 1"),
        ({"clusters": ((Mention(1, 0, 3, 0),),)}, "in a sentence of 2 words; needed: 0 <= start"),
        ({"clusters": ((Mention(0, -1, 1, 0),),)}, "in a sentence of 3 words"),
        ({"clusters": ((Mention(0, 1, 1, 1),),)}, "start=1, end=1"),
        ({"clusters": ((Mention(0, 0, 2, 2),),)}, "head=2"),
        ({"clusters": ((Mention(0, 0, 1, 0),), ())}, "cluster 1 has no mention"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, message):
    assert Parsed(**PARTS).clusters  # fits
    with pytest.raises(InputError, match=f"^text one: .*{message}"):
        Parsed(**{**PARTS, **parts}, name="text one")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"text": b"a b c d e"}, "a document's text is a str; got b'a b"),
        ({"name": 3}, "a document's name is a str; got 3"),
        ({"group": None}, "a document's group is a str; got None"),
        ({"heads": [1, -1, 1, -1, 3]}, "heads is a tuple; got list"),
        ({"spans": None}, "spans is a tuple; got NoneType"),
        ({"spans": (0, 2, 4, 6, 8)}, "spans hold tuple values; got 0"),
        ({"spans": ((0, 1, 2),) * 5}, r"a span is a start and an end; got \(0, 1, 2\)"),
        ({"spans": ((0, 1.0),) * 5}, r"spans hold int values; got 1\.0"),
        ({"heads": (1, -1, True, -1, 3)}, "heads hold int values; got True"),
        ({"heads": (1, -1, np.int64(1), -1, 3)}, r"heads hold int values; got np\.int64\(1\)"),
        ({"sentences": ("0",) * 5}, "sentences hold int values; got '0'"),
        ({"relations": ("obj", None, "obj", "obj", "obj")}, "relations hold str values; got None"),
        ({"upos": (1,) * 5}, "upos hold str values; got 1"),
        ({"clusters": ([],)}, r"clusters hold tuple values; got \[\]"),
        ({"clusters": (((0, 0, 1, 0),),)}, r"clusters hold Mention values; got \(0, 0, 1, 0\)"),
    ],
)
def test_parts_of_other_types_are_refused(parts, message, as_users_call):
    with pytest.raises(InputError, match=message):
        Parsed(**{**PARTS, **parts})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"text": "a b c d \ud800"}, "bank: text holds a lone surrogate"),
        ({"name": "\udfff"}, "a document's name holds a lone surrogate"),
        ({"group": "\ud83d"}, "bank: group holds a lone surrogate"),
        ({"relations": ("\ud83d", "\ude00", "x", "x", "x")}, "bank: relations holds a lone surr"),
        ({"upos": ("", "\ud800", "", "", "")}, "bank: upos holds a lone surrogate"),
    ],
)
def test_what_no_text_can_hold_is_refused(parts, message):
    with pytest.raises(InputError, match=message):
        Parsed(**{**PARTS, "name": "bank", **parts})


def test_mentions_hold_whole_numbers(as_users_call):
    odd = replace(PARTS["clusters"][0][0], head=0.0)
    with pytest.raises(InputError, match=r"mentions hold int values; got 0\.0"):
        Parsed(**{**PARTS, "clusters": ((odd,),)})


@given(st.lists(st.integers(-1, 7), max_size=8))
def test_circles_are_found(heads):
    """Against following every word's heads for as many steps as there are words."""
    heads = [head if head < len(heads) else -1 for head in heads]

    def end(word):
        for _ in heads:
            word = heads[word] if word >= 0 else -1
        return word

    circle = find_circle(heads)
    assert bool(circle) == any(end(word) >= 0 for word in range(len(heads)))
    assert [heads[word] for word in circle] == [*circle[1:], *circle[:1]]
    assert len(set(circle)) == len(circle)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(-2, 9), st.integers(-2, 12))
def test_what_is_cut_out_of_a_document_is_one(seed, n_sentences, first, stop):
    whole = from_grammar(Grammar(seed).document(n_sentences=n_sentences))
    n = whole.sentences[-1] + 1
    assert [one.word(0) for one in by_sentence([whole])] == [
        whole.word(word) for word in whole.first_words
    ]
    if min(stop, n) <= max(first, 0):
        with pytest.raises(InputError, match=f"has no sentence {first} to {stop - 1}"):
            passage(whole, first, stop)
        return
    part = passage(whole, first, stop)
    assert len(part.first_words) == min(stop, n) - max(first, 0)
    assert part.text in whole.text
    assert part.word(0) == whole.word(whole.first_words[max(first, 0)])


@pytest.mark.parametrize("chain", [20, 20_000])
def test_long_documents_are_checked_in_linear_time(chain):
    """A check of each word's way to its root would take 2 * 10**8 steps."""
    n = 20_000
    begin = time.perf_counter()
    Parsed(
        "a " * n, tuple((2 * w, 2 * w + 1) for w in range(n)), tuple(w // chain for w in range(n)),
        tuple(w - 1 if w % chain else -1 for w in range(n)), ("x",) * n,
    )  # fmt: skip
    assert time.perf_counter() - begin < 2
