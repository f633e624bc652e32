import contextvars
import threading
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.attach import Edit
from headatlas.interp.errors import InputError
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig, Latent, QKNorm, Traits
from headatlas.interp.layers.hooks import attach_layers
from headatlas.interp.layers.rope import Rope

from .variants import LATENT, VARIANTS, configs, inputs, layer_of, paddings, plain

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


class TestOutput:
    @pytest.mark.parametrize("name", VARIANTS)
    @pytest.mark.parametrize("padded", ["none", "left", "right", "gap", "whole"])
    def test_equals_a_dense_softmax(self, name, padded):
        layer, x = layer_of(VARIANTS[name]), inputs(2, 9)
        padding = paddings(2, 9)[padded]
        torch.testing.assert_close(layer(x, padding=padding), plain(layer, x, padding), **TIGHT)
        torch.testing.assert_close(layer(x, padding=padding.long()), plain(layer, x, padding))

    @settings(max_examples=25, deadline=None)
    @given(config=configs(), pos=st.integers(1, 12), seed=st.integers(0, 99))
    def test_of_any_config(self, config, pos, seed):
        layer, x = layer_of(config, seed=seed), inputs(2, pos, seed=seed)
        torch.testing.assert_close(layer(x), plain(layer, x), **TIGHT)

    @pytest.mark.parametrize("window", [None, 1, 3, 50])
    def test_without_causality(self, window):
        layer = layer_of(AttentionConfig(16, 4, traits=Traits(causal=False, window=window)))
        x, padding = inputs(2, 9), paddings(2, 9)["left"]
        for given_padding in (None, padding):
            expected = plain(layer, x, given_padding)
            torch.testing.assert_close(layer(x, padding=given_padding), expected, **TIGHT)

    def test_float32_is_as_good_as_float32_gets(self):
        for config in VARIANTS.values():
            layer, x = layer_of(config), inputs(2, 9)
            exact = layer(x)
            single = layer.float()(x.float())
            eager = plain(layer, x.float())
            floor = torch.finfo(torch.float32).eps * exact.abs().max()
            error, limit = (single - exact).abs().max(), (eager - exact).abs().max()
            assert error <= 2 * limit + 2 * floor

    def test_not_contiguous(self):
        for config in VARIANTS.values():
            layer, x = layer_of(config), inputs(2, 9)
            strided = torch.stack([x, x], -1).transpose(0, 1)[..., 0].transpose(0, 1)
            assert not strided.is_contiguous()
            torch.testing.assert_close(layer(strided), layer(x), **TIGHT)

    def test_a_dead_row_gives_the_bias_alone(self):
        layer = layer_of(VARIANTS["normed"])
        out = layer(inputs(2, 9), padding=paddings(2, 9)["whole"])
        assert torch.equal(out[0], layer.b_O.expand(9, 16))
        assert not torch.equal(out[1], layer.b_O.expand(9, 16))

    def test_padding_changes_nothing_for_the_tokens(self):
        for config in VARIANTS.values():
            layer, x = layer_of(config), inputs(1, 5)
            noise = inputs(1, 3, seed=5)
            left = torch.cat([noise, x], 1)
            padding = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
            # RoPE's angles differ by float32 rounding, where positions count from elsewhere
            seen = layer(left, padding=padding)[:, 3:]
            torch.testing.assert_close(seen, layer(x), rtol=1e-4, atol=1e-5)
            positions = torch.tensor([[0, 0, 0, 0, 1, 2, 3, 4]])
            seen = layer(left, padding=padding, positions=positions)[:, 3:]
            torch.testing.assert_close(seen, layer(x), **TIGHT)
            right = torch.cat([x, noise], 1)
            seen = layer(right, padding=padding.flip(1))[:, :5]
            torch.testing.assert_close(seen, layer(x), **TIGHT)

    @pytest.mark.parametrize("name", VARIANTS)
    def test_gradients(self, name):
        layer, x = layer_of(VARIANTS[name]), inputs(1, 4).requires_grad_()
        weights = [x, *layer.parameters()]
        mine = torch.autograd.grad(layer(x).square().sum(), weights)
        expected = torch.autograd.grad(plain(layer, x).square().sum(), weights)
        for gradient, other in zip(mine, expected, strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-9)
            assert gradient.abs().sum() > 0 or torch.allclose(other, torch.zeros_like(other))


