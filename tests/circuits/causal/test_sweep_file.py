"""The file of an unfinished sweep: taken up again, of something else, damaged, any bytes."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from headatlas.circuits.behaviour import Behaviour, copied_next
from headatlas.circuits.causal.sweep import sweep
from headatlas.circuits.causal.trials import Trials
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from tests.circuits.causal.models import gpt2, llama, repeats

EVERYWHERE = Behaviour("text", "Loss everywhere.", "random", lambda p: p.mask)
COPIED = Behaviour("copied", "Loss at copied tokens.", "random", copied_next)
HEADS = ["L0H0", "L1H1", "L2H0", "L2H1"]


def test_interrupted_and_taken_up_again(tmp_path, monkeypatch):
    model, prompts, path = llama(), repeats(), tmp_path / "sweep.safetensors"
    whole = sweep(model, prompts, COPIED, seed=1)

    def stop(_stage, done, _total):
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(model, prompts, COPIED, seed=1, checkpoint=path, progress=stop)
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert model.config._attn_implementation == "sdpa"
    asked = []
    own = Trials.run
    monkeypatch.setattr(
        Trials, "run", lambda self, removals: (asked.extend(removals), own(self, removals))[1]
    )
    again = sweep(model, prompts, COPIED, seed=1, checkpoint=path)
    assert {head.layer for removal in asked for head in removal.heads} == {2}
    np.testing.assert_array_equal(again.harm, whole.harm)
    asked.clear()
    sweep(model, prompts, COPIED, seed=1, checkpoint=path)
    assert not asked


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "another sweep"),
        ({"ablations": ["zero"]}, "another sweep"),
        ({"heads": ["L0H0"]}, "another sweep"),
        ({"model": gpt2(seed=1)}, "another model"),
        ({"prompts": repeats(seed=3)}, "another sweep"),
        ({"behaviours": EVERYWHERE}, "another sweep"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path, change, message):
    path = tmp_path / "sweep.safetensors"
    asked = {"model": gpt2(), "prompts": repeats(), "behaviours": COPIED, "heads": HEADS}
    sweep(**asked, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=message):
        sweep(**asked | change, checkpoint=path)
    assert path.read_bytes() == before


def metadata(path):
    content = path.read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_of_finished_heads_are_finite(tmp_path, value):
    path = tmp_path / "sweep.safetensors"
    asked = (gpt2(), repeats(), COPIED)
    whole = sweep(*asked, heads=HEADS, checkpoint=path)
    meta, values = metadata(path), load_file(path)["values"]
    broken = values.copy()
    broken[2, 1, 0, 3] = value
    done = np.array([1, 1, 1, 0], np.uint8)
    save_file({"values": broken, "done": done}, path, meta)
    with pytest.raises(InputError, match="of 3 heads marked as done 1 have values that are"):
        sweep(*asked, heads=HEADS, checkpoint=path)
    done[2] = 0  # what is not finished is run again, whatever stands there
    save_file({"values": broken, "done": done}, path, meta)
    again = sweep(*asked, heads=HEADS, checkpoint=path)
    np.testing.assert_array_equal(again.harm, whole.harm)
    np.testing.assert_array_equal(load_file(path)["values"], values)


def test_outputs_that_are_not_finite_without_a_head_are_refused(tmp_path, monkeypatch):
    path, own = tmp_path / "sweep.safetensors", Trials.run

    def run(self, removals):
        found = own(self, removals)
        found[[r.heads[0] == HeadId("", 1, 1) and r.ablation == "mean" for r in removals]] = np.nan
        return found

    monkeypatch.setattr(Trials, "run", run)
    with pytest.raises(InputError, match=r"not finite when L1H1 is removed \(mean\)"):
        sweep(gpt2(), repeats(), COPIED, heads=HEADS, checkpoint=path)
    kept = load_file(path)
    assert kept["done"].tolist() == [1, 0, 0, 0]
    assert np.isfinite(kept["values"]).all()


def test_a_damaged_checkpoint_is_refused(tmp_path):
    path = tmp_path / "sweep.safetensors"
    asked = (gpt2(), repeats(), COPIED)
    sweep(*asked, heads=HEADS, checkpoint=path)
    meta = metadata(path)
    for arrays in (
        {"values": np.full((4, 3, 1, 5), np.nan), "done": np.ones(4, np.uint8)},
        {"values": np.zeros((4, 3, 1, 5)), "done": np.full(4, 7, np.uint8)},
        {"values": np.zeros((4, 3, 1, 4)), "done": np.ones(4, np.uint8)},
        {"values": np.zeros((4, 3, 1, 5), np.float32), "done": np.ones(4, np.uint8)},
        {"values": np.zeros((4, 3, 1, 5))},
    ):
        save_file(arrays, path, meta)
        with pytest.raises(InputError, match="is damaged"):
            sweep(*asked, heads=HEADS, checkpoint=path)
    save_file({"values": np.zeros(3)}, path)
    with pytest.raises(InputError, match="not a checkpoint of a sweep"):
        sweep(*asked, heads=HEADS, checkpoint=path)
    with pytest.raises(InputError, match="safetensors file"):
        sweep(*asked, heads=HEADS, checkpoint=tmp_path / "sweep.json")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_bytes_break_the_reader(tmp_path_factory, data):
    """Whatever the file holds: it is read, or refused in plain words."""
    from headatlas.circuits.causal.sweep_file import Checkpoint

    path = tmp_path_factory.mktemp("fuzz") / "sweep.safetensors"
    file = Checkpoint(path, "m", "s")
    file.write(np.ones((2, 1, 1, 3)), np.array([True, False]))
    content = bytearray(path.read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "random"]))
    if how == "flip":
        for _ in range(data.draw(st.integers(1, 8))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    elif how == "cut":
        content = content[: data.draw(st.integers(0, len(content)))]
    else:
        content = data.draw(st.binary(max_size=200))
    path.write_bytes(bytes(content))
    with contextlib.suppress(InputError):  # anything else is a fault
        values, done = file.read((2, 1, 1, 3))
        assert (values.shape, done.shape) == ((2, 1, 1, 3), (2,))
