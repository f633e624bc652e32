import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.attach import Edit
from headatlas.interp.errors import InputError
from headatlas.interp.layers.config import AttentionConfig, Latent, Traits
from headatlas.interp.layers.hooks import attach_layers
from headatlas.interp.layers.kv_cache import KVCache, LatentCache
from headatlas.interp.layers.rope import Rope

from .variants import LATENT_VARIANTS, VARIANTS, configs, inputs, layer_of, paddings, splits

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def decode(layer, x, pieces, *, padding=None, absorb=False):
    """The outputs of `x` decoded in pieces, and the last cache."""
    outs, cache, start = [], None, 0
    for n in pieces:
        seen = None if padding is None else padding[:, : start + n]
        part = x[:, start : start + n]
        out, cache = layer.decode(part, cache, padding=seen, absorb=absorb)
        outs.append(out)
        start += n
    return torch.cat(outs, 1), cache


@settings(max_examples=30, deadline=None)
@given(
    config=configs(),
    pieces=splits(9),
    padded=st.sampled_from(["none", "left", "right", "gap", "whole"]),
    seed=st.integers(0, 99),
)
def test_decoding_in_pieces_equals_the_full_forward(config, pieces, padded, seed):
    layer, x = layer_of(config, seed=seed), inputs(2, 9, seed=seed)
    padding = paddings(2, 9)[padded]
    for absorb in (False, True)[: 1 + (config.latent is not None)]:
        out, _ = decode(layer, x, pieces, padding=padding, absorb=absorb)
        torch.testing.assert_close(out, layer(x, padding=padding), **TIGHT)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("padded", ["left", "right", "gap", "whole"])
def test_decoding_with_padding(name, padded):
    layer, x, padding = layer_of(VARIANTS[name]), inputs(2, 9), paddings(2, 9)[padded]
    out, _ = decode(layer, x, [4, 1, 1, 3], padding=padding)
    torch.testing.assert_close(out, layer(x, padding=padding), **TIGHT)


@pytest.mark.parametrize("name", LATENT_VARIANTS)
def test_absorbed_equals_up_projected(name):
    layer, x = layer_of(VARIANTS[name]), inputs(2, 12)
    seen = {}
    for absorb in (False, True):
        calls = []
        with attach_layers(layer, observers=[calls.append]) as sites:
            out, _ = decode(layer, x, [5, 1, 1, 5], absorb=absorb)
        seen[absorb] = out, calls
    torch.testing.assert_close(seen[True][0], seen[False][0], **TIGHT)
    for inside, written in zip(seen[True][1], seen[False][1], strict=True):
        torch.testing.assert_close(inside.pattern, written.pattern, **TIGHT)
        torch.testing.assert_close(inside.lse, written.lse, **TIGHT)
        torch.testing.assert_close(layer.qkv.from_latent(inside.z), written.z, **TIGHT)
        assert written.site == sites[0]
        shape = (inside.site.n_kv_heads, inside.site.d_head, inside.site.d_value)
        assert shape == (1, 14, 10) == (inside.k.shape[1], inside.k.shape[3], inside.v.shape[3])


@pytest.mark.parametrize("target", ["z", "pattern"])
def test_absorbed_edits_of_a_head_do_the_same(target):
    layer, x = layer_of(VARIANTS["mla"]), inputs(2, 6)
    keep = torch.tensor([1.0, 0, 1, 1], dtype=torch.float64)[:, None, None]
    with attach_layers(layer, edits=[Edit(target, lambda _, value: value * keep)]):
        whole = layer(x)
        absorbed, _ = decode(layer, x, [2, 4], absorb=True)
    torch.testing.assert_close(absorbed, whole, **TIGHT)
    assert not torch.allclose(whole, layer(x))


