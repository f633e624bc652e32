"""The interpreted Triton kernels under a whole classification of the built-in model."""

import numpy as np
import pytest

import headatlas as ha
from headatlas.kernels.api import use_backend
from headatlas.kernels.fused import backend
from headatlas.kernels.fused.configs import Blocks, use_blocks

KINDS = ("previous_token",)
"""One kind: the interpreter takes a minute. What the others ask for is in `tests/kernels`."""
LAYERS = 2


def test_the_same_atlas_comes_out_of_both_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = ha.load("tiny")
    model.model.layers = model.model.layers[:LAYERS]  # what the rest asks for is the same
    options = {"kinds": KINDS, "prompts": 16, "seq_len": 16, "seed": 0}
    wanted = ha.classify(model, tokenizer, **options).rows
    calls = []
    probe = backend.probe
    monkeypatch.setattr(backend, "probe", lambda *a: calls.append(a) or probe(*a))
    with use_backend("triton"), use_blocks(Blocks(16, 16, 4, 1)):
        got = ha.classify(model, tokenizer, **options).rows
    assert calls
    assert len(got) == len(KINDS) * 8 * LAYERS
    for name in got.columns:
        mine, oracle = got[name], wanted[name]
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, oracle, rtol=1e-4, atol=1e-5, err_msg=name)
        elif name != "details":
            assert mine.fillna("").tolist() == oracle.fillna("").tolist(), name
    assert set(got["grade"]) >= {"strong", "none"}
