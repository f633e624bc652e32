"""Captures of what lies before rotation, and of some rows, layers and heads."""

import threading

import numpy as np
import pytest
import torch

from headatlas.interp import hook_values
from headatlas.interp.attach import Edit, attach
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from headatlas.interp.tokens import Tokens

IDS = torch.tensor([[5, 9, 11, 9, 40, 7], [3, 4, 5, 6, 7, 8]])


class TestBeforeRotation:
    """q and k of a rotary model are what its projections put out."""

    @pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "qwen3"])
    def test_projections(self, tiny, family):
        model, own = tiny(family), {}
        attention = model.model.layers[1].self_attn
        for name in ("q_proj", "k_proj"):
            layer = getattr(attention, name)
            layer.register_forward_hook(lambda m, a, out, name=name: own.update({name: out}))
        cache = capture(model, None, IDS, names_filter=["q", "k", "rot_q"])
        assert torch.equal(cache["q", 1].flatten(2), own["q_proj"])
        assert torch.equal(cache["k", 1].flatten(2), own["k_proj"])
        assert not torch.equal(cache["q", 1][:, 1:], cache["rot_q", 1][:, 1:])

    @pytest.mark.parametrize("family", ["llama", "phi3", "gpt_neox", "deepseek_v3"])
    def test_the_first_position_is_not_rotated(self, tiny, family):
        cache = capture(tiny(family), None, IDS, names_filter=["q", "k", "rot_q", "rot_k"])
        for kind in ("q", "k"):
            assert torch.equal(cache[kind, 1][:, 0], cache[f"rot_{kind}", 1][:, 0])
            # rotation keeps lengths
            norms = cache[kind, 1].norm(dim=-1), cache[f"rot_{kind}", 1].norm(dim=-1)
            torch.testing.assert_close(*norms)

    def test_heads_rows_and_one_token(self, tiny):
        model = tiny("deepseek_v3")
        full = capture(model, None, IDS, names_filter=["q", "k"])
        some = capture(model, None, IDS, names_filter=["q", "k"], heads=["L1H2"], rows=[4, 1])
        assert torch.equal(some["q", 1], full["q", 1][:, [4, 1]][:, :, [2]])
        assert torch.equal(some["k", 1], full["k", 1])
        one = capture(model, None, IDS[:1, :1], names_filter=["q", "k"])
        torch.testing.assert_close(one["k", 1], full["k", 1][:1, :1])

    def test_edits_act_after_them(self, tiny):
        edits = [Edit("z", lambda call, z: z * 0)]
        own = capture(tiny("llama"), None, IDS, names_filter="q")
        seen = capture(tiny("llama"), None, IDS, names_filter="q", edits=edits)
        assert torch.equal(own["q", 0], seen["q", 0])
        assert not torch.equal(own["q", 1], seen["q", 1])

    def test_another_thread_runs_the_model_meanwhile(self, tiny):
        """Its projections are not ours, even between our projections and our attention."""
        model = tiny("llama")
        own = capture(model, None, IDS, names_filter=["q", "k"])
        ran = []

        def other():
            with attach(model), torch.no_grad():
                ran.append(model(IDS + 1))

        def meanwhile(call, z):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            return z

        edits = [Edit("z", meanwhile)]
        seen = capture(model, None, IDS, names_filter=["q", "k"], edits=edits)
        assert len(ran) == 2
        for name in own:
            assert torch.equal(seen[name], own[name])

    def test_what_cannot_be_traced_is_refused(self, tiny):
        model = tiny("llama")
        model.model.layers[1].self_attn.q_proj.register_forward_hook(lambda m, a, out: out.tanh())
        with pytest.raises(InputError, match=r"hook_q does not exist at model\.layers\.1.*rot_q"):
            capture(model, None, IDS, names_filter="q")
        capture(model, None, IDS, names_filter=["q", "k"], layers=[0])
        capture(model, None, IDS, names_filter="k")


