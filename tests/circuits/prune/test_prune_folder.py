"""The folder of a pruning: taken up again, of something else, and what is left in it."""

import pandas as pd
import pytest

from headatlas.circuits.prune import choose
from headatlas.circuits.prune.prune_result import PruneResult
from headatlas.circuits.prune.remove.files import load_pruned
from headatlas.circuits.prune.remove.pruning import pruning_of
from headatlas.interp.errors import InputError
from tests.circuits.causal.models import llama
from tests.circuits.prune.trained import atlas_of, prune, training


def test_an_interrupted_run_is_readable_and_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    model, whole = llama(layers=2), prune(llama(layers=2))
    folder, real = tmp_path / "out", choose.order_heads
    calls = []

    def stop(*args, **kwargs):
        calls.append(args[2])
        if args[2] == "random":
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(choose, "order_heads", stop)
    with pytest.raises(KeyboardInterrupt):
        prune(model, folder=folder)
    partial = PruneResult.load(folder)
    assert not partial.finished
    assert "unfinished" in repr(partial)
    assert partial.methods == ("l0", "magnitude")
    assert not (folder / "model").exists()
    monkeypatch.setattr(choose, "order_heads", real)
    trained = []
    again = prune(model, folder=folder, watch=trained.append)
    assert not trained  # the gates were not trained again
    pd.testing.assert_frame_equal(again.curve, whole.curve)
    pd.testing.assert_frame_equal(again.gates, whole.gates)
    assert not (folder / "unfinished").exists()
    done = prune(model, folder=folder)
    assert repr(done) == repr(again)
    assert pruning_of(done.pruned()).n_removed == 4
    with pytest.raises(InputError, match="a finished pruning with other settings"):
        prune(model, folder=folder, seed=1)
    with pytest.raises(InputError, match="a finished pruning with other methods"):
        prune(model, folder=folder, method="magnitude")


def test_an_unfinished_run_of_something_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "order_heads", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prune(llama(layers=2), folder=tmp_path)
    with pytest.raises(InputError, match="unfinished run with other weights or config, settings"):
        prune(llama(layers=2, seed=1), folder=tmp_path, seed=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draws": 3}, "other draws"),
        ({"method": ("random", "magnitude")}, "other methods"),
        ({"atlas": atlas_of({"L0H1": "weak"})}, "other atlas"),
        ({"seed": 3}, "other settings"),
    ],
)
def test_a_finished_run_that_was_asked_otherwise_is_not_returned(tmp_path, change, message):
    asked = {"method": ("magnitude", "random"), "atlas": atlas_of({"L0H0": "weak"})}
    prune(llama(layers=2), folder=tmp_path, **asked)
    with pytest.raises(InputError, match=f"a finished pruning with {message}"):
        prune(llama(layers=2), folder=tmp_path, **{**asked, **change})


def test_weights_trained_along_are_in_the_folder_alone_when_it_is_found_finished(tmp_path):
    asked = {"method": "l0", "sparsity": 0.5, "config": training(steps=2, finetune="full")}
    prune(llama(layers=2), folder=tmp_path, **asked)
    found = prune(llama(layers=2), folder=tmp_path, **asked)
    with pytest.raises(InputError, match="in the model there alone"):
        found.pruned()
    assert pruning_of(load_pruned(tmp_path / "model")[0]).n_removed == 4


def test_a_model_that_cannot_be_cut_costs_no_figures(tmp_path, monkeypatch):
    def refuse(*_args):
        raise InputError("heads of it cannot be cut out.")

    monkeypatch.setattr("headatlas.circuits.prune.prune_result.remove_heads", refuse)
    found = prune(llama(layers=2), method="magnitude", folder=tmp_path)
    assert found.caveats[-1] == "the folder holds no smaller model: heads of it cannot be cut out."
    again = PruneResult.load(tmp_path)
    assert again.finished
    assert again.caveats == found.caveats
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "curve.html", "curve.parquet", "differences.parquet", "gates.parquet", "result.json",
    ]  # fmt: skip


def test_what_a_folder_holds_is_of_one_result(tmp_path):
    small, large = (
        prune(llama(layers=2), method="magnitude", sparsity=share, atlas=atlas_of({}))
        for share in (0.25, 0.5)
    )
    small.save(tmp_path)
    assert {"curve.html", "survivors.html", "model"} <= {path.name for path in tmp_path.iterdir()}
    large.save(tmp_path, model=False)
    assert not (tmp_path / "model").exists()  # it was the smaller cut's
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else than a pruning"):
        small.save(tmp_path / "else")
    with pytest.raises(InputError, match="cannot make the folder"):
        small.save(tmp_path / "\0")


def test_a_cut_without_heads_has_no_model(tmp_path):
    found = prune(
        llama(layers=2), method="l0", sparsity=None, lam=0.0, config=training(), folder=tmp_path
    )
    assert "lam 0: λ = 0 closes no head" in found.caveats[0]
    assert "l0 λ 0 −0" in repr(found)
    assert not (tmp_path / "model").exists()


def test_prices_that_print_alike_have_checkpoints_of_their_own(tmp_path):
    asked = {"method": "l0", "sparsity": None, "lam": (0.01, 0.0100000001)}
    found = prune(llama(layers=2), config=training(steps=2), folder=tmp_path, **asked)
    assert len(found.cuts) == 2


def test_a_loss_beyond_all_bounds_is_told_and_saved(tmp_path):
    model = llama(layers=2)
    model.lm_head.weight.data.mul_(3e4)
    found = prune(model, method="magnitude", sparsity=0.5, folder=tmp_path)
    assert found.curve["delta_loss_nats"].max() > 710
    assert "perplexity × inf" in repr(found)
    assert repr(PruneResult.load(tmp_path)) == repr(found)
