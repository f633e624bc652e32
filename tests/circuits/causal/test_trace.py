"""Sets, pairs and the induction chain, on planted circuits and the built-in model."""

import json
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

import headatlas as ha
from headatlas.circuits.behaviour import INDUCTION, has_next
from headatlas.circuits.causal.command import trace_induction as command
from headatlas.circuits.causal.sets import pairwise_ablation, random_sets, set_effect
from headatlas.circuits.causal.trace import trace_induction
from headatlas.interp import interventions as iv
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from tests.circuits.causal.models import gpt2, llama, repeats
from tests.circuits.causal.test_effects import copying_model
from tests.circuits.causal.test_sweep import EVERYWHERE, losses, losses_without


@pytest.fixture(scope="module")
def traced():
    model = copying_model()
    atlas = ha.classify(model, kinds="previous_token,induction", prompts=24, seq_len=48)
    return trace_induction(model, atlas=atlas, prompts=16, seq_len=40)


def test_the_planted_chain_is_found(traced):
    assert traced.chain == (HeadId("", 0, 0), HeadId("", 1, 0))
    assert traced.evidence("L0H0") == traced.evidence("L1H0") == "pattern + causal"
    keys = traced.value("mass_through_keys", "L0H0", "L1H0")
    assert keys["low"] > 0.5
    assert keys["holds"]
    whole = traced.value("mass", "L0H0", "L1H0")
    queries = traced.value("mass_through_queries", "L0H0", "L1H0")
    assert keys["value"] == pytest.approx(whole["value"], abs=0.01)
    assert abs(queries["value"]) < 1e-5
    assert not queries["holds"]
    assert traced.value("second_copy_loss", "L1H0")["low"] > 0.3
    assert traced.value("copied_logit", "L1H0")["low"] > 0.3


def test_with_patterns_held_the_feeder_no_longer_matters(traced):
    assert traced.value("second_copy_loss", "L0H0")["low"] > 0.3
    assert abs(traced.value("second_copy_loss_frozen", "L0H0")["value"]) < 0.02
    held = traced.value("second_copy_loss_frozen", "L1H0")["value"]
    assert held == pytest.approx(traced.value("second_copy_loss", "L1H0")["value"], abs=1e-4)


def test_a_strong_head_that_feeds_nothing_is_pattern_only(traced):
    assert traced.evidence("L0H1") == traced.evidence("L1H1") == "pattern only"
    idle = traced.heads.loc[traced.heads["evidence"] == "pattern only"]
    assert set(idle["grade"]) == {"strong"}
    assert abs(traced.value("mass", "L0H1", "L1H0")["value"]) < 1e-5
    assert "Pattern only, since they feed no induction head by 0.05 for certain: L0H1." in str(
        traced
    )


def test_the_trace_reads_well_and_is_written(traced, tmp_path):
    assert repr(traced).startswith("<induction trace: L0H0 → L1H0;")
    assert traced.table()["link"].tolist()[:2] == ["previous_mass", "k_composition"]
    assert "L0H0 looks at the previous token" in traced._repr_html_()
    for suffix in (".json", ".csv", ".parquet"):
        traced.save(tmp_path / f"trace{suffix}")
    content = json.loads((tmp_path / "trace.json").read_text())
    assert content["chain"] == ["L0H0", "L1H0"]
    assert len(content["rows"]) == len(traced.rows)
    assert content["summary"] == str(traced)
    assert len(pd.read_parquet(tmp_path / "trace.parquet")) == len(traced.rows)
    with pytest.raises(InputError, match="no known format"):
        traced.save(tmp_path / "trace.txt")
    with pytest.raises(InputError, match="was not measured"):
        traced.value("mass", "L1H0", "L1H0")
    with pytest.raises(InputError, match="neither previous_token nor induction"):
        traced.evidence("L2H0")


def test_a_model_without_the_circuit_has_no_chain():
    found = trace_induction(gpt2(), prompts=16, seq_len=32)
    assert found.chain is None
    assert str(found).startswith("No induction chain was found.")
    assert len(found.table()) == len(found.heads)


def test_wrong_requests_are_refused(traced):
    model = copying_model()
    with pytest.raises(InputError, match="margin is a mass"):
        trace_induction(model, margin=1.5)
    with pytest.raises(InputError, match="one of zero, mean, resample"):
        trace_induction(model, ablation="knockout")
    other = ha.classify(gpt2(), kinds="previous_token,induction", prompts=16, seq_len=32)
    with pytest.raises(InputError, match="of a model with other heads"):
        trace_induction(llama(), atlas=other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ablation": ["mean", "zero"]}, r"ablation is one of .* here; got \['mean', 'zero'\]"),
        ({"margin": "0.1"}, "margin is a mass, a number from 0 to below 1; got '0.1'"),
        ({"margin": None}, "got None"),
        ({"margin": 10**5000}, "got an integer of more"),
        ({"margin": False}, "got False"),
        ({"margin": float("nan")}, "got nan"),
        ({"margin": np.array([0.1])}, "got array"),
    ],
)
def test_settings_of_another_sort_are_refused(options, message, as_users_call):
    with pytest.raises(InputError, match=message):
        trace_induction(gpt2(), **options)


def test_the_command_refuses_before_it_loads(tmp_path):
    with pytest.raises(InputError, match="one of zero, mean, resample"):
        command("no-such-model", ablation="knockout")
    with pytest.raises(InputError, match="no known format"):
        command("no-such-model", out=tmp_path / "trace.txt")
    with pytest.raises(InputError, match="does not exist"):
        command("no-such-model", out=tmp_path / "nowhere" / "trace.json")