class TestRows:
    KINDS = ("q", "rot_q", "rot_k", "v", "attn_scores", "pattern", "z", "result")

    @pytest.mark.parametrize("heads", [None, ["L1H3", "L0H0"]])
    @pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "gemma3_text"])
    def test_rows_of_the_whole(self, tiny, family, heads):
        model = tiny(family, attn="eager")
        options = {"names_filter": self.KINDS, "heads": heads}
        full = capture(model, None, IDS, **options)
        some = capture(model, None, IDS, rows=[5, 0, -2], **options)
        assert some.rows == (5, 0, 4)
        assert full.rows is None
        for name in full:
            kind = name.rsplit("hook_", 1)[1]
            expected = full[name]
            if kind in ("attn_scores", "pattern"):
                expected = expected[:, :, [5, 0, 4]]
            elif kind not in ("rot_k", "v"):
                expected = expected[:, [5, 0, 4]]
            torch.testing.assert_close(some[name], expected)

    @pytest.mark.parametrize("heads", [None, ["L1H2"]])
    @pytest.mark.parametrize("target", ["q", "k", "scores", "pattern", "z"])
    def test_of_edited_attention(self, tiny, target, heads):
        model, edits = tiny("llama"), [Edit(target, lambda call, x: x * 0.5)]
        options = {"names_filter": ["attn_scores", "pattern"], "edits": edits, "heads": heads}
        full = capture(model, None, IDS, **options)
        some = capture(model, None, IDS, rows=[3], **options)
        for kind in ("attn_scores", "pattern"):
            torch.testing.assert_close(some[kind, 1], full[kind, 1][:, :, [3]])
        factor = 0.5 if target == "pattern" else 1.0
        torch.testing.assert_close(full["attn_scores", 1].softmax(-1) * factor, full["pattern", 1])

    def test_with_a_bias_and_padding(self, tiny):
        """T5's scores have a bias; padding makes other intervals."""
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[1, 4:] = False
        tokens = Tokens(IDS, mask, [["x"] * 6] * 2, False)
        for family in ("t5", "llama"):
            options = {"names_filter": ["attn_scores", "pattern"]}
            full = capture(tiny(family), None, tokens, **options)
            some = capture(tiny(family), None, tokens, rows=[2, 1], **options)
            for name in full:
                torch.testing.assert_close(some[name], full[name][:, :, [2, 1]])

    def test_no_pattern_is_written_out(self, tiny, monkeypatch):
        """Memory is that of the rows: nothing here makes N × N numbers."""
        model, shapes = tiny("llama"), []
        capture(model, None, IDS, names_filter=["pattern", "attn_scores"], rows=[3])
        soft = hook_values.masked_scores
        monkeypatch.setattr(
            hook_values, "masked_scores", lambda *a: shapes.append(soft(*a).shape) or soft(*a)
        )
        capture(model, None, IDS, names_filter="attn_scores", rows=[3], heads=["L0H1"])
        assert shapes == [(2, 1, 1, 6)]

    @pytest.mark.parametrize(
        ("rows", "message"),
        [([6], "0 to 5; got 6"), ([-7], "got -7"), ([], "rows is empty"), ([True], r"got .True")],
    )  # fmt: skip
    def test_refused(self, tiny, rows, message):
        with pytest.raises(InputError, match=message):
            capture(tiny("gpt2"), None, IDS, rows=rows)

    def test_rows_of_stacks_of_different_length(self, tiny):
        options = {"decoder_ids": IDS[:, :4], "names_filter": "z"}
        cache = capture(tiny("t5"), None, IDS, rows=[3], **options)
        assert cache["z", 0, "enc"].shape[1] == cache["z", 0, "dec"].shape[1] == 1
        with pytest.raises(InputError, match="0 to 3; got 4"):
            capture(tiny("t5"), None, IDS, rows=[4], **options)
        with pytest.raises(InputError, match="the stacks differ in length"):
            capture(tiny("t5"), None, IDS, rows=[-1], **options)


