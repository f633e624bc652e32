"""Configs by name: no weights, nothing executed, clear errors."""

import json
import logging
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from headatlas.interp import config_only
from headatlas.interp.config_only import load_config, skeleton
from headatlas.interp.errors import InputError

from ..conftest import DECODER

LLAMA = {**DECODER, "model_type": "llama"}


def folder_with(folder, config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_and_a_hub_model(tmp_path, monkeypatch):
    folder = folder_with(tmp_path / "model", LLAMA)
    fetched = []

    def fetch(name, file):
        fetched.append((name, file))
        return str(folder / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    for source in (folder, str(folder), "owner/model"):
        assert load_config(source).num_key_value_heads == 2
    assert fetched == [("owner/model", "config.json")]


def test_the_text_part_of_a_model_that_also_sees(tmp_path):
    config = {"model_type": "gemma3", "text_config": {**DECODER, "model_type": "gemma3_text"}}
    assert load_config(folder_with(tmp_path / "sees", config)).num_attention_heads == 4


def test_a_skeleton_has_no_memory_and_draws_no_numbers():
    before = torch.get_rng_state()
    model = skeleton(LlamaConfig(**DECODER), "llama")
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    assert torch.equal(before, torch.get_rng_state())


def test_a_skeleton_of_absurdly_many_parts(monkeypatch):
    monkeypatch.setattr(config_only, "_MAX_PIECES", 30)
    with pytest.raises(InputError, match="announces more than 30 layers and other parts"):
        skeleton(LlamaConfig(**DECODER), "llama")
    assert torch.nn.Linear(1, 1).weight.numel() == 1  # nothing counts any more
    assert not torch.nn.modules.module._global_module_registration_hooks


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_hidden_layers": 10**7}, "at most 1000"),
        ({"attn_implementation": "owner/kernel"}, "foreign code"),
        ({"model_type": "nonsense"}, "nonsense"),
        ({"num_attention_heads": "four"}, "transformers cannot read"),
    ],
)
def test_configs_that_are_refused(tmp_path, changes, text):
    with pytest.raises(InputError, match=text):
        load_config(folder_with(tmp_path / "model", {**LLAMA, **changes}))


def test_names_that_are_refused(tmp_path):
    file = folder_with(tmp_path / "model", LLAMA) / "config.json"
    for name, text in (
        (" ", "a name or a path"), ("a\0b", "a name or a path"), (file, "is a file"),
        (tmp_path, "no config.json"), ("tny", "Did you mean 'tiny'"), ("x" * 300, "cannot open"),
        ("owner/model", "the hub gave nothing"), ("no.gguf", "no file or folder"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=text):
            load_config(name)


def test_an_unreachable_hub_is_one_error_and_no_noise(monkeypatch, caplog):
    logger = logging.getLogger("huggingface_hub.utils._http")
    before = logger.getEffectiveLevel()

    def fetch(name, file):
        logger.warning("Retrying in 1s [Retry 1/5].")
        raise LocalEntryNotFoundError("nothing answered")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    with caplog.at_level(logging.WARNING), pytest.raises(InputError) as caught:
        load_config("owner/model")
    assert caplog.records == []
    assert str(caught.value) == (
        "no model 'owner/model': it is not built in, not a folder here, and the hub gave nothing "
        "(ConnectionError: it cannot be reached, and no copy of the config is kept here). Built "
        "in: tiny, smollm2-135m; else a .gguf file, a folder or a hub id."
    )
    assert logger.getEffectiveLevel() == before


@given(st.binary(max_size=60))
@settings(max_examples=40, deadline=None)
def test_any_bytes_are_a_config_or_a_clear_error(tmp_path_factory, content):
    folder = Path(tmp_path_factory.getbasetemp()) / "bytes"
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.gguf"):
        (folder / name).write_bytes(content)
        with pytest.raises(InputError):
            load_config(folder if name == "config.json" else folder / name)
