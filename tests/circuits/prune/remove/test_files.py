"""Pruned models in folders: both kinds come back, and hostile folders are refused plainly."""

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
)

from headatlas.circuits.console import load_model
from headatlas.circuits.cost.read import attention_shapes
from headatlas.circuits.prune.remove.cut import Cut, read_cut
from headatlas.circuits.prune.remove.files import load_pruned, save_pruned
from headatlas.circuits.prune.remove.pruned_file import (
    PrunedFile,
    as_text,
    read_pruned,
    reader_of,
)
from headatlas.circuits.prune.remove.pruning import pruning_of
from headatlas.circuits.prune.remove.remove import remove_heads
from headatlas.interp.errors import InputError
from headatlas.interp.load import load
from tests.interp.checkpoints import byte_level

from .families import NAMES, all_heads, inputs, logits
from .test_remove import CASES, ORDINARY


@pytest.mark.parametrize(
    ("name", "case"),
    [*((name, "ragged") for name in NAMES), ("gpt2", "first layer"), ("t5", "first layer")],
)
def test_what_no_config_holds_comes_back(name: str, case: str, whole: Any, tmp_path: Path):
    smaller = remove_heads(whole(name), CASES[case](all_heads(name)))
    with pytest.raises(InputError, match="Save it with save_pruned"):
        smaller.save_pretrained(tmp_path)
    save_pruned(smaller, tmp_path / "new" / "folder")
    assert reader_of(tmp_path / "new" / "folder") == "headatlas.load_pruned"
    loaded, tokenizer = load_pruned(tmp_path / "new" / "folder")
    assert tokenizer is None
    assert type(loaded) is type(smaller)
    assert not loaded.training
    if name == "gpt_oss":
        loaded.set_attn_implementation("eager")
    for left in (False, True):
        assert torch.equal(logits(loaded, inputs(name, left)), logits(smaller, inputs(name, left)))
    pruning, before = pruning_of(loaded), pruning_of(smaller)
    assert pruning is not None
    assert before is not None
    assert pruning.cuts == before.cuts
    # and once more from there
    again, _ = load_pruned(save_pruned(loaded, tmp_path / "again"))
    assert torch.equal(logits(again, inputs(name, True)), logits(smaller, inputs(name, True)))


@pytest.mark.parametrize("name", ORDINARY)
def test_what_the_config_holds_needs_no_code_of_ours(name: str, whole: Any, tmp_path: Path):
    smaller = remove_heads(whole(name), CASES["half"](all_heads(name)))
    save_pruned(smaller, tmp_path, tokenizer=byte_level())
    assert not (tmp_path / "pruned.json").exists()
    auto = AutoModelForSeq2SeqLM if name == "t5" else AutoModelForCausalLM
    options = {"attn_implementation": "eager"} if name == "gpt_oss" else {}
    loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True, **options)
    assert not any(info.values())
    assert torch.equal(logits(loaded, inputs(name, True)), logits(smaller, inputs(name, True)))
    ours, tokenizer = load_pruned(tmp_path)
    assert type(ours) is type(smaller)
    assert tokenizer("the")["input_ids"]


def test_an_ordinary_model_replaces_another_in_its_folder(whole: Any, tmp_path: Path):
    save_pruned(remove_heads(whole("llama"), ["L0H1"]), tmp_path)
    save_pruned(remove_heads(whole("llama"), ["L0KV0", "L1KV0"]), tmp_path)
    assert reader_of(tmp_path) == "from_pretrained"
    loaded, _ = load_pruned(tmp_path)
    assert loaded.config.num_key_value_heads == 1
    assert pruning_of(loaded) is None


