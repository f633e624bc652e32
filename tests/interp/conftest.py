"""A tiny Llama saved in each form that `load` reads."""

import shutil

import pytest

from .checkpoints import byte_level, write_llama_gguf


@pytest.fixture(scope="module")
def llama(tiny):
    return tiny("llama", vocab_size=len(byte_level()))


@pytest.fixture(scope="module")
def saved(llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    llama.save_pretrained(folder)
    byte_level().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


@pytest.fixture(scope="module")
def gguf_file(llama, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_llama_gguf(path, llama, byte_level())
    return path
