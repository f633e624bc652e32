"""Cells, pairs and chance mass against brute force."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.circuits.label_vectors import Labels, previous_copy
from headatlas.circuits.profile import (
    Bins,
    Cells,
    matching_pairs,
    sample_rows,
    uniform_mass,
)
from headatlas.interp.probes import Prompts, random_prompts


def documents(rng, n_documents=3, n_pos=20, *, causal=True):
    ids = rng.integers(1, 6, (n_documents, n_pos))
    for row in range(1, n_documents):
        ids[row, : rng.integers(0, 5)] = 0  # left padding
    return Prompts("natural", ids, ids != 0, False, None, causal)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_matching_pairs_are_all_equal_cells(seed, causal, strict):
    rng = np.random.default_rng(seed)
    q, k = rng.integers(-1, 4, (1, 17)), rng.integers(-2, 4, (1, 17))
    labels = Labels(q, np.where(k == -1, -2, k), strict)
    found = {
        (r, c)
        for rows, columns in matching_pairs(labels, 0, causal=causal)
        for r, c in zip(rows.tolist(), columns.tolist(), strict=True)
    }
    wanted = {
        (r, c)
        for r in range(17)
        for c in range(17)
        if labels.q[0, r] >= 0
        and labels.q[0, r] == labels.k[0, c]
        and (not causal or c <= r)
        and (not strict or c != r)
    }
    assert found == wanted


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_cells_partition_the_pairs(seed, causal):
    rng = np.random.default_rng(seed)
    prompts = documents(rng, causal=causal)
    bins = Bins(20, causal)
    labels = (Labels(np.where(prompts.mask, 0, -1), np.where(prompts.mask, 0, -2)),)
    labels = (Labels(np.where(prompts.mask, 0, -1), np.where(prompts.mask, 0, -2)),)
    cells = Cells(prompts, bins)
    counts = cells.count(labels)
    lengths = prompts.mask.sum(1)
    assert counts.sum(1).tolist() == [n * (n + 1) // 2 if causal else n * n for n in lengths]
    # the first column's cells hold one pair per row
    rows = np.flatnonzero(prompts.mask[0])
    first = np.unique(cells.of(0, rows, rows[:1]))
    assert counts[0, first].sum() == lengths[0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_cells_tell_keys_with_visible_copies_apart(seed, causal):
    """Pairs of one row bin and one offset differ in their sorts alone."""
    prompts = documents(np.random.default_rng(seed), causal=causal)
    cells, n = Cells(prompts, Bins(20, causal)), prompts.ids.shape[1]
    for document, (ids, real) in enumerate(zip(prompts.ids, prompts.mask, strict=True)):
        sees = real[:, None] & real & (np.tri(n, dtype=bool) if causal else True)
        rows, columns = np.nonzero(sees)
        known = np.array([ids[r] in ids[:r][real[:r]] for r in rows])
        copied = np.array(
            [(ids[sees[r]] == ids[c]).sum() > 1 for r, c in zip(rows, columns, strict=True)]
        )
        place = prompts.position[document]
        wanted = cells.bins.cell(known, copied, place[rows], place[columns])
        assert (cells.of(document, rows, columns) == wanted).all()


def test_cells_stay_within_the_count():
    for causal in (True, False):
        for n_pos in (1, 2, 7, 8, 65, 1000):
            bins = Bins(n_pos, causal)
            place = np.arange(n_pos)
            cells = bins.cell(np.array(1), np.array(1), place[:, None], place[None, :])
            assert cells.min() >= 0
            assert cells.max() < bins.count


def test_cells_grow_slowly():
    assert Bins(4096, True).count < 2 * Bins(512, True).count


def generators(prompts):
    return [np.random.default_rng(n) for n in range(len(prompts))]


def test_sampled_rows_are_half_repeats_and_real():
    prompts = random_prompts(np.arange(1000), 4, 128, bos_id=1000, seed=1)
    rows = sample_rows(prompts, previous_copy(prompts) >= 0, 32, generators(prompts))
    assert rows.shape == (4, 32)
    for document in range(4):
        chosen = rows[document]
        assert len(set(chosen.tolist())) == 32
        assert chosen.min() >= 1  # row 0 sees only itself
        earlier = [prompts.ids[document, r] in prompts.ids[document, :r] for r in chosen]
        assert sum(earlier) == 16


def test_sampled_rows_of_a_short_document_leave_slots_unused():
    ids = np.array([[1, 2, 3, 0, 0]])
    prompts = Prompts("natural", ids, ids != 0, False)
    rows = sample_rows(prompts, previous_copy(prompts) >= 0, 8, generators(prompts))
    assert sorted(rows[0].tolist()) == [-1] * 6 + [1, 2]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_uniform_mass_is_the_mass_of_even_rows(seed):
    rng = np.random.default_rng(seed)
    prompts = documents(rng)
    n = prompts.ids.shape[1]
    low = np.minimum(rng.integers(0, n, prompts.ids.shape), np.arange(n))
    high = np.broadcast_to(np.arange(n) + 1, prompts.ids.shape)
    labels = Labels(
        np.where(prompts.mask, prompts.ids, -1), np.where(prompts.mask, prompts.ids, -2)
    )
    wanted = [
        sum(
            1 / (high[d, r] - low[d, r])
            for r in range(n)
            for c in range(low[d, r], high[d, r])
            if labels.q[d, r] >= 0 and labels.q[d, r] == labels.k[d, c]
        )
        for d in range(len(prompts))
    ]
    assert np.allclose(uniform_mass((labels,), prompts, low, high), wanted, atol=1e-12)
