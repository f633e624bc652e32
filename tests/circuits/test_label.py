"""Grades: what the null permits, which half decides, and what must hold on both sets."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import headatlas as ha
from headatlas.circuits.bootstrap import halves
from headatlas.circuits.excess import excess
from headatlas.circuits.grade import Rule
from headatlas.circuits.kinds import KINDS
from headatlas.circuits.label import label
from headatlas.circuits.null_check import check_null
from headatlas.circuits.score import score
from headatlas.circuits.sums import OFFSETS, Statistic, Sums
from headatlas.interp.heads import HeadId
from headatlas.interp.probes import natural_prompts, random_prompts, token_pool

CONTENT = "duplicate_token,induction"


PER_DOCUMENT = (
    "rows", "mass", "uniform", "pairs", "profile", "profile_pairs", "largest", "largest_rows",
    "null_rows", "null_mass", "null_pairs",
)  # fmt: skip
PREVIOUS = (Statistic("previous_token", ""),)


def made_sums(mass, *, prompts="random", statistics=PREVIOUS, rows=100):
    """Sums by hand: mass per row [document, head, statistic], everything else plain."""
    documents, heads, columns = mass.shape
    return Sums(
        prompts=prompts, heads=tuple(HeadId("", 0, h) for h in range(heads)),
        statistics=tuple(statistics), rows=np.full((documents, columns), rows), mass=mass * rows,
        uniform=np.full((documents, 1, columns), 0.02 * rows), layer_of=np.zeros(heads, int),
        pairs=np.zeros((documents, columns, 0)), profile=np.zeros((documents, heads, 0)),
        profile_pairs=np.zeros((documents, 0)),
        largest=np.zeros((documents, heads, len(OFFSETS))),
        largest_rows=np.ones((documents, len(OFFSETS))),
        null_rows=np.zeros((documents, 0, 0), int), null_mass=np.zeros((documents, heads, 0, 0)),
        null_pairs=np.zeros((documents, 0, 0, 0)),
        permuted=(),
    )  # fmt: skip


def noisy(means, documents=32, seed=0, columns=1):
    rng = np.random.default_rng(seed)
    means = np.asarray(means, float).reshape(1, -1, columns)
    return means + rng.normal(0, 0.02, (documents, means.shape[1], columns))


def test_grades_of_clear_cases():
    sums = {"random": made_sums(noisy([0.8, 0.22, 0.05, 0.02]))}
    frame = label(sums, [KINDS["previous_token"]], Rule())
    assert frame["grade"].tolist() == ["strong", "weak", "none", "none"]
    assert frame["evidence"].tolist() == ["pattern only", "pattern only", "none", "none"]
    assert np.allclose(frame["expected"], 0.02)
    assert (frame["low"] < frame["excess"]).all()


def test_few_prompts_leave_a_head_ambiguous():
    rng = np.random.default_rng(0)
    mass = 0.13 + rng.normal(0, 0.2, (10, 1, 1))
    frame = label({"random": made_sums(mass)}, [KINDS["previous_token"]], Rule())
    assert frame["grade"].tolist() == ["ambiguous"]


def test_a_positional_head_must_hold_on_both_sets():
    sums = {
        "random": made_sums(noisy([0.8, 0.8])),
        "natural": made_sums(noisy([0.8, 0.03], seed=1), prompts="natural"),
    }
    frame = label(sums, [KINDS["previous_token"]], Rule())
    assert frame["grade"].tolist() == ["strong", "none"]
    assert frame["details"][1]["natural"]["grade"] == "none"
    assert frame["score"][1] == pytest.approx(0.8, abs=0.02)  # the numbers stay the first set's


def test_the_best_offset_is_chosen_on_one_half_and_scored_on_the_other():
    statistics = [Statistic("offset", f"-{k}") for k in range(8, 0, -1)]
    documents, half = 40, halves(40, seed=0)
    mass = np.random.default_rng(0).normal(0.1, 0.001, (documents, 1, 8))
    mass[half, 0, 2] = 0.6  # half A says −6 …
    mass[~half, 0, 2] = 0.3
    mass[~half, 0, 5] = 0.9  # … whatever half B would have said
    frame = label({"random": made_sums(mass, statistics=statistics)}, [KINDS["offset"]], Rule())
    assert frame["details"][0]["variant"] == "-6"
    assert frame["score"][0] == pytest.approx(0.3)
    assert frame["n"][0] == 20 * 100


def test_a_variant_without_rows_in_half_a_is_not_chosen():
    """Its excess of 0 would beat candidates that lie below chance."""
    statistics = tuple(Statistic("offset", v) for v in ("-1", "-2"))
    mass = noisy([[0.01, 0.0]], columns=2)
    sums = made_sums(mass, statistics=statistics)
    seen = sums.rows.copy()
    seen[halves(len(seen)), 1] = 0  # offset -2 exists in documents of half B alone
    sums = replace(sums, rows=seen, mass=sums.mass * (seen > 0)[:, None], uniform=sums.uniform * 2)
    details = label({"random": sums}, [KINDS["offset"]], Rule())["details"]
    assert [one["variant"] for one in details] == ["-1"]


def test_a_companion_without_rows_has_no_number():
    statistics = (Statistic("first_position", ""), Statistic("first_position", "alpha64"))
    sums = made_sums(noisy([[0.5, 0.5]], columns=2), statistics=statistics)
    rows = sums.rows.copy()
    rows[:, 1] = 0
    frame = label({"random": replace(sums, rows=rows)}, [KINDS["first_position"]], Rule())
    assert frame["details"][0]["companions"] == {"alpha64": None}


def test_no_scored_row_claims_nothing():
    empty = made_sums(noisy([0.8]), rows=0)
    frame = label({"random": empty}, [KINDS["previous_token"]], Rule())
    assert frame["grade"].tolist() == ["none"]
    assert np.isnan(frame["score"][0])
    assert frame["n"].tolist() == [0]


def test_influence_predicts_what_leaving_a_document_out_does():
    """The linearised influence of a document equals its effect to first order, profile included."""
    model, tokenizer = ha.load("tiny")
    prompts = random_prompts(token_pool(model.config.vocab_size, tokenizer), 24, 64, bos_id=0)
    sums = score(model, prompts, "induction", seed=1)
    half = halves(24, seed=0)
    whole = excess(sums, 0, "profile", half)
    for document in (0, 7, 13):
        keep = np.arange(24) != document
        less = replace(sums, **{name: getattr(sums, name)[keep] for name in PER_DOCUMENT})
        effect = excess(less, 0, "profile", half[keep]).excess - whole.excess
        predicted = -whole.influence[document] / 23
        assert np.corrcoef(effect, predicted)[0, 1] > 0.99
        assert np.allclose(effect, predicted, atol=0.15 * np.abs(effect).max() + 1e-4)


def test_uniform_excess_by_hand():
    sums = made_sums(np.array([[[0.5]], [[0.7]]]))
    found = excess(sums, 0, "uniform", np.array([True, False]))
    assert found.score[0] == pytest.approx(0.6)
    assert found.excess[0] == pytest.approx(0.58)
    assert found.influence[:, 0] == pytest.approx([-0.1, 0.1])
    assert found.by_half[:, 0] == pytest.approx([0.48, 0.68])


def permuted_battery(model, tokenizer, *, documents, length, draws, seed=0):
    """Sums of the content kinds with permuted labels, on random tokens and on natural text."""
    pool = token_pool(model.config.vocab_size, tokenizer)
    random = random_prompts(pool, documents, length, bos_id=tokenizer.bos_token_id, seed=seed)
    natural = natural_prompts(tokenizer, documents, length, prepend_bos=True, seed=seed)
    return {
        "random": score(model, random, CONTENT, null_draws=draws, seed=seed),
        "natural": score(model, natural, f"{CONTENT},delimiter", null_draws=draws, seed=seed),
    }


def assert_null_holds(sums, *, groups):
    """Permuted labels at margin 0: few false labels, uniform p-values, the profile is right.

    The documents are cut into groups that share nothing, each a data set of its own; the draws of
    one group share their documents and their profile.
    """
    false = total = 0
    for name, own in sums.items():
        size = len(own.rows) // groups
        checks = [
            check_null(
                {name: own.take(slice(g * size, (g + 1) * size))},
                Rule(margin=0.0, resamples=400),
                seed=g,
            )
            for g in range(groups)
        ]
        false += sum(int((check["false_labels"] > 0).sum()) for check in checks)
        total += sum(len(check) for check in checks)
        means = [(c["mean_score"].mean(), c["mean_expected"].mean()) for c in checks]
        score_mean, expected_mean = np.mean(means, axis=0)
        assert score_mean == pytest.approx(expected_mean, rel=0.02)
        p = np.stack([np.stack(list(check["p_values"])) for check in checks])
        assert 0.03 < (p < 0.05).mean() < 0.08
        assert 0.45 < p.mean() < 0.55
        every = [stats.kstest(p[:, 0, h], "uniform").pvalue for h in range(p.shape[2])]
        assert min(every) * len(every) > 0.001  # Bonferroni over heads and kinds
    # at most 5 % in truth: more than this many has probability below 0.01
    assert false <= stats.binom.ppf(0.99, total, 0.05), f"{false} of {total}"


def test_shuffled_labels_are_not_labelled_on_tiny():
    sums = permuted_battery(*ha.load("tiny"), documents=240, length=64, draws=5)
    assert_null_holds(sums, groups=10)


@pytest.mark.real
def test_shuffled_labels_are_not_labelled_on_a_real_model():
    sums = permuted_battery(*ha.load("smollm2-135m"), documents=128, length=64, draws=5)
    assert_null_holds(sums, groups=8)