class TestVariants:
    @settings(max_examples=10, deadline=None)
    @given(seed=st.integers(0, 99), pos=st.integers(1, 10), kv=st.sampled_from([1, 2, 4]))
    def test_grouped_heads_are_heads_with_tied_weights(self, seed, pos, kv):
        """g = h is MHA, g = 1 is MQA: MHA whose key heads repeat within each group is GQA."""
        grouped = layer_of(AttentionConfig(16, 4, n_kv_heads=kv, rope=Rope()), seed=seed)
        full = HookedAttention(AttentionConfig(16, 4, rope=Rope())).double()
        weights = dict(grouped.state_dict())
        for name in ("qkv.W_K", "qkv.W_V"):
            heads = weights[name].unflatten(1, (kv, 4))
            weights[name] = heads.repeat_interleave(4 // kv, 1).flatten(1)
        full.load_state_dict(weights)
        x = inputs(2, pos, seed=seed)
        torch.testing.assert_close(grouped(x), full(x), **TIGHT)
        assert (grouped.config.kind, full.config.kind) == (
            {1: "MQA", 2: "GQA", 4: "MHA"}[kv],
            "MHA",
        )
        if kv == 4:
            assert torch.equal(grouped(x), full(x))

    def test_mla_without_position_is_mha_of_low_rank(self):
        """Keys are a linear map of the latent, and the rotary part adds what W_KR says."""
        latent = Latent(d_latent=10, d_rope=4, d_nope=4, d_value=4)
        mla = layer_of(AttentionConfig(16, 4, latent=latent))
        with torch.no_grad():
            mla.qkv.W_KR.zero_()
        x = inputs(2, 6)
        trace = mla.trace(x)
        c = mla.qkv(x, None).cache.latent
        torch.testing.assert_close(trace.k[..., :4], (c @ mla.qkv.W_UK).view(2, 6, 4, 4), **TIGHT)
        assert (trace.k[..., 4:] == 0).all()
        assert trace.v.shape[-1] == 4

    def test_scores_depend_on_the_distance_alone(self):
        for name in ("mqa", "gqa", "window", "mla"):
            layer = layer_of(VARIANTS[name])
            x = inputs(1, 1).expand(1, 6, 16)
            scores = layer.trace(x).attn_scores[0]
            for distance in range(3):
                diagonal = scores.diagonal(-distance, 1, 2)
                torch.testing.assert_close(
                    diagonal, diagonal[:, :1].expand_as(diagonal), rtol=1e-5, atol=1e-5
                )

    @pytest.mark.parametrize("name", VARIANTS)
    def test_result_sums_to_the_output(self, name):
        layer, x = layer_of(VARIANTS[name]), inputs(2, 7)
        trace = layer.trace(x, padding=paddings(2, 7)["left"])
        bias = 0 if layer.b_O is None else layer.b_O
        torch.testing.assert_close(trace.result.sum(2) + bias, trace.out, **TIGHT)
        expected = layer(x, padding=paddings(2, 7)["left"])
        torch.testing.assert_close(trace.out, expected, **TIGHT)

    def test_trace_holds_q_and_k_before_and_after_rotation(self):
        for name in ("mqa", "mla"):
            layer, x = layer_of(VARIANTS[name]), inputs(2, 7)
            trace = layer.trace(x)
            assert torch.equal(trace.q[:, 0], trace.rot_q[:, 0])  # position 0 does not turn
            assert not torch.allclose(trace.q[:, 1], trace.rot_q[:, 1])
            torch.testing.assert_close(
                trace.k.norm(dim=-1), trace.rot_k.norm(dim=-1), rtol=1e-6, atol=0
            )
            assert not torch.allclose(trace.k[:, 1], trace.rot_k[:, 1])


class TestHooks:
    def test_observers_see_what_the_trace_holds(self):
        for config in VARIANTS.values():
            layer, x, calls = layer_of(config), inputs(2, 7), []
            with attach_layers(layer, observers=[calls.append]) as sites:
                out = layer(x)
            [call], trace = calls, layer.trace(x)
            assert call.site == sites[0] == layer.site
            for mine, theirs in ((trace.rot_q, call.q), (trace.rot_k, call.k), (trace.v, call.v)):
                assert torch.equal(mine.transpose(1, 2), theirs)
            assert torch.equal(trace.z.transpose(1, 2), call.z)
            assert torch.equal(trace.pattern, call.pattern)
            assert torch.equal(layer.output(call.z), out)
            entropy = torch.special.entr(trace.pattern).sum(-1)
            if layer.sinks is None:
                torch.testing.assert_close(call.probe(entropy=True).entropy, entropy)

    @pytest.mark.parametrize("name", VARIANTS)
    def test_zero_z_is_zero_pattern_is_zero_weights(self, name):
        layer, x = layer_of(VARIANTS[name]), inputs(2, 7)
        keep = torch.tensor([1.0, 0, 1, 1], dtype=torch.float64)[:, None, None]
        outs = []
        for target in ("z", "pattern"):
            with attach_layers(layer, edits=[Edit(target, lambda _, value: value * keep)]):
                outs.append(layer(x))
        torch.testing.assert_close(outs[0], outs[1], **TIGHT)
        assert not torch.allclose(outs[0], layer(x))
        with torch.no_grad():
            layer.W_O.view(4, -1, 16)[1] = 0
        torch.testing.assert_close(outs[0], layer(x), **TIGHT)

    @pytest.mark.parametrize("name", ["gqa", "mla"])
    def test_edits_of_q_k_v_and_scores(self, name):
        """Each does what attention recomputed from its inputs says."""
        layer, x, calls = layer_of(VARIANTS[name]), inputs(2, 7), []
        plain_call = layer.trace(x)

        def change(_, value):
            return value * 0.5 + 0.1

        for target in ("q", "k", "v", "scores"):
            with attach_layers(layer, observers=[calls.append], edits=[Edit(target, change)]):
                out = layer(x)
            parts = {"q": plain_call.rot_q, "k": plain_call.rot_k, "v": plain_call.v}
            q, k, v = (change(None, part) if key == target else part for key, part in parts.items())
            group = 4 // k.shape[2]
            k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
            scores = torch.einsum("bihd,bjhd->bhij", q, k) * layer.config.scale
            scores = change(None, scores) if target == "scores" else scores
            hidden = torch.ones(7, 7).triu(1).bool()
            pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            torch.testing.assert_close(calls[-1].pattern, pattern, **TIGHT)
            z = torch.einsum("bhij,bjhd->bhid", pattern, v)
            torch.testing.assert_close(out, layer.output(z), **TIGHT)
            assert not torch.allclose(out, plain_call.out)

    def test_an_edit_may_tell_the_query_heads_of_a_group_apart(self):
        layer, x = layer_of(VARIANTS["gqa"]), inputs(2, 7)

        def silence(_, v):
            v = v.repeat_interleave(2, 1)
            return v * torch.tensor([1.0, 0, 1, 1], dtype=v.dtype)[:, None, None]

        with attach_layers(layer, edits=[Edit("v", silence)]):
            trace = layer.trace(x)
        assert trace.v.shape == (2, 7, 4, 6)
        own = layer.trace(x)
        assert (trace.z[:, :, 1] == 0).all()
        torch.testing.assert_close(trace.z[:, :, [0, 2, 3]], own.z[:, :, [0, 2, 3]], **TIGHT)

    def test_layers_in_a_module_are_numbered(self):
        model = torch.nn.ModuleList(layer_of(VARIANTS[name]) for name in ("mha", "mla"))
        seen = []
        with attach_layers(model, observers=[lambda call: seen.append(call.site)]) as sites:
            model[1](inputs(1, 3))
            model[0](inputs(1, 3))
        assert [(s.module, s.layer) for s in sites] == [("0", 0), ("1", 1)]
        assert seen == [sites[1], sites[0]]
        assert (sites[1].n_kv_heads, sites[1].d_head, sites[1].d_value) == (4, 10, 5)

    def test_blocks_nest_and_end_after_an_exception(self):
        layer, x, log = layer_of(VARIANTS["gqa"]), inputs(1, 3), []
        own = layer(x)
        double = Edit("z", lambda call, z: z * 2)
        plus = Edit("z", lambda call, z: z + 1)

        def fail(call):
            log.append(call.z)
            raise RuntimeError("stop here")

        with attach_layers(layer, edits=[double]):
            doubled = layer(x)
            with (
                pytest.raises(RuntimeError, match="stop here"),
                attach_layers(layer, observers=[fail], edits=[plus]),
            ):
                layer(x)
            torch.testing.assert_close(layer.output(log[0] - 1), doubled, **TIGHT)
            assert torch.equal(layer(x), doubled)
        assert torch.equal(layer(x), own)

    def test_a_thread_takes_part_only_with_the_context(self):
        layer, x = layer_of(VARIANTS["gqa"]), inputs(1, 3)
        own, seen, outs = layer(x), [], []

        def run():
            outs.append(layer(x))

        with attach_layers(layer, observers=[seen.append], edits=[Edit("z", lambda _, z: z * 2)]):
            for target in (run, partial(contextvars.copy_context().run, run)):
                thread = threading.Thread(target=target)
                thread.start()
                thread.join()
        assert torch.equal(outs[0], own)
        torch.testing.assert_close(outs[1], 2 * own, **TIGHT)
        assert len(seen) == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("build", "words"),
        [
            (lambda: AttentionConfig(10, 4), "does not split into 4 heads"),
            (lambda: AttentionConfig(16, 4, n_kv_heads=3), "multiple of n_kv_heads; got 4 and 3"),
            (lambda: AttentionConfig(16, 0), "n_heads must be a whole number.*got 0"),
            (lambda: AttentionConfig(16, 4, latent=LATENT, d_head=4), "Leave n_kv_heads"),
            (lambda: AttentionConfig(16, 4, d_head=5, rope=Rope()), "cannot turn 5"),
            (lambda: AttentionConfig(16, 4, rope=Rope(d_rotary=6)), "cannot turn 6"),
            (lambda: AttentionConfig(16, 4, rope=Rope(inv_freq=(1.0,))), "need 2 frequencies"),
            (
                lambda: AttentionConfig(16, 4, latent=LATENT, rope=Rope(d_rotary=2)),
                "all d_rope = 4",
            ),
            (
                lambda: AttentionConfig(16, 4, latent=LATENT, traits=Traits(qk_norm=QKNorm())),
                "norms of its own",
            ),
        ],
    )
    def test_config(self, build, words):
        with pytest.raises(InputError, match=words):
            build()

    def test_inputs(self):
        layer = layer_of(VARIANTS["gqa"])
        with pytest.raises(InputError, match=r"d_model = 16\]; got \[1, 3, 8\]"):
            layer(inputs(1, 3, 8))
        with pytest.raises(InputError, match=r"float32, the layer torch.float64"):
            layer(inputs(1, 3).float())
        with pytest.raises(InputError, match=r"padding must be .*\[1, 3\].*got \[1, 4\]"):
            layer(inputs(1, 3), padding=torch.ones(1, 4, dtype=torch.bool))
        with pytest.raises(InputError, match=r"positions must be .*got \[1, 2\]"):
            layer._check_input(inputs(1, 3), torch.zeros(1, 2, dtype=torch.long))
