"""Rare tokens, n-grams, topics: labels by hand, and heads made to do exactly one thing."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import headatlas as ha
from headatlas.circuits.further_labels import (
    ngram_induction_labels,
    rare_token_labels,
    semantic_labels,
)
from headatlas.circuits.grade import Rule
from headatlas.circuits.kind import Kind
from headatlas.circuits.kinds import KINDS
from headatlas.circuits.label import label
from headatlas.circuits.label_vectors import UnfitPromptsError
from headatlas.circuits.score import score
from headatlas.interp.attach import Edit, attach
from headatlas.interp.frequency import frequency_ranks, sentence_numbers
from headatlas.interp.made_prompts import ngram_prompts, topic_prompts
from headatlas.interp.probes import Prompts, natural_prompts

from .test_kinds import relation

D_HEAD = 512


def prompts(ids, name="natural", *, bos=False, causal=True, **marks):
    ids = np.array([ids])
    given = {key: np.array([value]) for key, value in marks.items()}
    return Prompts(name, ids, np.ones_like(ids, bool), bos, None, causal, given)


def signed(labels, *, causal=True):
    """The sum of signs over the pairs that match, by row and column."""
    total = {}
    for pair in labels:
        for cell in relation(pair, causal=causal):
            total[cell] = total.get(cell, 0) + pair.sign
    return {cell: value for cell, value in total.items() if value}


def test_rare_token_is_the_rarest_so_far_in_its_sentence():
    p = prompts(
        [5, 9, 6, 8, 9, 7, 6], sentence=[0, 0, 0, 0, 0, 1, 1], rarity=[0, 700, 1, 600, 700, 400, 1]
    )
    # row 4 is the rare token itself; in sentence 1 nothing is rare enough
    assert relation(rare_token_labels(p)) == {(2, 1), (3, 1)}
    p = prompts([8, 6, 9, 6], sentence=[0] * 4, rarity=[600, 1, 700, 1])
    assert relation(rare_token_labels(p)) == {(1, 0), (3, 2)}


def test_rare_token_in_an_encoder_is_the_rarest_of_the_whole_sentence():
    p = prompts([8, 6, 9, 6], causal=False, sentence=[0] * 4, rarity=[600, 1, 700, 1])
    assert relation(rare_token_labels(p), causal=False) == {(0, 2), (1, 2), (3, 2)}


def test_copies_of_the_rare_token_match_too_and_a_bos_is_none():
    p = prompts([3, 9, 6, 9, 6], bos=True, sentence=[0] * 5, rarity=[900, 700, 1, 700, 1])
    assert relation(rare_token_labels(p)) == {(2, 1), (4, 1), (4, 3)}


def test_ngram_induction_sets_two_tokens_against_one():
    x, w, y, u, v = range(1, 6)
    p = prompts([x, y, u, w, y, v, 7, x, y], "ngrams")
    # the last y: u follows (x, y), v follows (w, y)
    assert signed(ngram_induction_labels(p)) == {(8, 2): 1, (8, 5): -1}


def test_ngram_induction_takes_the_trivial_match_off_in_an_encoder():
    x, w, y, u, v = range(1, 6)
    p = prompts([x, y, u, w, y, v, 7, x, y, 6], "ngrams", causal=False)
    assert signed(ngram_induction_labels(p), causal=False) == {(8, 2): 1, (8, 5): -1}


def test_semantic_leaves_the_own_word_and_its_partner_out():
    # words a0 b0 a1 b1 a0: topics 0 1 0 1 0, words 0 1 2 3 0, partners 1 0 3 2 1
    p = prompts(
        [10, 11, 12, 13, 10], "topics", topic=[0, 1, 0, 1, 0], word=[0, 1, 2, 3, 0],
        partner=[1, 0, 3, 2, 1], end=[1] * 5,
    )  # fmt: skip
    # row 0 sees nothing, row 1 its partner alone
    assert signed(semantic_labels(p)) == {
        (2, 0): 1, (2, 1): -1, (3, 1): 1, (3, 0): -1, (4, 2): 1, (4, 3): -1,
    }  # fmt: skip


def test_kinds_refuse_prompts_that_lack_what_they_are_about():
    p = prompts([1, 2, 3])
    for build, message in (
        (rare_token_labels, "needs prompts that mark the sentence and rarity"),
        (ngram_induction_labels, "the set ngrams"),
        (semantic_labels, "the topic and word and partner and end"),
    ):
        with pytest.raises(UnfitPromptsError, match=message):
            build(p)


@pytest.mark.parametrize("seq_len", [16, 64, 200])
def test_ngram_prompts_are_balanced(seq_len):
    p = ngram_prompts(np.arange(2000), 40, seq_len, bos_id=2000, seed=1)
    assert p.ids.shape == (40, min(128, seq_len))
    two, _, one = ngram_induction_labels(p)
    rows = np.argwhere(two.q >= 0)
    assert len(rows) >= 20
    for document, row in rows:
        both = int((two.k[document, : row + 1] == two.q[document, row]).sum())
        last = int((one.k[document, : row + 1] == one.q[document, row]).sum())
        assert (both, last) == (1, 2)  # one key after both tokens, one after the last alone


def test_topic_prompts_are_balanced():
    tokenizer = ha.load("tiny")[1]
    p = topic_prompts(tokenizer, 60, 64, seed=2)
    marks = p.marks
    spelt = {}
    for document in range(len(p)):
        for column in np.flatnonzero(marks["end"][document] == 1):
            word, topic = marks["word"][document, column], marks["topic"][document, column]
            assert marks["partner"][document, column] // 2 == word // 2
            assert word % 2 == topic
            start = column
            while start > 0 and marks["word"][document, start - 1] == word:
                start -= 1
            spelt[document, word] = tuple(p.ids[document, start : column + 1])
    for (document, word), ids in spelt.items():
        partner = spelt.get((document, word ^ 1))
        assert partner is None or (len(partner) == len(ids) and partner != ids)
    labels = semantic_labels(p)
    net = sum(sum(signed([pair]).values()) for pair in labels if pair.sign)
    cells = sum(len(relation(pair)) for pair in labels)
    assert abs(net) < 0.2 * cells


def test_made_prompts_of_n_documents_are_the_first_n_of_more():
    tokenizer = ha.load("tiny")[1]
    for make in (
        lambda n: ngram_prompts(np.arange(500), n, 64, seed=3),
        lambda n: topic_prompts(tokenizer, n, 64, seed=3),
        lambda n: natural_prompts(tokenizer, n, 64, seed=3),
    ):
        few, many = make(20), make(50)
        assert (few.ids == many.ids[:20]).all()
        assert all((few.marks[name] == many.marks[name][:20]).all() for name in few.marks)


def test_ranks_follow_counts_and_sentences_end_at_full_stops():
    tokenizer = ha.load("tiny")[1]
    text = "the the the cat. " * 400 + "sat"
    known = tokenizer(text, add_special_tokens=False)["input_ids"]
    unseen = max(set(range(len(tokenizer))) - set(known))
    ids = np.array([[*tokenizer(" the cat.", add_special_tokens=False)["input_ids"], unseen]])
    rank = frequency_ranks(tokenizer, ids, text)[0]
    assert rank[0] == rank.min() == 0
    assert rank[-1] >= 1000
    number = sentence_numbers(tokenizer, ids)[0]
    assert number.tolist() == [0] * (ids.shape[1] - 1) + [1]
    assert tokenizer.decode([ids[0, -2]]) == "."


def model_of(vocab):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocab, n_positions=128, n_embd=4 * D_HEAD, n_layer=1, n_head=4, n_inner=4
    )
    return GPT2LMHeadModel(config).eval()


def looking_at(targets, codes):
    """Edits after which head h of document d spreads row i evenly over targets[h](d, i)."""

    def keys(call, k):
        k[:] = codes[: k.shape[2]]
        return k

    def queries(call, q):
        q[:] = 0
        for head, target in enumerate(targets):
            for document in range(len(q)):
                for row in range(q.shape[2]):
                    columns = target(document, row)
                    q[document, head, row] = 4000 * codes[list(columns)].sum(0)
        return q

    return [Edit("q", queries), Edit("k", keys)]


def grades(kind, prompts, targets):
    """Grades of heads that look where `targets` say."""
    model = model_of(int(prompts.ids.max()) + 1)
    codes = torch.eye(D_HEAD)[: prompts.ids.shape[1]]  # a code for each column
    with attach(model, edits=looking_at(targets, codes)):
        sums = score(model, prompts, [kind], batch_tokens=10**6)
    frame = label({prompts.name: sums}, [kind], Rule(resamples=200))
    return frame[["score", "excess", "grade"]].to_dict("list")


def previous(_, row):
    return [max(0, row - 1)]


def after_copies(prompts):
    def target(document, row):
        ids = prompts.ids[document]
        return [c + 1 for c in range(row) if ids[c] == ids[row]] or [0]

    return target


def test_an_ngram_head_is_labelled_and_an_induction_head_is_not():
    p = ngram_prompts(np.arange(1, 400), 24, 96, bos_id=0, seed=0)
    two = ngram_induction_labels(p)[0]

    def after_bigrams(document, row):
        found = np.flatnonzero(two.k[document, : row + 1] == two.q[document, row])
        return found.tolist() or [0]

    def recent(document, row):
        return [max(after_copies(p)(document, row))]

    found = grades(KINDS["ngram_induction"], p, [after_bigrams, after_copies(p), recent, previous])
    assert found["score"][0] == pytest.approx(1.0, abs=1e-3)
    assert found["grade"][0] == "strong"
    assert found["score"][1] == pytest.approx(0.0, abs=1e-3)
    assert [g in ("strong", "weak") for g in found["grade"]] == [True, False, False, False]


def test_a_head_that_follows_topics_is_semantic_and_others_are_not():
    p = topic_prompts(ha.load("tiny")[1], 24, 64, seed=0)
    topic, word = p.marks["topic"], p.marks["word"]

    def same_topic(document, row):
        t, w = topic[document, : row + 1], word[document, : row + 1]
        return np.flatnonzero((t == t[row]) & (w != w[row]) & (t >= 0)).tolist() or [0]

    def any_word(document, row):
        return np.flatnonzero(topic[document, : row + 1] >= 0).tolist() or [0]

    def copies(document, row):
        earlier = p.ids[document, :row] == p.ids[document, row]
        return np.flatnonzero(earlier).tolist() or [0]

    found = grades(KINDS["semantic"], p, [same_topic, any_word, copies, previous])
    assert found["score"][0] > 0.95
    assert [g in ("strong", "weak") for g in found["grade"]] == [True, False, False, False]


def test_a_head_that_looks_at_rare_tokens_is_labelled_and_others_are_not():
    p = natural_prompts(ha.load("tiny")[1], 24, 64, seed=0)
    sentence, rarity = p.marks["sentence"], p.marks["rarity"]

    def rarest(document, row):
        begins = int(np.flatnonzero(sentence[document] == sentence[document, row])[0])
        begins = max(begins, int(p.bos))
        return [begins + int(rarity[document, begins : row + 1].argmax())] if row >= begins else [0]

    def copies(document, row):
        earlier = p.ids[document, :row] == p.ids[document, row]
        return np.flatnonzero(earlier).tolist() or [0]

    found = grades(KINDS["rare_token"], p, [rarest, copies, previous, lambda *_: [0]])
    assert found["score"][0] > 0.9
    assert [g in ("strong", "weak") for g in found["grade"]] == [True, False, False, False]


def test_the_battery_makes_the_sets_and_labels_every_head():
    atlas = ha.classify(
        *ha.load("tiny"), kinds="rare_token,ngram_induction,semantic", prompts=16, seq_len=48
    )
    assert atlas.settings["prompts"] == {"natural": 16, "ngrams": 16, "topics": 16}
    assert len(atlas.rows) == 3 * 32


def test_kinds_know_whether_they_need_a_tokenizer():
    needs = {name for name, kind in KINDS.items() if kind.needs_text}
    assert {"delimiter", "rare_token", "semantic"} <= needs
    assert not needs & {"induction", "ngram_induction", "offset"}
    both = Kind("own", "x", KINDS["offset"].labels, prompts=("natural", "topics"), candidates=True)
    assert both.needs_text