@pytest.mark.usefixtures("as_users_call")
class TestWrongKinds:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"layers": 0}, "layers must be a sequence of whole numbers.*got 0"),
            ({"layers": [0.5]}, "layers must be"),
            ({"layers": [True]}, "layers must be"),
            ({"rows": 1}, "rows must be a sequence of whole numbers.*got 1"),
            ({"rows": ["1"]}, "rows must be"),
            ({"rows": torch.tensor([0.0])}, "rows must be"),
            ({"rows": torch.tensor(1)}, "rows must be"),
            ({"rows": [[1]]}, "rows must be"),
            ({"names_filter": 5}, "names_filter is a name.*got 5"),
            ({"names_filter": [5]}, "names_filter holds 5"),
            ({"names_filter": [["z"]]}, "names_filter holds"),
            ({"heads": 5}, "heads are names such as 'L0H1', or a collection of them; got int"),
            ({"device": "abacus"}, "device 'abacus' cannot be used"),
            ({"device": 1.5}, "device 1.5 cannot be used"),
        ],
    )
    def test_one_clear_error(self, tiny, options, message):
        with pytest.raises(InputError, match=message):
            capture(tiny("llama"), None, IDS, **options)

    @pytest.mark.parametrize(
        "numbers", [torch.arange(2), np.arange(2), range(2), (np.int64(0), torch.tensor(1))]
    )
    def test_integers_of_any_kind(self, tiny, numbers):
        options = {"names_filter": ["z", "pattern"]}
        cache = capture(tiny("llama"), None, IDS, rows=numbers, layers=numbers, **options)
        assert cache.rows == (0, 1)
        assert all(type(row) is int for row in cache.rows)
        expected = capture(tiny("llama"), None, IDS, rows=[0, 1], layers=[0, 1], **options)
        for name in expected:
            assert torch.equal(cache[name], expected[name])

    @pytest.mark.parametrize("key", [("z",), (), ("z", 0, "", 1), 5, None, ["z", 0]])
    def test_keys(self, tiny, key):
        cache = capture(tiny("llama"), None, IDS, names_filter="z")
        with pytest.raises(InputError, match=r"a key is a name .*or \(kind, layer\)"):
            cache[key]
        assert key not in cache

    def test_one_head_and_heads_of_layers_left_out(self, tiny):
        cache = capture(tiny("llama"), None, IDS, heads=HeadId("", 1, 2), names_filter="z")
        assert cache.heads == (HeadId("", 1, 2),)
        options = {"heads": ["L0H1", "L1H0"], "layers": [1], "names_filter": "z"}
        assert capture(tiny("llama"), None, IDS, **options).heads == (HeadId("", 1, 0),)


class TestLayersAndDevice:
    def test_layers(self, tiny):
        cache = capture(tiny("llama"), None, IDS, layers=[1], names_filter="z")
        assert list(cache) == ["blocks.1.attn.hook_z"]

    @pytest.mark.parametrize("layer", [2, -3])
    def test_no_such_layer(self, tiny, layer):
        with pytest.raises(InputError, match=f"no attention layer {layer}; it has 0 to 1"):
            capture(tiny("llama"), None, IDS, layers=[layer])

    def test_layers_and_heads_that_do_not_meet(self, tiny):
        with pytest.raises(InputError, match="select nothing"):
            capture(tiny("llama"), None, IDS, layers=[0], heads=["L1H0"])

    def test_the_tensors_go_to_a_device(self, tiny):
        cache = capture(tiny("llama"), None, IDS, names_filter="z", device="meta")
        assert cache["z", 0].device.type == "meta"

    def test_a_file_is_no_device(self, tiny, tmp_path):
        with pytest.raises(InputError, match="device applies to tensors in memory"):
            capture(tiny("llama"), None, IDS, device="cpu", save=tmp_path / "a.safetensors")


def test_no_hook_stays(tiny):
    model = tiny("llama")

    def fail(call, z):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        capture(model, None, IDS, names_filter="q", edits=[Edit("z", fail)])
    assert not any(module._forward_hooks for module in model.modules())
