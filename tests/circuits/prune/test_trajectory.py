"""How gates moved: what is recorded, that a stop does not show in it, and its drawing."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.circuits.prune.gate_result import result_of
from headatlas.circuits.prune.gates import Gates
from headatlas.circuits.prune.prune_plots import draw_trajectories
from headatlas.circuits.prune.train import train_gates
from headatlas.circuits.prune.train_file import TrainingFile
from headatlas.circuits.prune.training import Training
from headatlas.circuits.prune.trajectory import MOST, recorded, trajectory_frame
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from headatlas.interp.sites import attention_sites
from tests.circuits.causal.models import llama, repeats
from tests.circuits.prune.test_train_file import killed_at
from tests.circuits.prune.trained import training


@settings(deadline=None)
@given(steps=st.integers(1, 3000), more=st.integers(0, 50))
def test_few_updates_are_recorded_evenly_with_the_first_and_the_last(steps, more):
    found = recorded(steps + more, steps)
    assert len(found) <= MOST
    assert (found[0], found[-1]) == (0, steps)
    gaps = set(np.diff(found[:-1]))
    assert len(gaps) <= 1
    if steps <= MOST - 2:
        assert found == list(range(steps + 1))


def test_a_row_per_update_and_head():
    model, prompts = llama(layers=2), repeats(4)
    config = training(lam=None, target=0.25, steps=4, finetune="full", recover=3)
    found = train_gates(model, prompts, config=config)
    moved = found.trajectory
    assert list(moved) == ["update", "site", "layer", "head", "p_open"]
    assert moved["update"].drop_duplicates().tolist() == [0, 1, 2, 3, 4]  # gates rest after
    start = Gates(attention_sites(model)).open_probability()
    for update, own in moved.groupby("update"):
        assert own["layer"].tolist() == [head.layer for head in found.heads]
        assert own["head"].tolist() == [head.head for head in found.heads]
        if update:
            expected = found.history["expected_open"].tolist()
            before = moved.loc[moved["update"] == update - 1, "p_open"].sum()
            assert before == pytest.approx(expected[update - 1], abs=1e-4)
    assert moved["p_open"][:8].tolist() == pytest.approx(list(start.values()))
    last = moved["p_open"][-8:].to_numpy()
    np.testing.assert_allclose(last, found.gates["p_open"], atol=1e-6)


@pytest.mark.parametrize("update", [2, 5])
def test_a_killed_run_has_the_same_trajectory(tmp_path, update):
    model, prompts, path = llama(layers=2), repeats(4), tmp_path / "gates.safetensors"
    config = training(every=2)
    whole = train_gates(model, prompts, config=config).trajectory
    with pytest.raises(KeyboardInterrupt):
        train_gates(model, prompts, config=config, checkpoint=path, progress=killed_at(update))
    again = train_gates(model, prompts, config=config, checkpoint=path).trajectory
    pd.testing.assert_frame_equal(again, whole, check_exact=True)


@pytest.mark.parametrize("change", ["drop", "short", "dtype"])
def test_a_checkpoint_with_another_trajectory_is_refused(tmp_path, change):
    one = Training(llama(layers=2), repeats(4), training(), None)
    state = one._state() | {"history": torch.zeros(1, 9, dtype=torch.float64)}
    if change == "drop":
        del state["trajectory"]
    elif change == "dtype":
        state["trajectory"] = state["trajectory"].double()

    file = TrainingFile(tmp_path / "x.safetensors", {})
    file.write(1, state)  # one update done, but only the start was recorded
    with pytest.raises(InputError, match="trajectory"):
        one.resume(file)


def test_lines_of_kept_and_of_cut_heads():
    found = train_gates(
        llama(layers=2), repeats(4), config=training(lam=None, target=0.25, steps=5)
    )
    figure = found.plot(title="<b>")
    cut, kept = figure.data
    assert (cut.name, kept.name) == ("cut (2)", "kept (6)")
    for trace, heads in ((cut, set(found.removed())), (kept, set(found.heads))):
        assert set(trace.customdata) <= {str(head) for head in heads}
        assert np.isnan(trace.y).sum() == len(trace.y) / 7  # six points and a gap per head
    name = cut.customdata[0]
    own = found.trajectory.assign(
        name=[f"L{layer}H{head}" for layer, head in found.trajectory[["layer", "head"]].to_numpy()]
    )
    np.testing.assert_array_equal(cut.y[:6], own.loc[own["name"] == name, "p_open"])
    assert figure.layout.title.text == "&lt;b&gt;"
    assert found.plot(theme="dark").layout.paper_bgcolor != figure.layout.paper_bgcolor
    bare = result_of(found.config, Gates(attention_sites(llama(layers=2))), found.history, None)
    with pytest.raises(InputError, match="nothing was recorded"):
        bare.plot()


def test_trajectories_of_very_many_heads_stay_small():
    heads = [HeadId("", layer, head) for layer in range(80) for head in range(64)]
    updates = recorded(1000, 1000)
    values = [torch.full((len(heads),), 1 / (1 + update)) for update in updates]
    table = trajectory_frame(heads, updates, values)
    figure = draw_trajectories(table, {head: head.layer < 40 for head in heads}, "")
    assert len(figure.to_json()) < 6_000_000
    drawn = figure.data[0].x[:25]
    assert (drawn[0], drawn[-1]) == (0, 1000)
    np.testing.assert_allclose(figure.data[0].y[:25], 1 / (1 + drawn), atol=1e-6)
    assert figure.layout.title.text is None  # an empty title is none
