"""The formulas of cost: values by hand, and what must hold for every shape."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.circuits.cost.devices import BYTES, DEVICES, find_device
from headatlas.circuits.cost.kv_cache import cache_bytes, cache_variants
from headatlas.circuits.cost.operations import Operation
from headatlas.circuits.cost.shapes import AttentionShapes, LatentShape, LayerShape, uniform_shapes
from headatlas.circuits.cost.totals import crossover, decode_cost, prefill_cost
from headatlas.interp.errors import InputError

few = st.integers(1, 12)


@st.composite
def layer_shapes(draw, kinds=("plain", "latent")):
    groups, width = draw(few), draw(st.integers(2, 16))
    window = draw(st.none() | st.integers(1, 40))
    if draw(st.sampled_from(kinds)) == "latent":
        latent = LatentShape(draw(few), draw(st.integers(0, width - 1)), draw(st.none() | few))
        return LayerShape(draw(few), groups, groups, width, draw(few), window, latent=latent)
    return LayerShape(draw(few), groups * draw(few), groups, width, draw(few), window)


some_layers = st.lists(layer_shapes(), min_size=1, max_size=3).map(tuple)
plain_layers = st.lists(layer_shapes(kinds=("plain",)), min_size=1, max_size=3).map(tuple)


def flops(cost):
    return {one.name: one.flops for one in cost.operations}


def test_the_formulas_of_multi_head_attention():
    N, D, h, layers = 100, 64, 4, 3
    cost = prefill_cost(uniform_shapes(layers, d_model=D, n_heads=h), N, batch=2)
    assert flops(cost) == {
        "qkv": 2 * layers * 6 * N * D**2,
        "scores": 2 * layers * 2 * N**2 * D,
        "softmax": 2 * layers * 5 * h * N**2,
        "av": 2 * layers * 2 * N**2 * D,
        "output": 2 * layers * 2 * N * D**2,
    }


def test_the_bytes_of_multi_head_attention():
    """Two bytes a number: each kernel's inputs, its weights and what it writes."""
    N, D, h = 100, 64, 4
    cost = prefill_cost(uniform_shapes(1, d_model=D, n_heads=h), N)
    assert {one.name: one.bytes for one in cost.operations} == {
        "qkv": 2 * (3 * D * D + N * D + 3 * N * D),
        "scores": 2 * (2 * N * D + h * N * N),
        "softmax": 2 * (2 * h * N * N),
        "av": 2 * (h * N * N + N * D + N * D),
        "output": 2 * (D * D + 2 * N * D),
    }
    assert cost.fused.bytes == 2 * 4 * N * D
    assert cost.unfused_bytes - cost.fused_bytes == 2 * 4 * h * N * N


def test_grouped_heads_and_values_of_another_width():
    layer = LayerShape(d_model=48, n_heads=6, n_kv_heads=2, d_head=10, d_value=7)
    cost = prefill_cost(AttentionShapes((layer,)), 5)
    assert flops(cost) == {
        "qkv": 2 * 5 * 48 * (60 + 20 + 14),
        "scores": 2 * 25 * 60,
        "softmax": 5 * 6 * 25,
        "av": 2 * 25 * 42,
        "output": 2 * 5 * 42 * 48,
    }


def test_latent_attention_by_hand():
    """d_c 5, d_R 2, query latent 3; keys of 6 + 2, values of 4, two heads, width 10."""
    layer = LayerShape(10, 2, 2, 8, 4, latent=LatentShape(5, 2, 3))
    shapes = AttentionShapes((layer,))
    down, queries, up = 10 * (5 + 2), 10 * 3 + 3 * 2 * 8, 5 * 2 * (6 + 4)
    assert flops(prefill_cost(shapes, 9)) == {
        "qkv": 2 * 9 * (down + queries + up),
        "scores": 2 * 81 * 2 * 8,
        "softmax": 5 * 2 * 81,
        "av": 2 * 81 * 2 * 4,
        "output": 2 * 9 * 2 * 4 * 10,
    }
    absorbed = decode_cost(shapes, 9)
    assert flops(absorbed) == {
        "qkv": 2 * (down + queries + 2 * 6 * 5),
        "scores": 2 * 9 * 2 * (5 + 2),
        "softmax": 5 * 2 * 9,
        "av": 2 * 9 * 2 * 5,
        "output": 2 * (2 * 5 * 4 + 2 * 4 * 10),
    }
    # the query against the latents, the latents once, the mix of latents out
    assert absorbed.fused.bytes == 2 * (2 * 7 + 9 * 7 + 2 * 5)
    expanded = decode_cost(shapes, 9, mla="expanded")
    assert flops(expanded)["qkv"] == 2 * (down + queries + 9 * up)
    assert expanded.fused.bytes == 2 * (2 * 8 + 9 * 2 * (8 + 4) + 2 * 4)


