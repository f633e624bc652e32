"""Evidence on planted circuits: the head that works, the one whose output goes nowhere."""

import dataclasses

import numpy as np
import pytest
import torch

import headatlas as ha
from headatlas.circuits.behaviour import Behaviour, Downstream, behaviour_of, copied_next
from headatlas.circuits.causal.effects import CausalRule, causal_effects
from headatlas.circuits.causal.layer_trend import layer_trend, rank_p
from headatlas.circuits.kinds import KINDS
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from headatlas.interp.probes import random_prompts
from tests.circuits import planted

LAYERS = (
    (("offset-1", 1.0), ("offset-1", 0.8)),  # the first writes what it sees, the second nothing
    (("induction", 0.9), ("induction", 0.9)),  # likewise
    (("first", 0.9), ("offset-3", 0.9)),
)


def copying_model():
    """Planted heads; of two with the same pattern one writes its output, one writes none."""
    model = planted.planted_model(*LAYERS)
    start, width = 2 * planted._WIDTH, planted._WIDTH
    attention, tokens = model.transformer.h[1].attn, torch.arange(planted.VOCAB)
    with torch.no_grad():
        value = attention.c_attn.weight[:, start : start + planted._D_HEAD]
        value[planted._TOKEN + tokens, tokens] = 1.0 / planted._gain()
        attention.c_proj.weight[tokens, planted._TOKEN + tokens] = 2.0
        attention.c_proj.weight[tokens, planted._BALANCE] = -2.0
        head = torch.zeros(planted.VOCAB, width)  # not tied: codes are too small for logits
        head[tokens, planted._TOKEN + tokens] = 150.0
    model.lm_head.weight = torch.nn.Parameter(head)
    return model


@pytest.fixture(scope="module")
def tested():
    model = copying_model()
    atlas = ha.classify(model, kinds="previous_token,induction", prompts=24, seq_len=48)
    effects = causal_effects(model, None, atlas, prompts=16, seq_len=40, ablations=["zero", "mean"])
    return model, atlas, effects


def test_the_right_pattern_alone_is_no_evidence(tested):
    _, atlas, effects = tested
    assert set(atlas.heads("induction", "strong")) == {HeadId("", 1, 0), HeadId("", 1, 1)}
    assert set(atlas.heads("previous_token", "strong")) == {HeadId("", 0, 0), HeadId("", 0, 1)}
    assert effects.heads("induction") == [HeadId("", 1, 0)]
    assert effects.heads("induction", "pattern only") == [HeadId("", 1, 1)]
    assert effects.heads("previous_token") == [HeadId("", 0, 0)]
    assert effects.heads("previous_token", "pattern only") == [HeadId("", 0, 1)]
    rows = effects.rows.set_index(["layer", "head", "ablation"])
    assert rows.loc[(1, 0, "mean"), "low"] > 0.3
    assert abs(rows.loc[(1, 1, "mean"), "effect"]) < 1e-5
    assert rows.loc[(0, 0, "zero"), "effect"] > 0.3  # the induction heads' mass
    assert rows.loc[(1, 0, "mean"), "reference"] == 2  # neither induction heads nor their feeders


def test_the_atlas_takes_the_evidence(tested):
    _, atlas, effects = tested
    told = atlas.with_evidence(effects)
    assert told["L1H0"]["induction"]["evidence"] == "pattern + causal"
    assert told["L1H1"]["induction"]["evidence"] == "pattern only"
    assert told["L2H0"]["induction"]["evidence"] == "none"


def test_rows_hold_what_the_sweep_gives(tested):
    _, _, effects = tested
    sweep, rows = effects.sweeps["random"], effects.rows
    assert [*rows.columns[:6]] == ["site", "layer", "head", "kind", "behaviour", "ablation"]
    assert rows[["site", "layer", "head"]].apply(tuple, axis=1).is_monotonic_increasing
    for row in rows.to_dict("records"):
        place = sweep.heads.index(HeadId(row["site"], row["layer"], row["head"]))
        expected = sweep.effect(row["behaviour"], row["ablation"])[place]
        assert row["effect"] == pytest.approx(expected)
        assert row["low"] <= row["effect"] <= row["high"]
    assert "1 of 2 pattern + causal" in repr(effects)


def test_chosen_heads_are_judged_against_all(tested):
    model, atlas, effects = tested
    one = causal_effects(
        model, None, atlas, kinds="induction", heads="L1H0", prompts=16, seq_len=40,
        ablations=["mean"],
    )  # fmt: skip
    assert one.rows["head"].tolist() == [0]
    whole = effects.rows[effects.rows["ablation"] == "mean"].set_index(["layer", "head"])
    assert one.rows["effect"][0] == pytest.approx(whole.loc[(1, 0), "effect"], abs=1e-5)
    assert one.rows["p"][0] == whole.loc[(1, 0), "p"]
    none = causal_effects(
        model, None, atlas, kinds="induction", heads="L2H0", prompts=16, seq_len=40
    )
    assert none.rows.empty
    assert repr(none) == "no labelled head to test"


def test_a_kind_of_ones_own_with_its_documents(tested):
    model, _, _ = tested
    mine = random_prompts(np.arange(1, planted.VOCAB), 16, 40, seed=8)
    mine = dataclasses.replace(mine, name="mine")
    kind = dataclasses.replace(
        KINDS["induction"], name="copies", legacy=None,
        behaviour=Behaviour("copies_loss", "Loss at copies.", mine, copied_next),
    )  # fmt: skip
    atlas = ha.classify(model, kinds=[kind], prompts=24, seq_len=48)
    with pytest.raises(InputError, match="copies, which the registry does not have"):
        causal_effects(model, None, atlas)
    found = causal_effects(model, None, atlas, kinds=kind, ablations=["mean"])
    assert [*found.sweeps] == ["mine"]
    assert HeadId("", 1, 1) in found.heads("copies", "pattern only")
    rows = found.rows.set_index(["layer", "head"])
    assert rows.loc[(1, 0), "low"] > 0.3
    # its feeder does more harm still, and no label of this atlas tells that it feeds it
    assert rows.loc[(1, 0), "p"] > 1 / (1 + rows.loc[(1, 0), "reference"])
    assert found.heads("copies") == []


