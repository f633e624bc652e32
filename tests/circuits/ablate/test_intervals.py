"""Intervals of evaluations: they cover, are paired, and hold for all heads at once."""

import numpy as np
import pandas as pd
import pytest

from headatlas.circuits.ablate.evaluation import Evaluation
from headatlas.circuits.ablate.intervals import with_intervals
from headatlas.interp.probes import Prompts
from headatlas.interp.texts import Documents


def made(loss, base=None, kl=None, n=None):
    """An evaluation with these losses [set, document]."""
    sets, count = loss.shape
    ids = np.arange(2 * count).reshape(count, 2)
    return Evaluation(
        Documents(Prompts("text", ids, ids >= 0, bos=False), "made"), ((),) * sets, "zero",
        np.ones(count, int) if n is None else n, np.zeros(count) if base is None else base,
        loss, np.abs(loss) if kl is None else kl, resumed=True,
    )  # fmt: skip


def test_intervals_cover():
    """The true effect lies in 95 % of intervals, all three heads at once, lengths unequal."""
    rng, truth, held = np.random.default_rng(0), np.array([0.0, 0.2, 1.0]), 0
    for seed in range(120):
        n = rng.integers(5, 60, 40)
        base = rng.normal(3, 1, 40)
        harm = truth[:, None] + rng.normal(0, 0.5, (3, 40)) / np.sqrt(n / 20)
        (table,) = with_intervals([made(base + harm, base, n=n)], seed=seed)
        held += bool(((table["delta_low"] <= truth) & (truth <= table["delta_high"])).all())
    assert 104 <= held <= 120  # 114 expected; ±4 standard deviations


def test_intervals_are_paired():
    """Documents differ widely in loss and hardly in harm: the interval is that of the harm."""
    rng = np.random.default_rng(1)
    base = rng.normal(3, 2, 50)
    (table,) = with_intervals([made(base + 0.1 + rng.normal(0, 0.01, (1, 50)), base)])
    low, high = table[["delta_low", "delta_high"]].iloc[0]
    assert 0.09 < low < 0.1 < high < 0.11
    assert table["ratio_low"][0] == pytest.approx(np.exp(low))
    assert table["perplexity_ratio"][0] == pytest.approx(np.exp(0.1), abs=0.01)


def test_more_heads_widen_the_intervals():
    rng = np.random.default_rng(2)
    loss = rng.normal(0, 1, (50, 40))
    (many,), (one,) = with_intervals([made(loss)]), with_intervals([made(loss[:1])])
    assert many["delta_low"][0] < one["delta_low"][0]
    assert many["delta_high"][0] > one["delta_high"][0]
    two = with_intervals([made(loss[:20]), made(loss[20:])])  # as of two methods
    pd.testing.assert_frame_equal(pd.concat(two, ignore_index=True), many)


def test_nothing_removed_has_an_interval_of_nothing():
    (table,) = with_intervals([made(np.zeros((1, 20)))])
    assert table[["delta_low", "delta_high", "kl_low", "kl_high"]].to_numpy().tolist() == [[0] * 4]
    (few,) = with_intervals([made(np.ones((1, 15)))])
    assert few[["delta_low", "delta_high"]].isna().all(axis=None)
    assert few["delta_loss_nats"].tolist() == pytest.approx([1.0])


def test_documents_in_which_nothing_is_measured_say_nothing():
    rng = np.random.default_rng(4)
    loss, n = rng.normal(0, 1, (2, 20)), rng.integers(5, 30, 20)
    (own,) = with_intervals([made(loss, n=n)])
    padded = np.concatenate([loss, rng.normal(9, 1, (2, 30))], axis=1)
    (found,) = with_intervals([made(padded, n=np.concatenate([n, np.zeros(30, int)]))])
    pd.testing.assert_frame_equal(found, own)
    few = np.where(np.arange(20) < 12, n, 0)
    (none,) = with_intervals([made(loss, n=few)])
    assert none["delta_low"].isna().all()
    assert none["n_documents"].tolist() == [12, 12]
