"""Pruning from text to curve: what is held out, measured, kept, taken up again, and read back."""

import copy
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.circuits.ablate.evaluate import evaluate
from headatlas.circuits.prune.asked import check_asked
from headatlas.circuits.prune.curve import CURVE_COLUMNS, WHOLE
from headatlas.circuits.prune.progress_file import ProgressFile
from headatlas.circuits.prune.prune_file import check_folder
from headatlas.circuits.prune.prune_result import PruneResult
from headatlas.circuits.prune.remove.files import load_pruned
from headatlas.circuits.prune.remove.pruning import pruning_of
from headatlas.circuits.prune.remove.remove import remove_heads
from headatlas.circuits.prune.survivors import labels_after, survivors_of
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from tests.circuits.causal.models import gpt2, llama
from tests.circuits.prune.trained import assert_same, atlas_of, prune, snapshot, text, training

ALL = ("l0", "michel", "taylor", "magnitude", "greedy", "random", "layer_random")


@pytest.fixture(scope="module")
def result():
    return prune(llama(layers=2), method=ALL)


def test_the_curve_has_every_cut_and_the_whole_model_at_exactly_zero(result):
    curve = result.curve
    assert tuple(curve.columns) == CURVE_COLUMNS
    assert result.methods == ALL
    assert len(curve) == 1 + 2 * 5 + 2 * 2 * 2
    whole = curve.iloc[0]
    assert whole["method"] == WHOLE
    for name in ("delta_loss_nats", "kl_nats", "delta_low", "delta_high", "n_removed"):
        assert whole[name] == 0
    assert whole["perplexity_ratio"] == 1
    assert whole["second_copy_delta_loss_nats"] == 0
    assert set(curve["n_removed"]) == {0, 2, 4}
    rest = curve.iloc[1:]
    assert (rest["delta_low"] <= rest["delta_loss_nats"]).all()
    assert (rest["delta_loss_nats"] <= rest["delta_high"]).all()
    assert result.finished


def test_the_curve_is_what_removing_the_heads_costs(result):
    model = llama(layers=2)
    cuts = [cut.heads for cut in result.cuts]
    deltas = evaluate(model, text(2), cuts).delta_loss_nats
    np.testing.assert_allclose(result.curve["delta_loss_nats"].iloc[1:], deltas, atol=1e-6)


def test_cuts_are_nested_and_layers_matched(result):
    for method in ("michel", "taylor", "magnitude", "greedy"):
        small, large = result.removed(method, 0.25), result.removed(method, 0.5)
        assert large[:2] == small
        assert result.removed(method) == large
    for draw in range(2):
        for share in (0.25, 0.5):
            ours = [head.layer for head in result.removed("layer_random", share, draw=draw)]
            assert ours == [head.layer for head in result.removed("l0", share)]
    assert result.removed("random", draw=0) != result.removed("random", draw=1)


def test_differences_are_paired_by_document(result):
    model, cuts = llama(layers=2), result.removed("l0", 0.5)
    others = [result.removed("random", 0.5, draw=draw) for draw in range(2)]
    losses = evaluate(model, text(2), [cuts, *others]).loss_nats
    rows = result.differences
    (row,) = rows[
        (rows["other"] == "random") & (rows["asked"] == 0.5) & (rows["documents"] == "text")
    ].to_dict("records")
    assert row["difference_nats"] == pytest.approx(losses[0] - losses[1:].mean(), abs=1e-6)
    assert row["low"] < row["difference_nats"] < row["high"]
    assert len(rows) == 2 * 2 * 6


@pytest.mark.parametrize("finetune", [None, "full"])
def test_the_model_is_left_alone(finetune):
    model = gpt2(layers=2).train()
    model.transformer.wte.weight.requires_grad_(False)
    model.transformer.ln_f.weight.grad = torch.ones(16)
    before = snapshot(model)
    found = prune(model, sparsity=0.5, config=training(steps=3, finetune=finetune))
    assert found.curve["finetuned"].tolist() == [False, finetune is not None, *[False] * 3]
    found.pruned()
    assert_same(snapshot(model), before)


