"""A tiny Llama saved in each form that `load` reads."""

import shutil

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from .bridges import boot
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


@pytest.fixture
def pair(tiny, families, tmp_path):
    """A model, and a bridge around another of the same weights; both attend in the same way."""

    def make(family, **changes):
        if family == "bert":  # the base model, which the shared set-up makes, does not boot
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                config = BertConfig(**families["bert"], attn_implementation="eager")
                plain, other = BertForMaskedLM(config).eval(), BertForMaskedLM(config).eval()
                other.load_state_dict(plain.state_dict())
        else:
            plain, other = (tiny(family, attn="eager", **changes) for _ in range(2))
        return plain, boot(other, tmp_path)

    return make
