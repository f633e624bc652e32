"""Parts: what is read is what was written, or nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headatlas as ha
from headatlas.circuits.plans.lock import locked
from headatlas.circuits.plans.parts import Part
from headatlas.interp.probes import random_prompts


@pytest.fixture(scope="module")
def sums():
    model, tokenizer = ha.load("tiny")
    prompts = random_prompts(np.arange(100, 900), 2, 32, bos_id=tokenizer.bos_token_id)
    return ha.score(model, prompts, ["induction", "offset"], null_draws=1)


@pytest.fixture(scope="module")
def written(sums, tmp_path_factory):
    part = Part(tmp_path_factory.mktemp("parts"), "random", slice(0, 2), "abc")
    part.write(sums)
    return part, part.path.read_bytes()


def same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        and getattr(one, name).dtype == getattr(other, name).dtype
        if isinstance(getattr(one, name), np.ndarray)
        else getattr(one, name) == getattr(other, name)
        for name in vars(one)
    )


def test_a_part_comes_back_bit_for_bit(written, sums):
    part, data = written
    part.path.write_bytes(data)
    assert same(part.read(), sums)


def test_a_part_of_something_else_counts_for_nothing(written):
    part, data = written
    part.path.write_bytes(data)
    assert Part(part.folder, "random", slice(0, 2), "abd").read() is None
    moved = Part(part.folder, "random", slice(2, 4), "abc")
    moved.path.write_bytes(data)
    assert moved.read() is None
    assert Part(part.folder, "natural", slice(0, 2), "abc").read() is None  # no file


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_part_that_was_damaged_anywhere_counts_for_nothing(written, data):
    part, whole = written
    how = data.draw(st.sampled_from(["cut", "turned", "longer", "header"]))
    place = data.draw(st.integers(0, len(whole) - 1))
    if how == "header":
        place %= 400
    bad = bytearray(whole)
    if how == "cut":
        bad = bad[:place]
    elif how == "longer":
        bad += data.draw(st.binary(min_size=1, max_size=20))
    else:
        bad[place] ^= data.draw(st.integers(1, 255))
    part.path.write_bytes(bad)
    found = part.read()
    assert found is None or (bytes(bad[:8]) == whole[:8] and same(found, _read(part, whole)))


def _read(part, data):
    part.path.write_bytes(data)
    return part.read()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_counts_for_nothing(written, data):
    part, _ = written
    part.path.write_bytes(data)
    assert part.read() is None


def test_a_lock_is_held_by_one_and_given_back(tmp_path):
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock") as second:
        assert (first, second) == (True, False)
    with locked(tmp_path / "lock") as third:
        assert third