def test_fine_tuned_cuts_are_measured_and_saved_with_their_weights(tmp_path):
    model = llama(layers=2)
    found = prune(
        model, method=("l0", "magnitude"), sparsity=0.5,
        config=training(steps=3, recover=20, finetune="full", model_lr=0.02, batch=8),
    )  # fmt: skip
    assert "for l0 alone, not for magnitude" in repr(found)
    loss = found.curve["loss_nats"].iloc[1]
    frozen = evaluate(model, text(2), [found.removed()]).loss_nats[0]
    assert abs(loss - frozen) > 0.01
    smaller, _ = load_pruned(found.save(tmp_path / "out") / "model")
    again = evaluate(smaller, text(2), [()], reference=model)
    assert float(again.loss_nats[0]) == pytest.approx(loss, abs=1e-5)
    assert pruning_of(smaller).removed == tuple(sorted(found.removed()))


def test_lambda_says_how_many_heads_go():
    found = prune(
        llama(layers=2), sparsity=None, lam=(0.0, 50.0),
        config=training(steps=40, lr=0.4, batch=8),
    )  # fmt: skip
    rows = found.curve[found.curve["draw"] == 0].set_index(["method", "asked"])["n_removed"]
    assert rows["l0", 50.0] == rows["random", 50.0] == rows["magnitude", 50.0] == 8
    assert rows["l0", 0.0] < 8
    assert found.settings["asked"] == "lam"
    assert found.removed("l0", 50.0) == found.removed()


def test_a_warm_start_does_not_open_what_is_closed():
    model, seen = llama(layers=2), []
    prune(model, method="l0", sparsity=(0.25, 0.5), config=training(steps=5), watch=seen.append)
    assert [row["asked"] for row in seen] == [0.25] * 5 + [0.5] * 5
    assert seen[5]["target"] == 0.5
    assert seen[0]["target"] < 0.25


def test_save_and_load(result, tmp_path):
    folder = result.save(tmp_path / "a" / "b")
    found = PruneResult.load(folder)
    assert found.cuts == result.cuts
    assert found.heads == result.heads
    assert repr(found) == repr(result)
    assert found.settings == json.loads(json.dumps(result.settings))
    for name in ("curve", "gates", "differences", "labels"):
        pd.testing.assert_frame_equal(
            getattr(found, name), getattr(result, name), check_dtype=False, check_column_type=False,
            check_index_type=False,
        )  # fmt: skip
    assert len(pd.read_parquet(folder / "curve.parquet")) == len(result.curve)
    smaller, _ = load_pruned(folder / "model")
    assert pruning_of(smaller).n_removed == 4
    with pytest.raises(InputError, match="a loaded result has no model"):
        found.pruned()
    other = found.save(tmp_path / "c", model=False)
    assert PruneResult.load(other).cuts == result.cuts
    with pytest.raises(InputError, match=r"l0 was asked for 0\.25, 0\.5"):
        result.removed("l0", 0.3)
    with pytest.raises(InputError, match="heads were removed by"):
        result.removed("functional")