@settings(max_examples=15, deadline=None)
@given(
    n_layers=st.integers(1, 3),
    kv=st.sampled_from([1, 2, 4]),
    d_head=st.integers(1, 9),
    pieces=splits(7),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_bytes_of_keys_and_values(n_layers, kv, d_head, pieces, dtype):
    """2 · L · g · d_k · b per token."""
    config = AttentionConfig(16, 4, n_kv_heads=kv, d_head=d_head)
    layers = [layer_of(config, seed=i, dtype=dtype) for i in range(n_layers)]
    with torch.no_grad():
        caches = [decode(layer, inputs(2, 7, dtype=dtype), pieces)[1] for layer in layers]
    assert sum(cache.nbytes for cache in caches) == 2 * 7 * (
        2 * n_layers * kv * d_head * dtype.itemsize
    )


@settings(max_examples=15, deadline=None)
@given(
    n_layers=st.integers(1, 3),
    d_latent=st.integers(1, 9),
    d_rope=st.sampled_from([2, 4]),
    rope=st.booleans(),
    pieces=splits(7),
    absorb=st.booleans(),
)
def test_bytes_of_latents(n_layers, d_latent, d_rope, rope, pieces, absorb):
    """L · (d_c + d_R) · b per token, whatever the heads."""
    latent = Latent(d_latent, d_rope, d_nope=3, d_value=5)
    config = AttentionConfig(16, 4, latent=latent, rope=Rope() if rope else None)
    layers = [layer_of(config, seed=i) for i in range(n_layers)]
    caches = [decode(layer, inputs(2, 7), pieces, absorb=absorb)[1] for layer in layers]
    assert sum(cache.nbytes for cache in caches) == 2 * 7 * n_layers * (d_latent + d_rope) * 8


@pytest.mark.parametrize("window", [1, 2, 5, 50])
@pytest.mark.parametrize("latent", [None, Latent(10, 4, 6, 5)])
def test_a_window_bounds_the_cache(window, latent):
    config = AttentionConfig(16, 4, latent=latent, rope=Rope(), traits=Traits(window=window))
    layer, x = layer_of(config), inputs(1, 9)
    padding = paddings(1, 9)["left"]
    out, cache = decode(layer, x, [3, 1, 4, 1], padding=padding)
    torch.testing.assert_close(out, layer(x, padding=padding), **TIGHT)
    per_token = 8 * (14 if latent else 2 * 16)
    assert cache.nbytes == min(9, window - 1) * per_token
    assert (cache.n_keys, cache.n_seen) == (min(9, window - 1), 9)


def test_a_cache_is_a_value():
    layer, x = layer_of(VARIANTS["window"]), inputs(2, 6)
    _, cache = layer.decode(x[:, :4])
    before = cache.k.clone()
    first, grown = layer.decode(x[:, 4:5], cache)
    again, _ = layer.decode(x[:, 4:5], cache)
    assert torch.equal(first, again)
    assert torch.equal(cache.k, before)
    assert (cache.n_seen, grown.n_seen) == (4, 5)


def test_no_tokens():
    for config in VARIANTS.values():
        layer, x = layer_of(config), inputs(2, 3)
        out, cache = layer.decode(x[:, :0])
        assert (out.shape, cache.n_seen) == ((2, 0, 16), 0)
        out, _ = layer.decode(x, cache)
        torch.testing.assert_close(out, layer(x), **TIGHT)


def held(cache):
    """What the fields of a cache hold, tensors as copies."""
    return {
        name: value.clone() if name != "dropped" else value for name, value in vars(cache).items()
    }


@pytest.mark.parametrize("window", [None, 1, 2, 5])
@pytest.mark.parametrize("latent", [None, Latent(10, 4, 6, 5)])
@pytest.mark.parametrize("padded", ["none", "left", "gap", "whole"])
def test_an_empty_step_changes_nothing(window, latent, padded):
    config = AttentionConfig(16, 4, latent=latent, rope=Rope(), traits=Traits(window=window))
    layer, x, padding = layer_of(config), inputs(2, 7), paddings(2, 7)[padded]
    observed = []
    _, cache = layer.decode(x[:, :4], padding=padding[:, :4])
    before = held(cache)
    with attach_layers(layer, observers=[lambda call: observed.append(call.probe(top=True))]):
        for absorb in (False, True)[: 1 + (latent is not None)]:
            out, after = layer.decode(x[:, 4:4], cache, padding=padding[:, :4], absorb=absorb)
            assert out.shape == (2, 0, 16)
            assert observed[-1].top_key.shape == (2, 4, 0)
            for seen in (held(cache), held(after)):
                torch.testing.assert_close(seen, before, rtol=0, atol=0)
    rest, _ = layer.decode(x[:, 4:], after, padding=padding)
    torch.testing.assert_close(rest, layer(x, padding=padding)[:, 4:], **TIGHT)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_an_empty_first_chunk_with_padding(window):
    layer = layer_of(AttentionConfig(16, 4, rope=Rope(), traits=Traits(window=window)))
    x, padding = inputs(2, 5), paddings(2, 5)["left"]
    assert layer(x[:, :0], padding=padding[:, :0]).shape == (2, 0, 16)
    assert layer.trace(x[:, :0], padding=padding[:, :0]).pattern.shape == (2, 4, 0, 0)
    for target in ("scores", "pattern"):
        with attach_layers(layer, edits=[Edit(target, lambda _, value: value * 0.5)]):
            assert layer(x[:, :0], padding=padding[:, :0]).shape == (2, 0, 16)
    out, cache = decode(layer, x, [0, 3, 2], padding=padding)
    torch.testing.assert_close(out, layer(x, padding=padding), **TIGHT)
    with pytest.raises(InputError, match=r"\[2, 5\], the cached tokens included; got \[2, 0\]"):
        layer.decode(x[:, :0], cache, padding=padding[:, :0])


@pytest.mark.parametrize("target", ["q", "k", "v", "scores", "pattern", "z"])
@pytest.mark.parametrize("name", ["gqa", "mla"])
def test_edits_in_decoding_do_what_they_do_at_once(name, target):
    layer, x = layer_of(VARIANTS[name]), inputs(2, 6)
    with attach_layers(layer, edits=[Edit(target, lambda _, value: value * 0.3)]):
        out, _ = decode(layer, x, [3, 1, 2])
        torch.testing.assert_close(out, layer(x), **TIGHT)
    assert not torch.allclose(out, layer(x))


def test_a_call_knows_its_columns():
    layer, x, seen = layer_of(VARIANTS["window"]), inputs(2, 9), []
    with attach_layers(layer, observers=[lambda call: seen.append(call.where)]):
        decode(layer, x, [4, 1, 4])
    assert [(where.query, where.key) for where in seen] == [(0, 0), (4, 2), (5, 3)]


def test_edits_do_not_reach_the_cache():
    layer, x = layer_of(VARIANTS["gqa"]), inputs(2, 6)
    edits = [Edit(target, lambda _, value: value * 0) for target in ("k", "v", "z")]
    with attach_layers(layer, edits=edits):
        _, edited = layer.decode(x)
    _, plain = layer.decode(x)
    assert torch.equal(edited.k, plain.k)
    assert torch.equal(edited.v, plain.v)


class TestErrors:
    def test_not_causal(self):
        layer = layer_of(AttentionConfig(16, 4, traits=Traits(causal=False)))
        with pytest.raises(InputError, match="not causal"):
            layer.decode(inputs(1, 3))

    def test_another_cache(self):
        x = inputs(1, 3)
        _, keys = layer_of(VARIANTS["mha"]).decode(x)
        _, latents = layer_of(VARIANTS["mla"]).decode(x)
        assert isinstance(keys, KVCache)
        assert isinstance(latents, LatentCache)
        with pytest.raises(InputError, match="MLA decodes with a LatentCache; got KVCache"):
            layer_of(VARIANTS["mla"]).decode(x, keys)
        with pytest.raises(InputError, match=r"holds tensors \[1, 4, 3, 4\].*\[1, 2, 3, 6\]"):
            layer_of(VARIANTS["gqa"]).decode(x, keys)
        with pytest.raises(InputError, match=r"holds tensors \[1, 4, 3, 4\].*\[2, 4, 3, 4\]"):
            layer_of(VARIANTS["mha"]).decode(inputs(2, 3), keys)
        with pytest.raises(InputError, match="cannot add a LatentCache to a KVCache"):
            keys.extend(latents)
        with pytest.raises(InputError, match=r"holds torch.float64.*now gives torch.float32"):
            layer_of(VARIANTS["mha"]).float().decode(x.float(), keys)

    def test_absorption_without_a_latent(self):
        with pytest.raises(InputError, match="absorb is for MLA; this layer is GQA"):
            layer_of(VARIANTS["gqa"]).decode(inputs(1, 3), absorb=True)
