"""Labels between words: planted heads get them, decoys never, few instances none."""

import json
from itertools import pairwise

import numpy as np
import pytest

from headatlas.circuits.atlas_check import COLUMNS
from headatlas.circuits.bootstrap import simultaneous_bounds
from headatlas.circuits.words.label import WordRule, WordTests, label_words
from headatlas.circuits.words.null_check import check_words
from headatlas.circuits.words.prompts import word_prompts
from headatlas.circuits.words.score import score_words
from headatlas.circuits.words.tables import coreference_table, kinds_table
from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Mention

from .made import LETTERS, none, one_token_words, planted, sentence, to_offset, to_words

OBJ = "syntactic.obj.to_head"


def objects(n, length=12, share=0.6, seed=0):
    """Sentences whose later words hang on an earlier one: on the word before in `share` of them."""
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(n):
        words = [LETTERS[i] for i in rng.integers(0, 26, length)]
        heads = [
            w - 1 if rng.random() < share else int(rng.integers(0, w)) for w in range(2, length)
        ]
        documents.append(sentence(words, [(w, h) for w, h in enumerate(heads, 2)]))
    return documents


def links(document):
    return [(w, h) for w, h in enumerate(document.heads) if h >= 0]


def run(tiny, documents, heads, kinds=OBJ, **options):
    prompts = word_prompts(one_token_words(), documents)
    model = tiny("llama", num_hidden_layers=1)
    with attach(model, edits=[planted(prompts, heads)]):
        return score_words(model, prompts, kinds, **options)


@pytest.fixture(scope="module")
def syntax(tiny):
    heads = [to_words(links), to_offset(-1), to_words(links, 0.02), none]
    return run(tiny, objects(60), heads)


def test_a_syntactic_head_is_strong_and_a_fixed_offset_is_not(syntax):
    rows = label_words(syntax)
    assert rows.grade.tolist()[0] == "strong"
    assert set(rows.grade[[1, 3]]) == {"none"}
    assert rows.legacy.tolist() == [True, False, True, False]
    assert rows.evidence.tolist()[:2] == ["pattern only", "none"]
    assert rows.score.tolist() == [1.0, pytest.approx(rows.expected[1]), 1.0, 0.0]
    assert (rows.n == 600).all()
    first = rows.details[0]
    assert first["baselines"] == ["-1", "-1"]
    assert first["mass"] == pytest.approx(0.8)
    assert first["mass_low"] > 0
    assert rows.details[1]["mass"] == pytest.approx(0.8 * rows.score[1])
    assert abs(rows.details[1]["mass"] - rows.details[1]["mass_expected"]) < 0.03


def test_rows_have_the_atlas_format(syntax):
    rows = label_words(syntax)
    assert tuple(rows.columns) == COLUMNS
    json.dumps(rows.to_dict("records"), allow_nan=False)
    assert rows.kind.unique().tolist() == [OBJ]


def test_too_few_instances_are_insufficient(tiny):
    sums = run(tiny, objects(39), [to_words(links), to_offset(-1), none, none])
    rows = label_words(sums)
    assert (rows.n == 390).all()
    assert set(rows.grade) == {"insufficient"}
    assert set(rows.evidence) == {"none"}
    assert rows.low.isna().all()
    assert rows.score[0] == 1.0
    assert rows.details[0]["p"] is None
    assert "insufficient" in kinds_table(rows)
    enough = label_words(sums, rule=WordRule(min_instances=390))
    assert enough.grade[0] == "strong"


def test_each_half_is_judged_by_what_the_other_chose(syntax):
    """The best offset, by hand."""
    tests = WordTests(syntax, WordRule(), seed=4)
    expected, judges = syntax.expected_hits(tests.half)
    guesses = syntax.guesses[:, 0]
    for own, judge in ((tests.half, judges[0, 0]), (~tests.half, judges[1, 0])):
        assert judge == guesses[~own].sum(0).argmax()
        assert (expected[own, 0] == guesses[own][:, judge]).all()
    excess = tests.accuracy[OBJ]
    gain = (syntax.hits.mass[:, :, 0] - expected).sum(0) / syntax.hits.rows[:, 0].sum()
    np.testing.assert_allclose(excess.excess, gain)


