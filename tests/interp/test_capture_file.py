import json
import logging
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from headatlas.interp import capture as capture_module
from headatlas.interp import capture_file
from headatlas.interp.attach import Edit
from headatlas.interp.capture import capture, load_cache
from headatlas.interp.capture_file import Spec, Text, stream_cache
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from headatlas.interp.tokens import Tokens

IDS = torch.tensor([[5, 9, 11, 9, 40, 7], [3, 4, 5, 6, 7, 8]])
EVERYTHING = {"names_filter": lambda name: True}


@pytest.fixture(scope="module")
def saved(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("cache") / "run.safetensors"
    capture(tiny("gpt2"), None, IDS, names_filter=["pattern", "z"], heads=["L1H2"], save=path)
    return path


def rewrite_without_decoder_length(path):
    """Make it a file as the first version of this schema wrote it."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
        metadata = file.metadata()
    known = json.loads(metadata["headatlas_cache"])
    del known["decoder_length"]
    path.unlink()
    save_file(tensors, path, metadata | {"headatlas_cache": json.dumps(known)})


class TestRoundTrip:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    @pytest.mark.parametrize("family", ["llama", "t5", "gpt_neox"])
    def test_a_file_holds_what_memory_would(self, tiny, tmp_path, family, dtype):
        model, path = tiny(family, dtype=dtype), tmp_path / "run.safetensors"
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[1, 4:] = False
        tokens = Tokens(IDS, mask, [["é<b>"] * 6, [str(i) for i in range(6)]], False)
        own = capture(model, None, tokens, **EVERYTHING)
        seen = capture(model, None, tokens, save=path, **EVERYTHING)
        for cache in (seen, load_cache(path)):
            assert list(cache) == list(own)
            for name in own:
                assert cache[name].dtype == own[name].dtype
                assert torch.equal(cache[name], own[name])
            assert cache.tokens == own.tokens
            assert torch.equal(cache.token_ids, own.token_ids)
            assert torch.equal(cache.mask, own.mask)
            assert (cache.heads, cache.rows) == (None, None)

    def test_heads_and_rows_come_back(self, tiny, tmp_path):
        path = tmp_path / "run.safetensors"
        options = {"heads": ["L1H3", "L0H1"], "rows": [5, -6], "names_filter": ["pattern", "z"]}
        cache = capture(tiny("llama"), None, IDS, save=path, **options)
        assert cache.heads == (HeadId("", 1, 3), HeadId("", 0, 1))
        assert cache.rows == (5, 0)
        assert cache["pattern", 0].shape == (2, 1, 2, 6)
        assert ("pattern", 1) in cache
        assert len(cache) == 4
        with pytest.raises(InputError, match="was not captured"):
            cache["v", 0]

    def test_files_from_before_decoder_lengths(self, tiny, tmp_path):
        """Of one stack they load as ever; of a decoder the error says what to do."""
        for family, kind in (("llama", "pattern"), ("t5", "enc.blocks.0.attn.hook_z")):
            path = tmp_path / f"{family}.safetensors"
            own = capture(tiny(family), None, IDS, names_filter=kind, save=path)
            rewrite_without_decoder_length(path)
            old = load_cache(path)
            assert list(old) == list(own)
            assert old.tokens == own.tokens
            assert all(torch.equal(old[name], own[name]) for name in own)
        capture(tiny("t5"), None, IDS, names_filter="z", save=path)
        rewrite_without_decoder_length(path)
        with pytest.raises(InputError, match="is of a decoder, whose decoder_length it does not"):
            load_cache(path)

    def test_it_is_an_ordinary_safetensors_file(self, saved):
        with safe_open(saved, framework="pt") as file:
            assert file.metadata()["format"] == "pt"
            assert file.get_tensor("token_ids").tolist() == IDS.tolist()

    def test_edits_that_change_nothing_announced(self, tiny, tmp_path):
        edits = [Edit("z", lambda call, z: z * 0)]
        path = tmp_path / "run.safetensors"
        cache = capture(tiny("gpt2"), None, IDS, names_filter="z", edits=edits, save=path)
        assert not cache["z", 1].any()


class TestWriting:
    def test_an_error_leaves_what_was_there(self, tiny, tmp_path):
        path = tmp_path / "run.safetensors"
        path.write_text("older")

        def fail(call, z):
            if call.site.layer == 1:
                raise RuntimeError("stop")
            return z

        with pytest.raises(RuntimeError, match="stop"):
            capture(tiny("gpt2"), None, IDS, edits=[Edit("z", fail)], save=path)
        assert path.read_text() == "older"
        assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"]

    def test_memory_is_that_of_one_layer(self, tiny, tmp_path, monkeypatch):
        """Each tensor is on the disk before the next layer's is made."""
        order = []
        write = capture_file._write

        def note(file, start, tensor):
            order.append(tensor.shape)
            write(file, start, tensor)

        model = tiny("gpt2")
        monkeypatch.setattr(capture_file, "_write", note)
        edits = [Edit("pattern", lambda call, p: order.append(call.site.layer) or p)]
        capture(model, None, IDS, names_filter="pattern", edits=edits, save=tmp_path / "a.st")
        shape = torch.Size([2, 4, 6, 6])
        assert order == [torch.Size([2, 6]), torch.Size([2, 6]), 0, shape, 1, shape]

    def test_no_room(self, tiny, tmp_path, monkeypatch):
        usage = type("Usage", (), {"free": 100})
        monkeypatch.setattr(capture_file.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(InputError, match=r"the disk has 0\.0 GiB left"):
            capture(tiny("gpt2"), None, IDS, save=tmp_path / "a.safetensors")
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_is_missing(self, tiny, tmp_path):
        with pytest.raises(InputError, match="does not exist"):
            capture(tiny("gpt2"), None, IDS, save=tmp_path / "none" / "a.safetensors")

    @pytest.mark.parametrize(
        ("name", "tensor", "message"),
        [
            ("b", torch.zeros(2), "not as one as announced"),
            ("a", torch.zeros(3), r"came as \(3,\) torch.float32, not as \(2,\)"),
            ("a", torch.zeros(2, dtype=torch.float64), "torch.float64, not as"),
            (None, None, "a did not occur"),
        ],
    )
    def test_only_what_was_announced(self, tmp_path, name, tensor, message):
        text = Text([["x"]], torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1) > 0, None, None)
        given = {} if name is None else {name: tensor}

        def write():
            with stream_cache(tmp_path / "a", [Spec("a", (2,), torch.float32)], text) as put:
                for one in given:
                    put(one, given[one])

        with pytest.raises(InputError, match=message):
            write()
        assert list(tmp_path.iterdir()) == []

    def test_a_text_too_long_for_the_header(self, tiny, tmp_path, monkeypatch):
        monkeypatch.setattr(capture_file, "_MAX_HEADER", 100)
        with pytest.raises(InputError, match="too long for one file"):
            capture(tiny("gpt2"), None, IDS, save=tmp_path / "a.safetensors")


class TestSize:
    def test_what_is_large_is_said_before(self, tiny, monkeypatch, caplog):
        monkeypatch.setattr(capture_module, "_LARGE", 100)
        with caplog.at_level(logging.WARNING, "headatlas"):
            capture(tiny("gpt2"), None, IDS, names_filter="z")
        assert [record.getMessage() for record in caplog.records] == [
            "capturing 2 tensors, 0.0 GiB, to memory"
        ]

    def test_others_announce_alike(self, monkeypatch, caplog):
        monkeypatch.setattr(capture_module, "_LARGE", 100)
        with caplog.at_level(logging.WARNING, "headatlas"):
            capture_module.announce(100, "keeping 1 tensor")
            capture_module.announce(3 << 29, "keeping 2 tensors")
        assert [record.getMessage() for record in caplog.records] == [
            "keeping 2 tensors, 1.5 GiB, to memory"
        ]

    def test_what_is_small_is_not(self, tiny, caplog):
        capture(tiny("gpt2"), None, IDS, names_filter="z")
        assert caplog.records == []

    def test_a_file_may_be_larger_than_memory(self, tiny, tmp_path, monkeypatch):
        monkeypatch.setattr(capture_module, "_IN_MEMORY", 1000)
        with pytest.raises(InputError, match="write them to a file with save="):
            capture(tiny("gpt2"), None, IDS)
        capture(tiny("gpt2"), None, IDS, save=tmp_path / "a.safetensors")
        with pytest.raises(InputError, match="over max_bytes"):
            capture(tiny("gpt2"), None, IDS, save=tmp_path / "a.safetensors", max_bytes=1000)

    def test_the_file_is_as_large_as_announced(self, saved):
        size = 2 * 1 * 6 * 6 * 4 + 2 * 6 * 1 * 8 * 4 + IDS.numel() * 9
        header = int.from_bytes(saved.read_bytes()[:8], "little")
        assert saved.stat().st_size == 8 + header + size


def broken(saved, folder, change):
    """The saved file with its metadata changed."""
    with safe_open(saved, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        known = json.loads(file.metadata()["headatlas_cache"])
    known = change(known, tensors)
    text = known if isinstance(known, str) else json.dumps(known)
    path = folder / "broken.safetensors"
    save_file(tensors, path, metadata={"headatlas_cache": text})
    return path


class TestHostileFiles:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda k, t: {**k, "schema_version": 2}, "schema_version must be 1; got '2'"),
            (lambda k, t: {**k, "schema_version": True}, "schema_version must be 1; got 'True'"),
            (lambda k, t: {**k, "heads": None, "rows": [0]}, "does not fit the text and rows"),
            (lambda k, t: {**k, "heads": ["L0H3"]}, "L0H3 was kept, but holds nothing"),
            (lambda k, t: {**k, "heads": ["L1H2", "L1H3"]}, "holds 1 heads; the file says 2"),
            (lambda k, t: {**k, "heads": ["L1H2", "L99H99"]}, "L99H99 was kept, but"),
            (lambda k, t: {**k, "heads": []}, "expected a list of str"),
            (lambda k, t: {**k, "rows": [-5]}, "rows must be positions 0 to 5"),
            (lambda k, t: {**k, "rows": [10**30] * 6}, "rows must be positions 0 to 5"),
            (lambda k, t: {**k, "rows": [0, 1]}, "does not fit the text and rows"),
            (lambda k, t: {**k, "rows": []}, "expected a list of int"),
            (lambda k, t: {**k, "decoder_length": -1}, "decoder_length must be"),
            (
                lambda k, t: t.update({"blocks.1.attn.hook_q": torch.zeros(2, 6, 2, 8)}) or k,
                "hook_q holds 2 heads; the file says 1",
            ),
            (
                lambda k, t: t.update({"dec.blocks.1.attn.hook_v": torch.zeros(2, 6, 2, 8)}) or k,
                "is of a decoder, whose",
            ),
            (
                lambda k, t: t.update({"blocks.1.attn.hook_v": torch.zeros(2, 5, 2, 8)}) or k,
                "does not fit the text and rows",
            ),
            (lambda k, t: {**k, "tokens": [["a"]]}, "2 lists of 6 strings"),
            (lambda k, t: {**k, "tokens": [[1] * 6] * 2}, "2 lists of 6 strings"),
            (lambda k, t: {**k, "heads": ["<script>"]}, "a head is written"),
            (lambda k, t: {**k, "heads": "L1H2"}, "expected a list of str"),
            (lambda k, t: {**k, "rows": [True]}, "expected a list of int"),
            (lambda k, t: "[" * 100_000, "recursion"),
            (lambda k, t: "{", "not a whole cache"),
            (lambda k, t: "7", "not a whole cache"),
            (lambda k, t: t.pop("mask") is None or k, "not a whole cache"),
            (lambda k, t: t.update(mask=t["mask"].int()) or k, "do not fit together"),
            (lambda k, t: t.update(token_ids=torch.zeros(2, 7).long()) or k, "do not fit"),
            (lambda k, t: t.update(evil=torch.zeros(2, 1, 1, 1)) or k, "is called 'evil'"),
            (
                lambda k, t: t.update({"blocks.0.attn.hook_z": torch.zeros(2, 3)}) or k,
                r"hook_z' with shape \[2, 3\]",
            ),
            (
                lambda k, t: t.update({"blocks.0.attn.hook_z": torch.zeros(2, 6, 1, 8).int()}) or k,
                "holds I32, not floating-point",
            ),
        ],
    )
    def test_wrong_content(self, saved, tmp_path, change, message):
        with pytest.raises(InputError, match=message):
            load_cache(broken(saved, tmp_path, change))

    def test_heads_of_a_whole_tensor_are_not_a_few(self, tiny, tmp_path):
        """Patching would take the first head's values for the fourth head's."""
        path = tmp_path / "run.safetensors"
        capture(tiny("gpt2"), None, IDS, names_filter="z", layers=[0], save=path)
        load_cache(broken(path, tmp_path, lambda k, t: k))
        with pytest.raises(InputError, match="hook_z holds 4 heads; the file says 1"):
            load_cache(broken(path, tmp_path, lambda k, t: {**k, "heads": ["L0H3"]}))

    @pytest.mark.parametrize("decoder", [4, 9])
    def test_rows_of_two_stacks(self, tiny, tmp_path, decoder):
        path, ids = tmp_path / "run.safetensors", torch.arange(2 * decoder).reshape(2, decoder)
        options = {"decoder_ids": ids, "rows": [3], "names_filter": ["z", "k", "pattern"]}
        assert capture(tiny("t5"), None, IDS, save=path, **options).rows == (3,)
        last = min(decoder, 6) - 1
        load_cache(broken(path, tmp_path, lambda k, t: {**k, "rows": [last]}))
        with pytest.raises(InputError, match=f"0 to {last}"):
            load_cache(broken(path, tmp_path, lambda k, t: {**k, "rows": [last + 1]}))

    @settings(
        max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(data=st.data())
    def test_any_metadata_fits_the_tensors_or_is_refused(self, saved, tmp_path, data):
        odd = st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3)
        )
        heads = st.sampled_from(["L1H2", "L1H0", "L0H3", "L99H99", "enc.L1H2", "L1KV2"])
        values = {
            "heads": st.one_of(odd, st.lists(st.one_of(heads, odd), max_size=2)),
            "rows": st.one_of(
                odd, st.lists(st.one_of(st.integers(-1, 6), odd), min_size=5, max_size=7)
            ),
            "schema_version": st.one_of(odd, st.just(1)),
            "decoder_length": st.one_of(odd, st.integers(1, 7)),
            "tokens": st.one_of(odd, st.just([["a"] * 6] * 2), st.lists(odd, max_size=2)),
        }
        chosen = data.draw(st.sets(st.sampled_from(sorted(values)), min_size=1))
        changes = {key: data.draw(values[key]) for key in sorted(chosen)}
        path = broken(saved, tmp_path, lambda k, t: {**k, **changes})
        message, cache = None, None
        try:
            cache = load_cache(path)
        except InputError as error:
            message = str(error)
        if cache is None:
            assert "not a whole cache file" in message
            return
        assert changes.get("schema_version", 1) == 1
        assert type(changes.get("schema_version", 1)) is int
        rows, layer = range(6) if cache.rows is None else cache.rows, cache["z", 1]
        assert all(type(row) is int and 0 <= row < 6 for row in rows)
        assert len(rows) == layer.shape[1]
        assert layer.shape[2] == 1
        if cache.heads is not None:
            assert [(head.site, head.layer) for head in cache.heads] == [("", 1)]

    def test_other_safetensors(self, tmp_path):
        save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
        with pytest.raises(InputError, match="says nothing of a capture"):
            load_cache(tmp_path / "model.safetensors")

    @pytest.mark.parametrize("name", ["missing", ".", "nul\0"])
    def test_no_file(self, tmp_path, name):
        with pytest.raises(InputError, match="no file"):
            load_cache(tmp_path / name)

    @settings(
        max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(data=st.data())
    def test_any_damage_is_one_clear_error_or_none(self, saved, tmp_path, data):
        whole = bytearray(saved.read_bytes())
        header = int.from_bytes(whole[:8], "little")
        kind = data.draw(st.sampled_from(["cut", "flip", "length", "random"]))
        if kind == "cut":
            whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
        elif kind == "flip":
            for _ in range(data.draw(st.integers(1, 4))):
                whole[data.draw(st.integers(0, header + 7))] = data.draw(st.integers(0, 255))
        elif kind == "length":
            whole[:8] = struct.pack("<Q", data.draw(st.integers(0, 2**64 - 1)))
        else:
            whole = bytearray(data.draw(st.binary(max_size=200)))
        path = tmp_path / "damaged.safetensors"
        path.write_bytes(whole)
        message = None
        try:
            cache = load_cache(path)
        except InputError as error:
            message = str(error)
        if message is None:
            assert kind == "flip"
            for name in cache:
                assert cache[name].shape[0] == 2
        else:
            assert "not a whole cache file" in message
            assert "\n" not in message