def test_the_bytes_of_latent_attention():
    """The layer above, counted tensor by tensor: weights, then what each token reads and writes."""
    shapes = AttentionShapes((LayerShape(10, 2, 2, 8, 4, latent=LatentShape(5, 2, 3)),))
    weights = 10 * 7 + 10 * 3 + 3 * 16 + 5 * 2 * (6 + 4)
    # x, the query's latent twice, q, the latents twice, k and v
    token = 10 + 2 * 3 + 16 + 2 * 7 + 2 * (8 + 4)
    assert prefill_cost(shapes, 9)["qkv"].bytes == 2 * (weights + 9 * token)
    absorbed = decode_cost(shapes, 9)
    # W_UK in place of all up-projections; the query's plain part is read and written wider
    weights = 10 * 7 + 10 * 3 + 3 * 16 + 2 * 5 * 6
    token = 10 + 2 * 3 + 16 + 7 + 2 * (6 + 5)
    assert absorbed["qkv"].bytes == 2 * (weights + token)
    assert absorbed["scores"].bytes == 2 * (2 * 7 + 9 * 7 + 2 * 9)
    assert absorbed["av"].bytes == 2 * (2 * 9 + 9 * 5 + 2 * 5)
    # the mix of latents in, z out and in again, the residual stream out
    assert absorbed["output"].bytes == 2 * (2 * 5 * 4 + 8 * 10 + 2 * 5 + 8 + 8 + 10)


def test_the_bytes_of_a_decoding_step():
    """Three sequences share the weights; each reads its own cache of five tokens."""
    cost = decode_cost(AttentionShapes((LayerShape(8, 4, 2, 3, 5),)), 5, batch=3, dtype="fp32")
    assert {one.name: one.bytes for one in cost.operations} == {
        "qkv": 4 * (8 * (12 + 6 + 10) + 3 * (8 + 12 + 6 + 10)),
        "scores": 4 * 3 * (12 + 5 * 6 + 4 * 5),
        "softmax": 4 * 3 * 2 * 4 * 5,
        "av": 4 * 3 * (4 * 5 + 5 * 10 + 20),
        "output": 4 * (20 * 8 + 3 * (20 + 8)),
    }
    assert cost.fused.bytes == 4 * 3 * (12 + 5 * (6 + 10) + 20)


def test_the_worked_example():
    """80 layers of 64 heads of 128 in fp16: Llama-2-70B, were it multi-head."""
    shapes = uniform_shapes(80, d_model=8192, n_heads=64, d_head=128)
    keys_alone = 80 * 64 * 128 * 2
    assert round(keys_alone / 1e6, 2) == 1.31
    assert cache_bytes(shapes, 1) == 2 * keys_alone == 2_621_440
    assert cache_bytes(shapes, 4096, batch=32) == 343_597_383_680
    shipped = uniform_shapes(80, d_model=8192, n_heads=64, d_head=128, n_kv_heads=8)
    assert cache_bytes(shapes, 4096, batch=32) == 8 * cache_bytes(shipped, 4096, batch=32)
    assert cache_variants(shapes)["GQA"] == shipped


def test_the_cache_of_deepseek():
    """DeepSeek-V2: d_c = 4·128 and d_R = 64 are what 2.25 groups of 128 would take (table 1)."""
    shapes = uniform_shapes(60, d_model=5120, n_heads=128, d_head=128)
    latent = cache_variants(shapes)["MLA"]
    assert latent.layers[0].latent == LatentShape(512, 64)
    assert cache_bytes(latent, 100) == 60 * 100 * (512 + 64) * 2
    assert cache_bytes(latent, 100) * 4 == 9 * cache_bytes(cache_variants(shapes)["MQA"], 100)


def test_a_window_keeps_what_the_next_query_sees():
    layer = LayerShape(8, 2, 1, 4, 4, window=5)
    shapes = AttentionShapes((layer, replace(layer, window=None)))
    assert cache_bytes(shapes, 3, dtype="fp32") == (3 + 3) * 8 * 4
    assert cache_bytes(shapes, 9, dtype="fp32") == (4 + 9) * 8 * 4
    assert flops(decode_cost(shapes, 9))["scores"] == 2 * 8 * (5 + 9)
    exact = prefill_cost(shapes, 9, exact=True)
    assert flops(exact)["scores"] == 2 * 8 * ((1 + 2 + 3 + 4 + 5 * 5) + 45)