def test_hypotheses_can_be_bounded_with_others(syntax):
    tests = WordTests(syntax, WordRule(), seed=0)
    alone = simultaneous_bounds(tests.samples)
    twice = simultaneous_bounds([*tests.samples, *tests.samples])
    frame = tests.frame(twice, start=tests.n_hypotheses)
    assert frame.grade.tolist() == tests.frame(twice).grade.tolist()
    assert len(alone.low) == tests.n_hypotheses == 2 * 4
    assert frame.low[0] == pytest.approx(tests.frame(alone).low[0])


def test_an_accurate_head_without_excess_mass_is_not_labelled():
    rule = WordRule()
    assert rule.of_both((0.2, 0.3), (-0.1, 0.0)) == "none"
    assert rule.of_both((0.2, 0.3), (-0.1, 0.1)) == "ambiguous"
    assert rule.of_both((0.06, 0.3), (0.01, 0.1)) == "weak"
    assert rule.of_both((0.0, 0.3), (0.01, 0.1)) == "ambiguous"
    assert rule.of_both((-0.3, 0.04), (0.01, 0.1)) == "none"


def people(n, seed=0):
    """Two people in turn, each named by a letter of its own, then by any other: a b a b x y x …"""
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(n):
        words = [LETTERS[i] for i in rng.permutation(26)[:14]]
        owner = rng.integers(0, 2, 14)
        for w in range(2, 14):
            earlier = np.flatnonzero(owner[:w] == owner[w])
            if len(earlier) and rng.random() < 0.5:  # half the mentions repeat the word
                words[w] = words[rng.choice(earlier)]
        clusters = [
            tuple(Mention(0, int(w), int(w) + 1, int(w)) for w in np.flatnonzero(owner == who))
            for who in (0, 1)
        ]
        documents.append(sentence(words, clusters=[c for c in clusters if c]))
    return documents


def antecedents(document):
    return [
        (later.head, earlier.head)
        for cluster in document.clusters
        for earlier, later in pairwise(cluster)
    ]


def copies(document):
    words = [document.word(w) for w in range(len(document.spans))]
    latest, found = {}, []
    for place, word in enumerate(words):
        if word in latest:
            found.append((place, latest[word]))
        elif place:
            found.append((place, place - 1))
        latest[word] = place
    return found


def test_a_duplicate_token_head_is_no_coreference_head(tiny):
    heads = [to_words(antecedents), to_words(copies), to_offset(-1), none]
    rows = label_words(run(tiny, people(60), heads, "coreference"))
    assert rows.grade[0] == "strong"
    assert not {"weak", "strong"} & set(rows.grade[1:])
    assert rows.score[1] > 0.5
    assert rows.details[0]["baselines"] == ["head_match", "head_match"]
    assert rows.legacy.tolist() == [None] * 4
    groups = rows.details[0]["groups"]
    assert sum(group["n"] for group in groups.values()) == rows.n[0]
    assert all(group["accuracy"] == 1.0 for group in groups.values())
    table = coreference_table(rows, heads=2)
    assert table.count("\n") == 7
    assert "head match" in table
    with pytest.raises(InputError, match="hold no coreference"):
        coreference_table(rows[rows.kind == "x"])
    with pytest.raises(InputError, match="no kind has 10000 visible instances"):
        kinds_table(rows, least=10_000)


def test_shuffled_links_are_not_labelled(tiny):
    heads = [to_words(links), to_offset(-1), to_offset(-2, 0.5), none]
    sums = run(tiny, objects(60), heads, null_draws=8)
    found = check_words(sums)
    assert len(found) == 8
    assert found.false_labels.sum() == 0
    assert (found.mean_score - found.mean_expected).abs().max() < 0.02
    assert (found.prompts == "treebank").all()
    p = np.concatenate([values.reshape(1, -1)[:, :3].ravel() for values in found.p_values])
    assert p.mean() > 0.3  # of the heads that look at words at all
    assert len(check_words(run(tiny, objects(16), heads, null_draws=2))) == 0
