"""Grades: what the null permits, which half decides, and what must hold on both sets."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import headatlas as ha
from headatlas.circuits.bootstrap import halves
from headatlas.circuits.excess import profile_excess, uniform_excess
from headatlas.circuits.kinds import KINDS
from headatlas.circuits.label import Rule, check_null, label
from headatlas.circuits.score import OFFSETS, Statistic, Sums, score
from headatlas.interp.heads import HeadId
from headatlas.interp.probes import natural_prompts, random_prompts, token_pool

CONTENT = "duplicate_token,induction"


PER_DOCUMENT = (
    "rows", "mass", "uniform", "pairs", "profile", "profile_pairs", "largest", "largest_rows",
    "null_mass", "null_pairs",
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
        null_mass=np.zeros((documents, heads, 0, 0)), null_pairs=np.zeros((documents, 0, 0, 0)),
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
    whole = profile_excess(sums, 0, half)
    for document in (0, 7, 13):
        keep = np.arange(24) != document
        less = replace(sums, **{name: getattr(sums, name)[keep] for name in PER_DOCUMENT})
        effect = profile_excess(less, 0, half[keep]).excess - whole.excess
        predicted = -whole.influence[document] / 23
        assert np.corrcoef(effect, predicted)[0, 1] > 0.99
        assert np.allclose(effect, predicted, atol=0.15 * np.abs(effect).max() + 1e-4)


def test_uniform_excess_by_hand():
    sums = made_sums(np.array([[[0.5]], [[0.7]]]))
    found = uniform_excess(sums, 0, np.array([True, False]))
    assert found.score[0] == pytest.approx(0.6)
    assert found.excess[0] == pytest.approx(0.58)
    assert found.influence[:, 0] == pytest.approx([-0.1, 0.1])
    assert found.by_half[:, 0] == pytest.approx([0.48, 0.68])


def false_label_runs(model, tokenizer, *, documents, length, draws, seed=0):
    """Draws of permuted labels in which any head got a label at margin 0, and all p-values."""
    pool = token_pool(model.config.vocab_size, tokenizer)
    random = random_prompts(pool, documents, length, bos_id=tokenizer.bos_token_id, seed=seed)
    natural = natural_prompts(tokenizer, documents, length, prepend_bos=True, seed=seed)
    sums = {
        "random": score(model, random, CONTENT, null_draws=draws, seed=seed),
        "natural": score(model, natural, f"{CONTENT},delimiter", null_draws=draws, seed=seed),
    }
    checks = check_null(sums, Rule(margin=0.0, resamples=500), seed=seed)
    runs = checks.groupby("draw")["false_labels"].sum() > 0
    return checks, int(runs.sum()), len(runs)


def assert_null_holds(checks, false, draws):
    # at most 5 % in truth: more than this many has probability below 0.01
    assert false <= stats.binom.ppf(0.99, draws, 0.05), f"{false} of {draws}"
    assert checks["mean_score"].mean() == pytest.approx(checks["mean_expected"].mean(), rel=0.03)
    for _, group in checks.groupby("prompts"):
        p = np.stack(list(group["p_values"]))  # [draw, hypothesis]
        columns = np.random.default_rng(0).choice(p.shape[1], 20, replace=False)
        worst = min(stats.kstest(p[:, column], "uniform").pvalue for column in columns)
        assert worst > 0.001 / 20


def test_shuffled_labels_are_not_labelled_on_tiny():
    checks, false, draws = false_label_runs(*ha.load("tiny"), documents=24, length=96, draws=60)
    assert_null_holds(checks, false, draws)


@pytest.mark.real
def test_shuffled_labels_are_not_labelled_on_a_real_model():
    checks, false, draws = false_label_runs(
        *ha.load("smollm2-135m"), documents=24, length=96, draws=100
    )
    assert_null_holds(checks, false, draws)