def test_an_interrupted_write_is_never_whole(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Neither the new model nor a mixture with the one that was there before."""
    uneven = remove_heads(whole("llama"), ["L0H1"])
    even = remove_heads(whole("llama"), ["L0KV0", "L1KV0"])
    save_pruned(whole("llama"), tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(InputError, match=r"cannot write the model .* disk full"):
        save_pruned(uneven, tmp_path)
    with pytest.raises(InputError, match=r"no model\.safetensors"):
        load_pruned(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("headatlas.circuits.prune.remove.files.as_text", full)
    with pytest.raises(InputError, match="disk full"):
        save_pruned(uneven, tmp_path)
    with pytest.raises(InputError, match=r"no file .*pruned\.json"):
        load_pruned(tmp_path)
    monkeypatch.undo()
    save_pruned(uneven, tmp_path)
    monkeypatch.setattr(type(even), "save_pretrained", full)
    with pytest.raises(InputError, match="disk full"):
        save_pruned(even, tmp_path)
    with pytest.raises(InputError, match=r"no model\.safetensors"):
        load_pruned(tmp_path)


def test_a_folder_of_before_is_refused_by_its_version(folder: Path):
    def old(content: Any) -> None:
        del content["weights_sha256"], content["earlier"]
        content["schema_version"] = 1

    _change(folder, old)
    (folder / "pruned.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(
        InputError, match=r"schema_version 1; this release reads 2\. Save the model"
    ):
        load_pruned(folder)


def test_the_loader_of_whole_models_names_the_right_one(saved: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"headatlas\.load_pruned\(") as refusal:
        load(saved)
    assert "\n" not in str(refusal.value)
    loaded, tokenizer = load_model(str(saved))
    assert tokenizer is None
    assert pruning_of(loaded) is not None
    with pytest.raises(InputError, match="no file or folder"):
        load_model(str(tmp_path / "none"))


def test_dtype_and_tokenizer(whole: Any, tmp_path: Path):
    save_pruned(remove_heads(whole("llama"), ["L0H1"]), tmp_path, tokenizer=byte_level())
    loaded, tokenizer = load_pruned(tmp_path, dtype=torch.bfloat16)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    assert tokenizer("the")["input_ids"]
    with pytest.raises(InputError, match="dtype must be a floating torch dtype"):
        load_pruned(tmp_path, dtype=torch.int8)


@pytest.fixture(scope="module")
def saved(whole: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    smaller = remove_heads(whole("llama"), [*CASES["first layer"](all_heads("llama")), "L1H3"])
    return save_pruned(smaller, tmp_path_factory.mktemp("pruned"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def _change(folder: Path, change: Any) -> None:
    path = folder / "pruned.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _vouch(folder: Path) -> None:
    """Have pruned.json say the digest of the weights as they are."""
    digest = hashlib.sha256((folder / "pruned.safetensors").read_bytes()).hexdigest()
    _change(folder, lambda content: content.update(weights_sha256=digest))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "no config.json"),
        ("pruned.safetensors", "no pruned.safetensors"),
        ("pruned.json", "no file .*pruned.json"),
    ],
)
def test_missing_files(name: str, text: str, folder: Path):
    (folder / name).unlink()
    with pytest.raises(InputError, match=text):
        load_pruned(folder)


def test_no_folder(tmp_path: Path):
    for place in (tmp_path / "none", tmp_path / "a\0b"):
        with pytest.raises(InputError, match=r"no folder|cannot read"):
            load_pruned(place)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="no folder"):
        load_pruned(tmp_path / "file")


def test_only_pickle(folder: Path):
    (folder / "pruned.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"no pruned\.safetensors"):
        load_pruned(folder)


def test_an_index_that_leads_elsewhere(folder: Path):
    (folder / "pruned.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {"lm_head.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"no pruned\.safetensors"):
        load_pruned(folder)


def test_code_is_not_run(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config"}
    config["_attn_implementation"] = "owner/kernel"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(InputError, match="asks for foreign code"):
        load_pruned(folder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.update(schema_version=1), "schema_version 1; this release reads 2"),
        (lambda c: c.update(weights_sha256="x" * 64), "must be 64 hexadecimal digits"),
        (lambda c: c.update(earlier=[_CUT.as_record()]), "what earlier cuts kept is not what"),
        (lambda c: c.update({"class": "Popen"}), "no transformers model"),
        (lambda c: c.update({"class": "BertModel"}), "no transformers model"),
        (lambda c: c.update({"class": "os.system"}), "name of a model class"),
        (lambda c: c.update(sites=[]), "at least one attention module"),
        (lambda c: c.update(sites=3), "sites must be a list"),
        (lambda c: c.pop("sites"), "must be an object of"),
        (lambda c: c["sites"].append(c["sites"][0]), "lists one module twice"),
        (lambda c: c["sites"][1].update(module="model.nothing"), "names a module that"),
        (lambda c: c["sites"][1].update(output="lm_head.nothing"), "names a module that"),
        (lambda c: c["sites"][1].update(kept=[0, 9]), "kept of 'model.layers.1.self_attn'"),
        (lambda c: c["sites"][1].update(kept=[1, 0]), "kept of"),
        (lambda c: c["sites"][1].update(kept=[0]), "must be"),
        (lambda c: c["sites"][1].update(n_kv_heads=3), "n_kv_heads of"),
        (lambda c: c["sites"][1].update(d_value=10**9), "d_value of"),
        (lambda c: c["sites"][1].update(d_value=64), "shall stay"),
        (lambda c: c["sites"][1]["projections"].update({"model.norm": 3}), "no projection"),
        (lambda c: c["sites"][1]["rows"].update({"model.x": 3}), "no weight 'model.x'"),
        (lambda c: c["sites"].pop(0), "lacks the weight"),
        (lambda c: c["sites"][0].update(module="model.embed_tokens"), "."),
        (lambda c: c["sites"][0].update(module="model"), "."),
    ],
)
def test_a_pruned_json_that_lies(change: Any, text: str, folder: Path):
    _change(folder, change)
    with pytest.raises(InputError, match=text):
        load_pruned(folder)


def test_weights_of_other_shapes(folder: Path):
    weights = load_file(folder / "pruned.safetensors")
    name = f"{_Q}.weight"
    for changed, text in (
        ({**weights, name: weights[name][:8].clone()}, r"has shape \(8, 32\); .* \(24, 32\)"),
        ({**weights, "extra": torch.zeros(2)}, "holds 'extra' beside"),
        ({key: value for key, value in weights.items() if key != name}, "lacks the weight"),
    ):
        save_file(changed, folder / "pruned.safetensors")
        _vouch(folder)
        with pytest.raises(InputError, match=text):
            load_pruned(folder)
    (folder / "pruned.safetensors").write_bytes(b"\xff" * 40)
    _vouch(folder)
    with pytest.raises(InputError, match="corrupt or cut off"):
        load_pruned(folder)


def test_a_config_far_larger_than_the_files(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] = 2**23
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="do not belong together"):
        load_pruned(folder)


_Q = "model.layers.1.self_attn.q_proj"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
_CUT = Cut("a", "", 0, 4, 2, 8, 8, (0, 2), "a.o", 2, {"a.q": 16}, {"a.sinks": 2})
_SAID = PrunedFile("LlamaModel", (_CUT,), "0" * 64, ())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_record_is_read_or_refused(data: st.DataObject):
    record = _CUT.as_record()
    for key in data.draw(st.sets(st.sampled_from([*record, "more"]), max_size=3)):
        record[key] = data.draw(VALUES)
    try:
        cut = read_cut(record, "pruned.json")
    except InputError:
        return
    assert cut.as_record() == record
    assert all(0 <= head < cut.n_heads for head in cut.kept)
    assert len(cut.kv_of) == len(cut.kept)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=VALUES | st.binary(max_size=60) | st.just(as_text(_SAID)))
def test_any_file_is_read_or_refused(content: Any, tmp_path: Path):
    path = tmp_path / "pruned.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        found = read_pruned(path)
    except InputError:
        return
    assert found == _SAID


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_change_of_a_folder_loads_or_is_refused(
    data: st.DataObject, saved: Path, tmp_path: Path
):
    """Numbers of a valid file replaced by small ones: never a crash."""
    folder = tmp_path / "model"
    shutil.copytree(saved, folder, dirs_exist_ok=True)

    def change(content: Any) -> None:
        site = data.draw(st.sampled_from(content["sites"]))
        key = data.draw(st.sampled_from(sorted(site)))
        small = st.integers(0, 9)
        site[key] = data.draw(
            small
            | st.lists(small, max_size=4)
            | st.sampled_from(["model", "lm_head", "", "dec", "model.layers.0", "model.norm"])
            | st.dictionaries(
                st.sampled_from(
                    ["model.layers.1.self_attn.q_proj", "lm_head", "model.norm.weight"]
                ),
                small,
            )
        )

    _change(folder, change)
    with contextlib.suppress(InputError):
        assert len(attention_shapes(folder).layers) <= 2
    try:
        loaded, _ = load_pruned(folder)
    except InputError:
        return
    assert torch.isfinite(logits(loaded, inputs("llama", False))).all()