@pytest.fixture(scope="module")
def saved(result, tmp_path_factory):
    return result.save(tmp_path_factory.mktemp("saved"), model=False)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_results_are_refused(saved, tmp_path_factory, data):
    """Any part of the file replaced by any JSON value is read as a whole result, or refused."""
    content = json.loads((saved / "result.json").read_text())
    place, key = content, data.draw(st.sampled_from(sorted(content)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
    old = copy.deepcopy(place[key])
    place[key] = data.draw(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
        | st.lists(st.integers(), max_size=3)
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "result.json").write_text(json.dumps(content))
    try:
        found = PruneResult.load(folder)
    except InputError:
        return
    assert len(found.curve) == len(content["cuts"]) + 1, old
    assert repr(found)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["format", "identity", "orders", "losses", "schema_version"]), inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_files_of_something_else_are_refused(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("fuzzed")
    for name in ("result.json", "progress.json"):
        (folder / name).write_bytes(content)
    with pytest.raises(InputError):
        PruneResult.load(folder)
    with pytest.raises(InputError):
        ProgressFile(folder / "progress.json", {"weights": "a"})


@pytest.mark.parametrize("losses", [
    {"a": [[1.0]]}, {"a": [[1.0], ["b"]]}, {"a": [[1.0], [math.inf]]}, {"a": 3}, [],
])  # fmt: skip
def test_damaged_progress_is_refused(tmp_path, losses):
    path = tmp_path / "progress.json"
    kept = ProgressFile(path, {"weights": "a"})
    kept.keep_order("michel 2", [HeadId("", 0, 1)])
    kept.keep_losses({"a": [np.ones(3), np.zeros(3)]})
    again = ProgressFile(path, {"weights": "a"})
    assert again.order("michel 2") == (HeadId("", 0, 1),)
    np.testing.assert_array_equal(again.losses("a", 3), [[1, 1, 1], [0, 0, 0]])
    with pytest.raises(InputError, match="another number of documents"):
        again.losses("a", 4)
    with pytest.raises(InputError, match="other weights"):
        ProgressFile(path, {"weights": "b"})
    path.write_text(json.dumps({**json.loads(path.read_text()), "losses": losses}))
    with pytest.raises(InputError, match="damaged"):
        ProgressFile(path, {"weights": "a"})


def test_survivors_count_the_kinds_that_are_left(result):
    heads = result.removed("l0", 0.5)
    kept = next(head for head in result.heads if head not in heads)
    rows = [
        ("", heads[0].layer, heads[0].head, "induction", "strong"),
        ("", kept.layer, kept.head, "induction", "weak"),
        ("", kept.layer, kept.head, "previous_token", "strong"),
    ]
    labels = pd.DataFrame(rows, columns=["site", "layer", "head", "kind", "grade"])
    cuts = [cut for cut in result.cuts if cut.method == "l0" and cut.asked == 0.5]
    found = survivors_of(labels, result.heads, cuts).set_index("kind")
    told = found[["n_labelled", "n_surviving"]].T.to_dict("list")
    assert told["induction"] == [2, 1]
    assert told["previous_token"] == [1, 1]
    assert told["no label"] == [6, 3]
    assert told["all heads"] == [8, 4]
    strong = survivors_of(labels, result.heads, cuts, grade="strong").set_index("kind")
    assert strong.loc["induction", "n_surviving"] == 0
    with pytest.raises(InputError, match="nothing is known of what heads do"):
        result.survivors()


def test_plots(result):
    figure = result.plot()
    drawn = {name: f"{name} (mean; bars: all draws)" for name in ("random", "layer_random")}
    assert [trace.name for trace in figure.data] == [drawn.get(name, name) for name in ALL]
    own = figure.data[0]
    assert list(own.x) == [0, 2, 4]
    assert own.y[0] == 0
    np.testing.assert_allclose(own.y + own.error_y.array, [0, *_of(result, "l0", "delta_high")])
    drawn = figure.data[ALL.index("random")]
    np.testing.assert_allclose(
        drawn.y[1:], np.reshape(_of(result, "random", "delta_loss_nats"), (2, 2)).mean(1)
    )
    with pytest.raises(InputError, match="the curve shows"):
        result.plot("loss")


def _of(result, method, column):
    return result.curve.loc[result.curve["method"] == method, column].to_list()


@pytest.mark.parametrize(("changes", "message"), [
    ({"sparsity": 1.0}, "above 0 and below 1; got 1"),
    ({"sparsity": 0.0}, "above 0 and below 1; got 0"),
    ({"sparsity": 0.01}, "is 0 heads"),
    ({"sparsity": "half"}, "sparsity is one or a list"),
    ({"sparsity": ()}, "got none"),
    ({"sparsity": [True]}, "a number or several"),
    ({"sparsity": 0.5, "lam": 0.1}, "not both"),
    ({"lam": -1}, "at least 0"),
    ({"lam": 1, "method": "michel"}, "price of heads in the training of l0"),
    ({"method": "best"}, "methods are among"),
    ({"method": ()}, "no method is named"),
    ({"method": "functional"}, "pass atlas="),
    ({"config": {}}, "config is a GateTraining"),
    ({"draws": 0}, "draws is a whole number"),
    ({"level": 2.0}, "level is a number between"),
    ({"seed": -1}, "seed is a whole number"),
])  # fmt: skip
def test_what_is_refused(changes, message):
    asked = {
        "method": "l0", "sparsity": None, "lam": None, "config": None, "atlas": None, "draws": 1,
        "level": 0.95, "seed": 0,
    }  # fmt: skip
    with pytest.raises(InputError, match=message):
        check_asked(llama(layers=2), **{**asked, **changes})


@pytest.mark.parametrize(("changes", "message"), [
    ({"seq_len": 1}, "seq_len is a whole number"),
    ({"eval_documents": 0}, "eval_documents is a whole number"),
    ({"train_documents": 0}, "train_documents is a whole number"),
])  # fmt: skip
def test_readings_that_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        prune(llama(layers=2), **changes)


def test_folders_of_something_else_are_refused(tmp_path):
    assert check_folder(tmp_path / "new") == tmp_path / "new"
    assert check_folder(tmp_path) == tmp_path
    (tmp_path / "novel.txt").write_text("once")
    with pytest.raises(InputError, match="holds something else than a pruning"):
        check_folder(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        check_folder(tmp_path / "novel.txt")
    with pytest.raises(InputError, match=r"holds no result\.json"):
        PruneResult.load(tmp_path)


def test_labels_before_and_after():
    """By the addresses of the whole model, whatever the smaller one calls its heads."""
    before = atlas_of({"L0H0": "strong", "L0H2": "weak", "L1H3": "strong"})
    smaller = remove_heads(llama(layers=2), ["L0H0", "L0H1"])
    names = pruning_of(smaller).heads_before
    assert str(names[HeadId("", 0, 0)]) == "L0H2"
    every = ["L0H0", "L0H1", *(f"L1H{head}" for head in range(4))]
    after = atlas_of({"L0H0": "strong", "L1H1": "weak"}, every)
    (row,) = labels_after(before, after, pruning_of(smaller)).to_dict("records")
    assert row == {
        "kind": "induction", "n_before": 3, "n_surviving": 2, "n_kept_label": 1, "n_after": 2,
    }  # fmt: skip
    with pytest.raises(InputError, match="the atlas after the cut is of 8 heads, and 6 are left"):
        labels_after(before, before, pruning_of(smaller))


def test_a_training_says_itself_how_much_is_cut():
    found = prune(
        llama(layers=2), method="l0", sparsity=None, config=training(lam=None, target=0.25, steps=2)
    )
    assert [cut.asked for cut in found.cuts] == [0.25]
    priced = prune(llama(layers=2), method="l0", sparsity=None, config=training(steps=2))
    assert priced.settings["asked"] == "lam"


def test_what_is_true_of_one_method_alone_is_said():
    found = prune(llama(layers=2), sparsity=0.5, config=training(steps=2, per="group"))
    assert "whole groups are cut by l0 alone, single heads by magnitude, random." in found.caveats


def test_ranges_of_draws_are_not_told_as_intervals(result):
    random = next(line for line in repr(result).split("\n") if "random (2 draws) −2" in line)
    rows = result.curve[(result.curve["method"] == "random") & (result.curve["n_removed"] == 2)]
    low, high = sorted(rows["delta_loss_nats"])
    assert f"(from {low:+.4f} to {high:+.4f})" in random
    assert "[" not in random