def test_the_crossover():
    mha = uniform_shapes(4, d_model=768, n_heads=12)
    assert crossover(mha) == 2 * 768
    assert crossover(mha, exact=True) == 4 * 768 - 1
    grouped = uniform_shapes(4, d_model=1024, n_heads=16, n_kv_heads=4)
    assert crossover(grouped) == 1024 * (1 + 4 / 16)
    encoder = AttentionShapes(tuple(replace(layer, causal=False) for layer in mha.layers))
    assert crossover(encoder, exact=True) == 2 * 768
    assert crossover(uniform_shapes(4, d_model=768, n_heads=12, window=256), exact=True) is None


@given(some_layers, st.booleans())
@settings(max_examples=60, deadline=None)
def test_at_the_crossover_attention_overtakes(layers, exact):
    shapes = AttentionShapes(layers)
    length = crossover(shapes, exact=exact)
    if length is None:
        assert all(layer.window is not None for layer in shapes.layers)
        length = 10**7
        assert not _overtakes(shapes, length, exact)
        return
    first = int(-(-length // 1))
    assert _overtakes(shapes, max(first, 1), exact)
    if first > 1:
        assert not _overtakes(shapes, first - 1, exact)


def _overtakes(shapes, seq_len, exact):
    found = flops(prefill_cost(shapes, seq_len, exact=exact))
    return found["scores"] + found["av"] >= found["qkv"] + found["output"]


@given(plain_layers, st.integers(1, 50), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_decoding_step_by_step_is_exact_prefill(layers, seq_len, batch):
    shapes = AttentionShapes(layers)
    steps = [flops(decode_cost(shapes, n, batch=batch)) for n in range(1, seq_len + 1)]
    whole = flops(prefill_cost(shapes, seq_len, batch=batch, exact=True))
    assert whole == {name: sum(step[name] for step in steps) for name in whole}


@given(some_layers, st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_expanded_latents_step_by_step_are_exact_prefill_but_for_the_projections(layers, seq_len):
    shapes = AttentionShapes(layers)
    steps = [flops(decode_cost(shapes, n, mla="expanded")) for n in range(1, seq_len + 1)]
    whole = flops(prefill_cost(shapes, seq_len, exact=True))
    for name in ("scores", "softmax", "av", "output"):
        assert whole[name] == sum(step[name] for step in steps)
    assert whole["qkv"] <= sum(step["qkv"] for step in steps)


@given(some_layers, st.integers(1, 200), st.sampled_from(sorted(BYTES)))
@settings(max_examples=60, deadline=None)
def test_cost_grows_with_length_and_batch(layers, seq_len, dtype):
    shapes = AttentionShapes(layers)
    for cost in (prefill_cost, decode_cost):
        one, longer = (cost(shapes, n, dtype=dtype) for n in (seq_len, seq_len + 1))
        double = cost(shapes, seq_len, batch=2, dtype=dtype)
        for name in ("qkv", "scores", "softmax", "av", "output", "fused"):
            assert one[name].flops <= longer[name].flops
            assert one[name].bytes <= longer[name].bytes
            assert double[name].flops == 2 * one[name].flops
            assert one[name].bytes < double[name].bytes <= 2 * one[name].bytes
        assert one.fused_bytes < one.unfused_bytes
        assert one["fused"].flops == sum(one[name].flops for name in ("scores", "softmax", "av"))
    assert cache_bytes(shapes, seq_len, dtype=dtype) <= cache_bytes(
        shapes, seq_len + 1, dtype=dtype
    )


@given(some_layers, st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_exact_counts_are_about_half_at_most_all(layers, seq_len):
    shapes = AttentionShapes(layers)
    dense, exact = (prefill_cost(shapes, seq_len, exact=way) for way in (False, True))
    for name in ("scores", "softmax", "av"):
        assert exact[name].flops <= dense[name].flops
        assert exact[name].bytes == dense[name].bytes
        if all(layer.window is None for layer in shapes.layers):
            assert 2 * exact[name].flops * seq_len == dense[name].flops * (seq_len + 1)
    for name in ("qkv", "output"):
        assert exact[name] == dense[name]


@given(plain_layers, st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_grouped_is_multi_head_at_g_h_and_multi_query_at_1(layers, seq_len):
    shapes = AttentionShapes(layers)
    variants = cache_variants(shapes)
    for kind, groups in (("MHA", lambda layer: layer.n_heads), ("MQA", lambda layer: 1)):
        same = tuple(replace(layer, n_kv_heads=groups(layer)) for layer in shapes.layers)
        ours = AttentionShapes(same)
        assert prefill_cost(variants[kind], seq_len) == prefill_cost(ours, seq_len)
        assert cache_bytes(variants[kind], seq_len) == cache_bytes(ours, seq_len)
    for kind in ("MHA", "GQA", "MQA"):
        if kind in variants and kind != "MHA":
            assert cache_bytes(variants[kind], seq_len) <= cache_bytes(variants["MHA"], seq_len)


@given(some_layers)
@settings(max_examples=60, deadline=None)
def test_what_if_keeps_everything_but_keys_and_values(layers):
    shapes = AttentionShapes(layers)
    for kind, variant in cache_variants(shapes).items():
        for own, other in zip(shapes.layers, variant.layers, strict=True):
            assert other.kind == kind or other == own or other.n_heads <= 1
            assert (other.d_model, other.n_heads, other.d_value, other.window) == (
                own.d_model, own.n_heads, own.d_value, own.window,
            )  # fmt: skip


def test_regimes_on_a_device():
    h100 = find_device("H100")
    assert h100.ridge("fp16") == pytest.approx(989.5e12 / 3.35e12)
    shapes = uniform_shapes(32, d_model=4096, n_heads=32)
    prefill, decode = prefill_cost(shapes, 4096), decode_cost(shapes, 4096)
    assert prefill["qkv"].regime(h100, "fp16") == "compute-bound"
    assert prefill["softmax"].regime(h100, "fp16") == "memory-bound"
    assert prefill.fused.regime(h100, "fp16") == "compute-bound"
    assert {one.regime(h100, "fp16") for one in decode.operations} == {"memory-bound"}
    at_the_ridge = Operation("any", 100, 10)
    flat = replace(h100, flops={"fp16": 100.0}, bandwidth=10.0)
    assert at_the_ridge.regime(flat, "fp16") == "compute-bound"
    assert at_the_ridge.time_ms(flat, "fp16") == 1000.0


def test_data_sheets_are_dense():
    """Half the figures that the vendor marks "with sparsity", and FP8 at twice FP16."""
    for device in DEVICES.values():
        assert device.flops["fp16"] == device.flops["bf16"]
        if "fp8" in device.flops:
            assert device.flops["fp8"] == pytest.approx(2 * device.flops["fp16"], rel=0.01)
    sparse = {"h100": 1979, "h200": 1979, "l4": 242, "a100": 624, "rtx4090": 330.4}
    assert {name: 2 * DEVICES[name].flops["fp16"] / 1e12 for name in sparse} == sparse


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda: LayerShape(8, 6, 4, 2, 2), "6 query heads cannot share 4"),
        (lambda: LayerShape(8, 0, 1, 2, 2), "n_heads must be a whole number"),
        (lambda: LayerShape(8, 2, 1, True, 2), "d_head must be a whole number"),
        (lambda: LayerShape(8, 2, 2, 2, 2, window=3, causal=False), "look both ways"),
        (lambda: LayerShape(8, 4, 2, 4, 4, latent=LatentShape(2, 1)), "leave out the 2"),
        (
            lambda: LayerShape(8, 4, 4, 4, 4, latent=LatentShape(2, 4)),
            "must be narrower than the key",
        ),
        (lambda: LatentShape(0, 2), "d_latent must be"),
        (lambda: LatentShape(2, -1), "d_rope must be"),
        (lambda: uniform_shapes(2, n_heads=4), "d_model, d_head"),
        (lambda: uniform_shapes(2, d_model=10, n_heads=4), "no multiple of 4 heads"),
        (lambda: uniform_shapes(2, n_heads=2, d_head=4, latent=LatentShape(2, 4)), "narrower"),
        (lambda: AttentionShapes(()), "no attention layers"),
        (lambda: prefill_cost(uniform_shapes(1, d_model=8, n_heads=2), 0), "seq_len must be"),
        (lambda: decode_cost(uniform_shapes(1, d_model=8, n_heads=2), 4, mla="no"), "absorbed"),
        (lambda: prefill_cost(uniform_shapes(1, d_model=8, n_heads=2), 4)["k"], "no operation"),
        (lambda: find_device("abacus"), "a100, h100, h200, l4, rtx4090"),
        (lambda: find_device("a100").peak("fp8"), "fp32, fp16, bf16, not in fp8"),
        (lambda: find_device("a100").peak("int3"), "unknown number format 'int3'"),
    ],
)
def test_errors(act, text):
    with pytest.raises(InputError, match=text):
        act()


def test_a_model_that_sees_both_ways_has_no_cache():
    encoder = AttentionShapes((LayerShape(8, 2, 2, 4, 4, causal=False),), "bert")
    for act in (cache_bytes, decode_cost):
        with pytest.raises(InputError, match="bert sees later tokens"):
            act(encoder, 4)
    mixed = (*encoder.layers, *uniform_shapes(1, d_model=8, n_heads=2).layers)
    with pytest.raises(InputError, match="mixes causal and other"):
        AttentionShapes(mixed)
