"""Similarities against whole patterns and results, and heads made alike."""

import numpy as np
import pytest
import torch

from headatlas.circuits.weights.redundancy import redundancy
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.probes import Prompts, random_prompts
from headatlas.interp.tokens import Tokens

PROMPTS = random_prompts(np.arange(4, 97), 3, 24, seed=1)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_similarities_are_those_of_whole_tensors(tiny, family):
    model = tiny(family)
    found = redundancy(model, PROMPTS, rows=100)
    cache = capture(
        model,
        None,
        torch.tensor(PROMPTS.ids),
        names_filter=lambda n: "pattern" in n or "result" in n,
    )
    patterns = torch.cat([cache["pattern", layer] for layer in (0, 1)], 1)[:, :, 1:].double()
    results = torch.cat([cache["result", layer] for layer in (0, 1)], 2)[:, 1:].double()
    overlap = (patterns[:, :, None] * patterns[:, None]).sqrt()
    assert np.allclose(found.pattern, overlap.sum(-1).mean((0, 3)), atol=1e-5)
    assert np.allclose(found.first, overlap[..., 0].mean((0, 3)), atol=1e-5)
    flat = results.permute(2, 0, 1, 3).flatten(1, 2)
    flat = (flat - flat.mean(1, keepdim=True)).flatten(1)
    flat = flat / flat.norm(dim=1, keepdim=True)
    assert np.allclose(found.output, flat @ flat.T, atol=1e-4)
    assert (found.n, found.documents) == (3 * 23, 3)


def twins(tiny):
    """L1H2 is L1H1 again, L1H3 the same with its output taken back."""
    model = tiny("gpt2")
    attention = model.transformer.h[1].attn
    with torch.no_grad():
        for part in range(3):
            columns = slice(part * 32 + 8, part * 32 + 16)
            for copy in (16, 24):
                to = slice(part * 32 + copy, part * 32 + copy + 8)
                attention.c_attn.weight[:, to] = attention.c_attn.weight[:, columns]
                attention.c_attn.bias[to] = attention.c_attn.bias[columns]
        own = attention.c_proj.weight[8:16]
        attention.c_proj.weight[16:24], attention.c_proj.weight[24:32] = own, -own
    return model


def test_twins_are_found(tiny):
    found = redundancy(twins(tiny), PROMPTS)
    assert found.between("L1H1", "L1H2")["pattern"] == pytest.approx(1, abs=1e-5)
    assert found.between("L1H1", "L1H2")["output"] == pytest.approx(1, abs=1e-5)
    assert found.between("L1H3", "L1H2")["output"] == pytest.approx(-1, abs=1e-5)
    assert found.pairs(top=1)[["one", "other"]].to_numpy().tolist() == [["L1H1", "L1H2"]]
    best = found.pairs(by="off_first", top=3)
    assert set(best["one"]) | set(best["other"]) == {"L1H1", "L1H2", "L1H3"}
    assert len(found.rows) == 8 * 7 / 2
    assert len(found.pairs(head="L0H0", top=None)) == 7


def test_padding_and_samples(tiny):
    """Padding on either side changes nothing; a seed gives the same rows again."""
    model, ids = tiny("llama"), PROMPTS.ids
    plain = redundancy(model, PROMPTS, rows=100)
    for widths in ((0, 5), (5, 0)):
        pad = ((0, 0), widths)
        padded = Prompts("padded", np.pad(ids, pad), np.pad(np.ones_like(ids, bool), pad), False)
        assert np.allclose(redundancy(model, padded, rows=100).output, plain.output, atol=1e-5)
    tokens = Tokens(torch.tensor(ids), torch.ones(ids.shape, dtype=torch.bool), [], False)
    sampled = [redundancy(model, tokens, rows=4, seed=seed).pattern for seed in (0, 0, 1)]
    assert np.array_equal(sampled[0], sampled[1])
    assert not np.array_equal(sampled[0], sampled[2])
    some = redundancy(model, PROMPTS, rows=100, heads=["L0H1", "L1H2"])
    assert some.pattern[0, 1] == pytest.approx(plain.pattern[1, 6], abs=1e-6)


def test_head_that_writes_nothing_has_no_correlation(tiny):
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.h[0].attn.c_proj.weight[:8] = 0
    found = redundancy(model, PROMPTS)
    assert np.isnan(found.output[0]).all()
    assert np.isfinite(found.output[1:, 1:]).all()


def test_wrong_uses(tiny, as_users_call):
    model = tiny("gpt2")
    with pytest.raises(InputError, match="prompts are Prompts or Tokens"):
        redundancy(model, PROMPTS.ids)
    with pytest.raises(InputError, match="compares two heads or more; got 1"):
        redundancy(model, PROMPTS, heads=["L0H0"])
    found = redundancy(model, PROMPTS, heads=["L0H0", "L0H1"])
    with pytest.raises(InputError, match="L1H0 was not compared"):
        found.between("L0H0", "L1H0")
    with pytest.raises(InputError, match="ordered by 'output', 'pattern' or 'off_first'"):
        found.pairs(by="luck")