def test_kinds_that_cannot_be_tested_are_named(tested):
    model, _, _ = tested
    atlas = ha.classify(model, kinds="previous_token,first_position", prompts=24, seq_len=48)
    found = causal_effects(model, None, atlas, prompts=16, seq_len=40, ablations=["mean"])
    assert found.rows.empty
    assert "none is labelled" in found.untested["previous_token"]
    assert "needs a tokenizer" in found.untested["first_position"]
    assert "not tested" in repr(found)
    with pytest.raises(InputError, match="previous_token cannot be tested"):
        causal_effects(model, None, atlas, kinds="previous_token")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kinds": "offset"}, "'offset' was not scored"),
        ({"heads": ["L7H0"]}, "no head L7H0"),
        ({"ablations": ["zero"]}, "evidence rests on mean ablation"),
        ({"prompts": 3}, "prompts is a whole number of at least 16"),
        ({"seq_len": 65}, "longer than the model's context"),
    ],
)
def test_wrong_requests_are_refused(tested, change, message):
    model, atlas, _ = tested
    with pytest.raises(InputError, match=message):
        causal_effects(model, None, atlas, **change)


def test_an_atlas_of_another_model_is_refused(tested):
    other = planted.planted_model(*LAYERS[:2])
    with pytest.raises(InputError, match="another model's"):
        causal_effects(other, None, tested[1])


@pytest.mark.parametrize("change", [{"level": 1.0}, {"q": 0.0}, {"margin": -1.0}, {"resamples": 9}])
def test_rules_check_themselves(change):
    with pytest.raises(InputError, match=r"causal rule needs|100 resamples"):
        CausalRule(**change)


def test_layer_trend_by_hand():
    """Seven layers of three heads, whose medians run 0 … 6; one head is far out."""
    layer = np.repeat(np.arange(7), 3)
    effect = layer + np.tile([-1.0, 0.0, 1.0], 7)
    effect[11] += 100
    trend = layer_trend(effect, layer)
    assert trend.centre[::3].tolist() == [1, 1.5, 2, 3, 4, 4.5, 5]
    assert trend.spread.min() >= 0.5
    standing = trend.standing(effect)
    assert standing.argmax() == 11
    assert standing[11] == pytest.approx((effect[11] - 3) / trend.spread[11])


def test_heads_under_test_are_no_rule_to_themselves():
    """A layer that only they fill gets the median of the layers next to it."""
    layer = np.repeat(np.arange(3), 2)
    effect = np.array([0.0, 0.2, 5.0, 6.0, 0.4, 0.6])
    reference = np.array([True, True, False, False, True, True])
    trend = layer_trend(effect, layer, reference)
    assert trend.centre.tolist() == pytest.approx([0.3] * 6)  # of 0.1 and 0.5
    assert trend.spread.tolist() == pytest.approx([0.2] * 6)
    far = layer_trend(effect, layer * 4, reference)  # layers 0, 4 and 8: none is in reach
    assert far.centre.tolist() == trend.centre.tolist()


def test_ranks_hold_when_the_trend_leaves_the_labelled_out():
    """Heavy-tailed effects that fall with the layer: one labelled head in twenty has p ≤ .05."""
    rng, p = np.random.default_rng(0), []
    layer = np.repeat(np.arange(20), 9)
    scale = np.exp(-layer / 5) + 0.1
    for _ in range(300):
        effect, reference = (1 + rng.standard_t(2, 180)) * scale, np.ones(180, bool)
        reference[rng.choice(180, 10, replace=False)] = False
        p.append(
            rank_p(layer_trend(effect, layer, reference).standing(effect), reference)[~reference]
        )
    for share in (0.05, 0.2, 0.5):
        assert np.mean(np.concatenate(p) <= share) == pytest.approx(share, abs=0.02)


def test_a_trend_without_spread_is_finite():
    trend = layer_trend(np.array([0.0, 0.0, 0.0, 1.0]), np.array([0, 0, 1, 1]))
    assert np.isfinite(trend.standing(np.array([0.0, 0.0, 0.0, 1.0]))).all()


def test_rank_p_counts_reference_heads_only():
    standing = np.array([3.0, 2.0, 2.0, 9.0])
    reference = np.array([False, True, True, False])
    assert rank_p(standing, reference).tolist() == [1 / 3, 1.0, 1.0, 1 / 3]


def test_rank_p_is_uniform_where_labels_mean_nothing():
    rng = np.random.default_rng(0)
    p = []
    for _ in range(400):
        standing, reference = rng.standard_cauchy(40), np.ones(40, bool)
        reference[:3] = False
        p.append(rank_p(standing, reference)[0])
    for share in (0.05, 0.2, 0.5, 0.8):
        assert np.mean(np.array(p) <= share) == pytest.approx(share, abs=0.07)


def test_behaviours_of_the_built_in_kinds():
    assert behaviour_of(KINDS["induction"]).name == "second_copy_loss"
    assert isinstance(behaviour_of(KINDS["previous_token"]), Downstream)
    text = behaviour_of(KINDS["current_token"])
    prompts = random_prompts(np.arange(50), 2, 20, seed=0)
    rows = text.marked(prompts)
    assert rows[:, 1:-1].all()
    assert not rows[:, 0].any()
    assert not rows[:, -1].any()