def test_the_command_prints_and_writes(tmp_path, capsys):
    command("tiny", prompts=16, out=tmp_path / "trace.json")
    shown = capsys.readouterr().out
    assert "L1H1 looks at the previous token" in shown
    assert "Tested heads" in shown
    late = "Not tested as previous-token heads, since no induction head stands after them: L3H2."
    assert late in " ".join(shown.split())
    content = json.loads((tmp_path / "trace.json").read_text())
    assert content["chain"][0] == "L1H1"
    assert content["untested"] == ["L3H2"]
    assert {row["layer"] for row in content["rows"] + content["heads"]} == {0, 1, 2}


def test_a_set_against_random_sets_of_its_layers():
    model, prompts = llama(), repeats()
    found = set_effect(model, prompts, EVERYWHERE, ["L0H0", "L0H3", "L2H1"], n_random=20)
    assert found.heads == (HeadId("", 0, 0), HeadId("", 0, 3), HeadId("", 2, 1))
    rows, n = has_next(prompts), has_next(prompts).sum(1)
    harmed = losses_without(model, prompts, rows, ["L0H0", "L0H3", "L2H1"])
    harm = harmed - losses(model, prompts, rows)
    assert found.effect == pytest.approx(n @ harm / n.sum(), abs=5e-5)
    assert found.low <= found.effect <= found.high
    assert len(found.random) == 3  # the other two of layer 0 with each of three of layer 2
    assert found.excess == pytest.approx(found.effect - found.random.mean())
    assert found.p == (1 + (found.random >= found.effect).sum()) / 4
    assert found.shared_layers == ()
    assert found.rows["shared"].tolist() == [3, 0, 0, 0]
    for listed in found.rows.loc[found.rows["set"] == "random", "heads"]:
        drawn = [HeadId.parse(head) for head in listed.split()]
        assert [head.layer for head in drawn] == [0, 0, 2]
        assert not set(drawn) & set(found.heads)


def test_a_set_that_fills_its_layer_draws_from_all_of_it():
    every = [HeadId("", layer, head) for layer in range(2) for head in range(4)]
    sets = random_sets(every[:3], every, 10, seed=0)
    assert len(sets) == 3
    assert all(set(one) != set(every[:3]) for one in sets)
    with pytest.raises(InputError, match="no other set of heads"):
        set_effect(llama(), repeats(), EVERYWHERE, [f"L0H{h}" for h in range(4)])


def test_random_sets_that_share_heads_with_the_set_are_told():
    found = set_effect(llama(), repeats(), EVERYWHERE, ["L0H0", "L0H1", "L0H3", "L2H1"], n_random=9)
    assert found.shared_layers == ("L0",)
    own = {str(head) for head in found.heads}
    for row in found.rows.to_dict("records"):
        assert row["shared"] == len(own & {*row["heads"].split()})
    assert found.rows.loc[found.rows["set"] == "random", "shared"].between(2, 3).all()


def test_pairs_beyond_their_singles():
    model, prompts = llama(), repeats()
    names = ["L0H1", "L1H2", "L2H3"]
    found = pairwise_ablation(model, prompts, EVERYWHERE, names, ablation="zero")
    rows, n = has_next(prompts), has_next(prompts).sum(1)
    clean = losses(model, prompts, rows)

    def harm(heads):
        return n @ (losses(model, prompts, rows, iv.zero(heads)) - clean) / n.sum()

    for row, (a, b) in zip(found.rows.to_dict("records"), combinations(names, 2), strict=True):
        assert (str(HeadId(row["site"], row["layer"], row["head"])), row["other"]) == (a, b)
        assert row["effect"] == pytest.approx(harm([a]), abs=5e-5)
        assert row["pair_effect"] == pytest.approx(harm([a, b]), abs=5e-5)
        assert row["beyond"] == pytest.approx(harm([a, b]) - harm([a]) - harm([b]), abs=2e-4)
    assert {*found.backups} == {
        (HeadId(r["site"], r["layer"], r["head"]), HeadId.parse(r["other"]))
        for r in found.rows.to_dict("records")
        if r["low"] > 0
    }


def test_links_of_one_chain_are_less_than_their_sum():
    """Without its feeder the induction head does nothing, so losing both is losing either."""
    model = copying_model()
    rng = np.random.default_rng(0)
    spans = [rng.permutation(np.arange(1, 120))[:14] for _ in range(16)]
    prompts = repeats(16, 28)
    ids = np.stack([np.concatenate([span, span]) for span in spans])
    prompts = type(prompts)("random", ids, ids > 0, bos=False)
    found = pairwise_ablation(model, prompts, INDUCTION, ["L0H0", "L1H0"])
    (row,) = found.rows.to_dict("records")
    assert row["high"] < 0
    assert not row["backup"]
    assert found.backups == []
    assert row["pair_effect"] == pytest.approx(row["other_effect"], rel=0.2)


@pytest.mark.parametrize(
    ("heads", "message"),
    [(["L0H0"], "2 to 16 different heads; got 1"), (["L0H0", "L8H0"], "no head L8H0")],
)
def test_wrong_pairs_are_refused(heads, message):
    with pytest.raises(InputError, match=message):
        pairwise_ablation(gpt2(), repeats(), EVERYWHERE, heads)
