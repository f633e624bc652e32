"""Permuted labels: what is permuted, and that asking for them changes nothing else."""

import numpy as np

import headatlas as ha
from headatlas.circuits.batch import permute_labels
from headatlas.circuits.kinds import KINDS, Kind
from headatlas.circuits.label_vectors import Labels
from headatlas.circuits.score import score
from headatlas.interp.probes import random_prompts


def rngs(n):
    return [np.random.default_rng(i) for i in range(n)]


def test_null_draws_leave_the_sampled_rows_alone():
    model, tokenizer = ha.load("tiny")
    prompts = random_prompts(np.arange(100, 900), 3, 48, bos_id=tokenizer.bos_token_id)
    without, beside = (score(model, prompts, "induction", null_draws=n) for n in (0, 4))
    assert (without.profile_pairs == beside.profile_pairs).all()
    assert np.allclose(without.profile, beside.profile, atol=1e-5)


def test_the_pairs_of_a_union_are_permuted_alike():
    prompts = random_prompts(np.arange(500), 2, 60, bos_id=500, seed=2)
    pair = KINDS["induction"].labels(prompts)[""][0]
    (one, two) = permute_labels((pair, Labels(pair.q, pair.k)), prompts, rngs(2))
    assert (one.q == two.q).all()
    assert (one.k == two.k).all()


def test_a_union_counts_twice_in_its_null_what_its_pairs_count_once():
    def double(prompts):
        pair = KINDS["induction"].labels(prompts)[""][0]
        return {"": (pair, pair)}

    model, tokenizer = ha.load("tiny")
    prompts = random_prompts(np.arange(100, 900), 2, 48, bos_id=tokenizer.bos_token_id)
    kind = Kind("double", "Induction, twice.", double, null="profile")
    twice, once = (
        score(model, prompts, [chosen], null_draws=2) for chosen in (kind, KINDS["induction"])
    )
    assert np.allclose(twice.null_mass, 2 * once.null_mass, atol=1e-5)
    assert np.allclose(twice.null_pairs, 2 * once.null_pairs)


def test_mass_to_be_taken_off_is_not_permuted():
    prompts = random_prompts(np.arange(500), 1, 60, seed=2)
    pair = KINDS["induction"].labels(prompts)[""][0]
    off = Labels(pair.q, pair.k, sign=-1)
    assert len(permute_labels((pair, off), prompts, rngs(1))) == 1
