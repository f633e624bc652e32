"""Composition against d_model × d_model products written out in float64, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headatlas.circuits.weights.compose import composition
from headatlas.circuits.weights.head_circuits import head_circuits
from headatlas.interp.errors import InputError

from ...interp.weight_models import build
from .by_hand import circuits

FAMILIES = ("llama", "gpt2", "gpt_neox", "gemma")


def written_out(kind, a, b):
    (_, ov), (qk, ov_b) = a, b
    back = {"Q": qk, "K": qk.T, "V": ov_b}[kind]
    return (torch.linalg.norm(ov @ back) / torch.linalg.norm(ov) / torch.linalg.norm(back)).item()


@pytest.fixture(scope="module")
def families_tiny(tiny, families):
    return tiny, families


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(FAMILIES), st.integers(0, 5), st.sampled_from([0, 1, 7]))
def test_scores_are_those_of_whole_matrices(families_tiny, family, seed, delta):
    tiny, families = families_tiny
    delta = 0 if family == "gpt2" else delta
    more = {} if family == "gemma" else {"seed": seed}
    model = build(tiny, families, family, dtype=torch.float64, **more)
    found = composition(model, delta=delta)
    heads = circuits(model, family, delta)
    assert len(found.heads) == len(heads)
    for i, a in enumerate(found.heads):
        for j, b in enumerate(found.heads):
            if a.layer >= b.layer:
                assert all(np.isnan(found[kind].score[i, j]) for kind in "QKV")
                continue
            for kind in "QKV":
                wanted = written_out(kind, heads[i], heads[j])
                assert found[kind].score[i, j] == pytest.approx(wanted, rel=1e-4)


def test_circuits_are_the_same_factors(tiny):
    model = tiny("gpt2", dtype=torch.float64)
    found, wanted = head_circuits(model), circuits(model, "gpt2")
    for (head, circuit), (qk, ov) in zip(found.items(), wanted, strict=True):
        left, right = circuit.qk
        assert torch.allclose(left @ right, qk, atol=1e-10)
        centred = circuit.ov[1] - circuit.ov[1].mean(1, keepdim=True)
        assert torch.allclose(circuit.ov[0] @ centred, ov, atol=1e-10)
        assert circuit.head == head
    assert "L0H0 to L1H3" in repr(found)
    assert "L1H3" in found
    assert "L9H0" not in found
    with pytest.raises(InputError, match="no head L9H0; its heads are L0H0 to L1H3"):
        found["L9H0"]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_random_weights_give_uniform_p(tiny, families, family):
    """Independent Gaussian maps are turned at random already: the null holds exactly."""
    p = {kind: [] for kind in "QKV"}
    for seed in range(6):
        config = type(tiny(family).config)(**{**families[family], "initializer_range": 0.5})
        torch.manual_seed(seed)
        model = type(tiny(family))(config).double().eval()
        found = composition(model)
        for kind in p:
            own = found[kind].p
            # one target per source: heads of a group share maps, so their p go together
            p[kind] += [own[i, 4 + i] for i in range(4)] + [own[i, 7 - i] for i in range(4)]
    for kind, values in p.items():
        assert stats.kstest(values, "uniform").pvalue > 0.01, kind
        assert 0.3 < np.mean(values) < 0.7


def test_blocks_and_order_do_not_matter(tiny):
    model = tiny("llama")
    whole, parts = composition(model), composition(model, block=1, kinds=("V", "K"))
    for kind in "KV":
        assert np.allclose(whole[kind].score, parts[kind].score, equal_nan=True, rtol=1e-5)
        assert np.allclose(whole[kind].p, parts[kind].p, equal_nan=True, rtol=1e-3, atol=1e-12)
    stages = []
    composition(model, kinds="K", progress=lambda *stage: stages.append(stage))
    assert stages == [("composition", 1, 2), ("composition", 2, 2)]


def planted(tiny):
    """L0H2 writes what the keys of L1H1 read; L0H3 writes nothing."""
    model = tiny("llama", dtype=torch.float64, num_key_value_heads=4)
    with torch.no_grad():
        first, second = (layer.self_attn for layer in model.model.layers)
        gain = model.model.layers[1].input_layernorm.weight
        first.o_proj.weight[:, 16:24] = (second.k_proj.weight[8:16] * gain).T
        first.o_proj.weight[:, 24:32] = 0
    return model


def test_planted_pair_stands_out(tiny):
    found = composition(planted(tiny))
    best = found.table(kind="K", top=1)
    assert best[["source", "target"]].to_numpy().tolist() == [["L0H2", "L1H1"]]
    pair = found.between("L0H2", "L1H1")
    assert pair["K"]["score"] > 2 * pair["K"]["expected"]
    assert pair["K"]["p"] < 1e-4 < pair["Q"]["p"]
    assert best["q"][0] == pytest.approx(16 * best["p"][0])


def test_head_that_writes_nothing_has_no_score(tiny):
    found = composition(planted(tiny))
    silent = found.rows[found.rows["source"] == "L0H3"]
    assert silent.empty
    assert np.isnan(found["K"].score[3, 4:]).all()
    assert found.n_pairs == 12


def test_rows_name_the_shared_kv_head(tiny):
    found = composition(tiny("llama"), kinds="K")
    rows = found.rows
    assert rows["target_kv_head"].tolist() == [i for i in (0, 0, 1, 1) for _ in range(4)]
    assert rows["target"].tolist()[::4] == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert set(rows["site"]) == {""}
    assert set(rows["layer"]) == {1}
    assert "16 pairs each of K, delta 0" in repr(found)
    assert found.table(source="L0H1", top=None)["source"].unique().tolist() == ["L0H1"]
    assert found.table(by="score", top=3)["score"].is_monotonic_decreasing
    narrowed = found.of_heads(["L1H2"])
    assert set(narrowed.rows["target"]) == {"L1H2"}
    assert narrowed.n_pairs == 4


REFUSED = {
    "qwen3": "exact only up to the norm .*k_norm.*up_to_norms=True.*kinds=\\('V',\\)",
    "gemma2": "before it is added to the residual stream.*up_to_norms=True",
    "bert": "residual stream goes through the norm .*LayerNorm",
    "deepseek_v3": "reads .*kv_a_layernorm.*not the residual stream of 32",
    "t5": "several stacks \\(enc, dec, cross\\)",
}


@pytest.mark.parametrize("family", REFUSED)
def test_models_without_exact_maps_are_refused(tiny, families, family):
    with pytest.raises(InputError, match=REFUSED[family]):
        composition(build(tiny, families, family))


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "bert"])
def test_up_to_norms_says_what_it_leaves_out(tiny, families, family):
    found = composition(build(tiny, families, family), up_to_norms=True)
    assert found.caveats
    assert all("norm" in caveat.lower() for caveat in found.caveats)
    assert "norms left out" in repr(found)
    assert np.isfinite(found["K"].score[0, -1])


def test_v_composition_needs_no_queries(tiny):
    """QK-norm does not concern it."""
    assert composition(tiny("qwen3"), kinds="V").caveats == ()


def test_parallel_blocks_are_not_taken_for_norms_behind(tiny):
    assert composition(tiny("gpt_neox")).caveats == ()
    assert composition(tiny("opt")).caveats == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": "X"}, "kinds of composition are 'Q', 'K' and 'V'; got 'X'"),
        ({"kinds": ()}, "got none"),
        ({"delta": 1.5}, "delta is a whole number of positions; got 1.5"),
        ({"delta": 3}, "no queries of GPT2LMHeadModel are rotated"),
        ({"block": 0}, "block is a whole number of at least 1"),
    ],
)
def test_wrong_options(tiny, as_users_call, options, message):
    with pytest.raises(InputError, match=message):
        composition(tiny("gpt2"), **options)


def test_one_layer_and_wrong_heads(tiny):
    with pytest.raises(InputError, match="heads in two layers; this model has one"):
        composition(tiny("gpt2", n_layer=1))
    found = composition(tiny("gpt2"), kinds="K")
    with pytest.raises(InputError, match="no head L7H0; heads are L0H0 to L1H3"):
        found.table(target="L7H0")
    with pytest.raises(InputError, match="L1H0 writes after L0H1 has read"):
        found.between("L1H0", "L0H1")
    with pytest.raises(InputError, match="there is K composition here; got 'V'"):
        found["V"]
    with pytest.raises(InputError, match="ordered by 'z' or 'score'"):
        found.table(by="luck")
    with pytest.raises(InputError, match="no heads; name at least one"):
        found.of_heads([])


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
def test_files_hold_every_pair(tiny, tmp_path, suffix):
    found = composition(planted(tiny), delta=2)
    path = found.save(tmp_path / f"pairs{suffix}")
    if suffix == ".json":
        content = json.loads(path.read_text())
        assert (content["delta"], content["n_pairs"], content["caveats"]) == (2, 12, [])
        back = pd.DataFrame(content["pairs"])
    else:
        back = (
            pd.read_csv(path, keep_default_na=False) if suffix == ".csv" else pd.read_parquet(path)
        )
    pd.testing.assert_frame_equal(back, found.rows, check_dtype=False)
    with pytest.raises(InputError, match="no known format"):
        found.save(tmp_path / "pairs.txt")
