"""Checkpoints: a killed run goes on to the same numbers, and files of others are refused."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from headatlas.circuits.prune.train import train_gates
from headatlas.circuits.prune.train_file import TrainingFile
from headatlas.interp.errors import InputError
from tests.circuits.causal.models import llama, repeats
from tests.circuits.prune.trained import assert_same, snapshot, training


def killed_at(update):
    def progress(_stage, done, _total):
        if done == update:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize(
    "changes",
    [
        {"lam": 0.1, "draws": "document"},
        {"lam": None, "target": 0.5, "per": "both", "accumulate": 2, "schedule": "cosine"},
        {"lam": None, "target": 0.5, "finetune": "full", "recover": 3, "objective": "kl"},
    ],
)
@pytest.mark.parametrize("update", [2, 3, 7])
def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path, changes, update):
    model, prompts, path = llama(layers=2), repeats(5, side="right"), tmp_path / "gates.safetensors"
    config = training(every=3, steps=8, **changes)
    whole = train_gates(model, prompts, config=config)
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        train_gates(model, prompts, config=config, checkpoint=path, progress=killed_at(update))
    assert_same(snapshot(model), before)
    assert path.exists() == (update >= 3)
    seen = []
    again = train_gates(
        model, prompts, config=config, checkpoint=path,
        progress=lambda _stage, done, _total: seen.append(done),
    )  # fmt: skip
    assert seen[0] == update // 3 * 3 + 1
    assert again.history.equals(whole.history)
    assert again.gates.equals(whole.gates)
    for one, other in ((whole.state, again.state), (whole.weights or {}, again.weights or {})):
        assert one.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_finished_run_is_read_back(tmp_path):
    model, prompts, path = llama(layers=2), repeats(4), tmp_path / "gates.safetensors"
    first = train_gates(model, prompts, config=training(), checkpoint=path)
    again = train_gates(
        model, prompts, config=training(every=1), checkpoint=path, progress=killed_at(1)
    )
    assert again.history.equals(first.history)
    assert again.gates.equals(first.gates)


def test_another_training_s_file_is_refused(tmp_path):
    model, prompts, path = llama(layers=2), repeats(4), tmp_path / "gates.safetensors"
    first = train_gates(model, prompts, config=training(), checkpoint=path)
    content = path.read_bytes()
    for other, message in [
        ({"model": llama(seed=1, layers=2)}, "another model"),
        ({"documents": repeats(4, seed=1)}, "other documents"),
        ({"config": training(lam=0.2, seed=3)}, r"other settings \(lam, seed\)"),
        ({"start": first}, r"other settings \(start\)"),
    ]:
        asked = {"model": model, "documents": prompts, "config": training(), **other}
        with pytest.raises(InputError, match=message):
            train_gates(asked.pop("model"), asked.pop("documents"), checkpoint=path, **asked)
    assert path.read_bytes() == content


def test_wrong_paths_are_refused(tmp_path):
    for path, message in [("gates.pt", "is a .safetensors file"), ("no/x.safetensors", "folder")]:
        with pytest.raises(InputError, match=message):
            train_gates(llama(layers=2), repeats(4), config=training(), checkpoint=tmp_path / path)


IDENTITY = {"model": "m", "documents": "d", "settings": json.dumps({"lam": 0.1})}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "gates.safetensors"
    TrainingFile(path, IDENTITY).write(3, {"history": torch.ones(3, 2), "value.x": torch.zeros(4)})
    return path, path.read_bytes()


def read(path):
    updates, state = TrainingFile(path, IDENTITY).read()
    return updates, {name: value.tolist() for name, value in state.items()}


def test_what_was_written_is_read(written):
    path, content = written
    path.write_bytes(content)
    assert read(path) == (3, {"history": [[1.0, 1.0]] * 3, "value.x": [0.0] * 4})


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_a_changed_byte_is_noticed(written, place, value, cut):
    """Either the file is refused, or what is read is what was written (blanks in the header)."""
    path, content = written
    place %= len(content)
    changed = content[:place] if cut else content[:place] + bytes([value]) + content[place + 1 :]
    path.write_bytes(changed)
    try:
        found = read(path)
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017
        return
    assert found == (3, {"history": [[1.0, 1.0]] * 3, "value.x": [0.0] * 4})


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=400))
def test_arbitrary_bytes_are_refused(written, content):
    path, _ = written
    path.write_bytes(content)
    with pytest.raises(InputError, match="checkpoint"):
        read(path)


@settings(max_examples=50, deadline=None)
@given(text=st.one_of(st.text(max_size=80), st.just("[" * 100_000), st.just('{"lam": [1]}')))
def test_hostile_settings_are_refused_and_not_repeated(written, text):
    path, _ = written
    save_file({"x": torch.zeros(1)}, path, {"format": "headatlas gates 2", "model": "m",
                                            "documents": "d", "settings": text})  # fmt: skip
    with pytest.raises(InputError, match="other settings") as caught:
        read(path)
    assert len(str(caught.value)) < 300 + len(str(path))


@pytest.mark.parametrize("change", ["drop", "add", "shape", "dtype", "history", "length"])
def test_a_state_that_does_not_fit_is_refused(tmp_path, change):
    """As a file of another version might hold it, with a right checksum."""
    model, prompts, path = llama(layers=2), repeats(4), tmp_path / "gates.safetensors"
    train_gates(model, prompts, config=training(), checkpoint=path)
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        meta = file.metadata()
    state = load_file(path)
    name = "value.gates.log_alpha"
    if change == "drop":
        del state[name]
    elif change == "add":
        state["more"] = torch.zeros(1)
    elif change == "shape":
        state[name] = state[name][:-1].clone()
    elif change == "dtype":
        state[name] = state[name].double()
    elif change == "history":
        del state["history"]
    else:
        state["history"] = state["history"][:-1].clone()
    identity = {key: meta[key] for key in ("model", "documents", "settings")}
    TrainingFile(path, identity).write(6, state)
    with pytest.raises(InputError, match="damaged"):
        train_gates(model, prompts, config=training(), checkpoint=path)


def test_a_reader_sees_whole_files_only(tmp_path):
    """The file is replaced at once: at each update it holds a state that can be read."""
    model, prompts, path = llama(layers=2), repeats(4), tmp_path / "gates.safetensors"
    lengths = []

    def look(_stage, _done, _total):
        lengths.append(len(load_file(path)["history"]))

    train_gates(model, prompts, config=training(every=2), checkpoint=path, progress=lambda *e: (
        look(*e) if path.exists() else None
    ))  # fmt: skip
    assert lengths == [2, 2, 4, 4, 6]
    assert np.array_equal([p.name for p in tmp_path.iterdir()], ["gates.safetensors"])


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("headatlas gates 1", "a checkpoint of another version of headatlas.* start anew"),
        ("headatlas gates 3", "a checkpoint of another version"),
        ("headatlas", "not a checkpoint of gates"),
    ],
)
def test_a_checkpoint_of_another_version_is_named_as_such(tmp_path, form, said):
    path = tmp_path / "x.safetensors"
    save_file({"x": torch.zeros(1)}, path, {"format": form})
    with pytest.raises(InputError, match=said):
        read(path)
