"""Every reader that `load` uses, on files cut, changed and made up."""

import json
import shutil
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headatlas.interp.checkpoint import check_counts
from headatlas.interp.errors import InputError
from headatlas.interp.gguf_file import check_gguf
from headatlas.interp.load import load
from headatlas.interp.pretrained import read_tokenizer, reading

from .checkpoints import byte_level
from .test_load import PRECOMPILED, edit_config, refused

FUZZ = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
VOCAB = len(byte_level())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def in_order(read, path):
    """Whether `read` succeeds or refuses in one line; any other exception passes through."""
    try:
        read(path)
    except InputError as error:
        return "\n" not in str(error)
    return True


@settings(max_examples=300, deadline=None)
@given(
    key=st.sampled_from(["num_x", "n_y", "a_layers", "b_size", "labels", "c_experts", "depths"]),
    value=st.integers(2**24 + 1, 2**70),
    depth=st.integers(0, 40),
)
def test_every_count_is_bounded_however_deep(key, value, depth):
    config = {key: value}
    for level in range(depth):
        config = {"inner": config} if level % 2 else {"inner": [1, config]}
    with pytest.raises(InputError, match=key):
        check_counts(config, 10, "model")


def places(value, path=()):
    """The path of every value in a JSON document, vocabularies and merges cut short."""
    yield path
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in list(keys)[:12]:
            yield from places(value[key], (*path, key))


def changed(document, path, value):
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


ODD = JSON | st.sampled_from(
    [*PRECOMPILED, -1, 2**31, 2**64, "", "\0", "[", "(?", "Ġ", "<s>", {"type": "BPE"}, {}, []]
)


@settings(FUZZ, max_examples=80)
@given(data=st.data())
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_changed_tokenizer_file_loads_or_is_refused(saved, tmp_path, name, data):
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(saved / file, tmp_path / file)
    document = json.loads((saved / name).read_text())
    if name == "tokenizer.json":
        document["post_processor"] = json.loads(byte_level(bos=True).backend_tokenizer.to_str())[
            "post_processor"
        ]
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(document))))
        document = changed(document, path, data.draw(ODD))
    (tmp_path / name).write_text(json.dumps(document))
    assert in_order(tokenizer_of, tmp_path)


def tokenizer_of(folder):
    """`load` without the model, which takes most of its time."""
    with reading("model"):
        read_tokenizer(folder, "model", {})


@FUZZ
@given(data=st.data())
def test_a_cut_or_damaged_safetensors_file_is_refused(folder, saved, data):
    whole = (saved / "model.safetensors").read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    cut = data.draw(st.one_of(st.integers(0, len(whole) - 1), st.integers(0, header)))
    tail = data.draw(st.binary(max_size=64).filter(lambda tail: cut + len(tail) != len(whole)))
    (folder / "model.safetensors").write_bytes(whole[:cut] + tail)
    refused(folder)


@FUZZ
@given(content=st.binary(max_size=200) | JSON.map(json.dumps).map(str.encode))
def test_a_config_of_arbitrary_bytes_is_refused(folder, content):
    (folder / "config.json").write_bytes(content)
    refused(folder)


@FUZZ
@given(
    key=st.sampled_from(
        ["hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "model_type",
         "num_hidden_layers", "rope_parameters", "architectures", "hidden_act", "head_dim"]
    ),
    value=JSON,
)  # fmt: skip
def test_a_config_with_one_arbitrary_value_loads_or_is_refused(folder, saved, key, value):
    (folder / "config.json").write_bytes((saved / "config.json").read_bytes())
    edit_config(folder, **{key: value})
    assert in_order(load, folder)


@FUZZ
@given(data=st.data())
def test_a_cut_gguf_file_is_refused(gguf_file, tmp_path, data):
    whole = gguf_file.read_bytes()
    cut = data.draw(st.one_of(st.integers(0, len(whole) - 33), st.integers(0, 400)))
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:cut])
    refused(path, "cut.gguf")


@settings(FUZZ, max_examples=60)
@given(data=st.data())
def test_a_gguf_file_with_changed_bytes_loads_or_is_refused(gguf_file, tmp_path, data):
    content = bytearray(gguf_file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed.gguf"
    path.write_bytes(content)
    assert in_order(check_gguf, path)


@settings(FUZZ, max_examples=8)
@given(at=st.integers(0, 1500), value=st.integers(0, 255))
def test_loading_a_changed_gguf_file_raises_nothing_else(gguf_file, tmp_path, at, value):
    content = bytearray(gguf_file.read_bytes())
    content[at] = value
    path = tmp_path / "changed.gguf"
    path.write_bytes(content)
    assert in_order(load, path)


@FUZZ
@given(content=st.binary(max_size=300))
def test_arbitrary_bytes_are_no_gguf_file(tmp_path, content):
    path = tmp_path / "random.gguf"
    path.write_bytes(content)
    refused(path, "random.gguf")


@pytest.mark.parametrize("kind", [9, 8, 4])
def test_a_gguf_file_that_announces_endless_values_is_refused_at_once(tmp_path, kind):
    key = b"tokens"
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    content += struct.pack("<IIQ", 9, kind, 2**60)
    path = tmp_path / "endless.gguf"
    path.write_bytes(content)
    refused(path, "ends early")
