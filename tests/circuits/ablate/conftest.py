"""Models and a sweep that several tests read."""

import pytest

import headatlas as ha
from headatlas.circuits.ablate.ablate import ablation_sweep
from tests.circuits.causal.models import llama

SMALL = {"prompts": 16, "seq_len": 24}


@pytest.fixture(scope="package")
def tiny():
    return ha.load("tiny")


@pytest.fixture(scope="package")
def swept():
    return ablation_sweep(llama(), None, methods=["mean", "zero"], **SMALL)


def rows_of(found, **wanted):
    rows = found.rows
    for column, value in wanted.items():
        rows = rows.loc[rows[column] == value]
    return rows.reset_index(drop=True)
