"""Shapes read from models and configs, against torch's flop counter and real cache tensors."""

import contextlib
import copy
import json
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModel, LlamaConfig, MambaConfig

from headatlas.circuits.cost.kv_cache import cache_bytes, cache_variants
from headatlas.circuits.cost.read import attention_shapes, config_shapes
from headatlas.circuits.cost.report import cost
from headatlas.circuits.cost.shapes import AttentionShapes, LatentShape, uniform_shapes
from headatlas.circuits.cost.totals import decode_cost, prefill_cost
from headatlas.interp.errors import InputError

from ...conftest import DECODER, FAMILIES, SEQ2SEQ_FAMILIES, WINDOW

TOKENS = 20  # beyond the window
BATCH = 2
MLA = {"num_attention_heads": 4, "num_key_value_heads": 4}
SHAPES = {
    "MHA": ("gpt2", {}),
    "GQA": ("llama", {}),
    "MQA": ("llama", {"num_key_value_heads": 1}),
    "fused QKV": ("phi3", {}),
    "wide heads": ("qwen3", {"head_dim": 12}),
    "windows": ("gemma3_text", {}),
    "one window": ("mistral", {}),
    "interleaved": ("gpt_neox", {}),
    "biases": ("opt", {}),
    "MLA": ("deepseek_v3", {}),
    "MLA, plain queries": ("deepseek_v3", {"q_lora_rank": None}),
    "encoder": ("bert", {}),
}


def count(model, run):
    """(FLOPs of each attention's linear maps by module, of its batched products in order)."""
    products = []

    def record(a, b, *_, out_shape=None, **__):
        products.append(2 * a[0] * a[1] * a[2] * b[2])
        return products[-1]

    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.bmm: record})
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        run()
    linear = defaultdict(int)
    for name, counts in counter.get_flop_counts().items():
        for operation, value in counts.items():
            if str(operation) in ("aten.mm", "aten.addmm"):
                linear[name.partition(".")[2]] += value
    return linear, products


def attention_modules(model):
    """One name for each layer's whole attention, projections included."""
    names = [name for name, _ in model.named_modules() if name.endswith(("attn", "attention"))]
    return [name for name in names if not any(name.startswith(f"{one}.") for one in names)]


def ids(seed=0):
    return torch.randint(3, 97, (BATCH, TOKENS), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", SHAPES)
def test_prefill_is_what_the_flop_counter_counts(tiny, kind):
    family, changes = SHAPES[kind]
    model = tiny(family, **changes)
    shapes = attention_shapes(model)
    linear, products = count(model, lambda: model(ids(), use_cache=False))
    names = attention_modules(model)
    assert len(names) == len(shapes.layers)
    for i, (layer, name) in enumerate(zip(shapes.layers, names, strict=True)):
        cost = prefill_cost(AttentionShapes((layer,)), TOKENS, batch=BATCH)
        assert linear[name] == cost["qkv"].flops + cost["output"].flops
        assert products[2 * i] == cost["scores"].flops
        assert products[2 * i + 1] == cost["av"].flops
        last = next(
            linear[f"{name}.{end}"]
            for end in ("o_proj", "out_proj", "c_proj", "dense", "output")
            if f"{name}.{end}" in linear
        )
        assert last == cost["output"].flops
    assert len(products) == 2 * len(names)


@pytest.mark.parametrize("kind", [kind for kind in SHAPES if kind != "encoder"])
def test_decoding_is_what_the_flop_counter_counts(tiny, kind):
    family, changes = SHAPES[kind]
    model = tiny(family, **changes)
    shapes = attention_shapes(model)
    with torch.no_grad():
        output = model(ids()[:, :-1], use_cache=True)
    given = "past_key_values" if getattr(output, "cache", None) is None else "cache"
    cache = cache_of(output)
    expanded_in_cache = [
        kept != layer
        for kept, layer in zip(cached_shapes(shapes, cache), shapes.layers, strict=True)
    ]
    step = {given: cache, "use_cache": True}
    linear, products = count(model, lambda: model(ids()[:, -1:], **step))
    for i, (layer, name) in enumerate(zip(shapes.layers, attention_modules(model), strict=True)):
        alone = AttentionShapes((layer,))
        cost = decode_cost(alone, TOKENS, batch=BATCH, mla="expanded")
        projections = cost
        if expanded_in_cache[i]:  # each token's latent was projected up once, as in a prefill of it
            projections = prefill_cost(alone, 1, batch=BATCH)
        assert linear[name] == projections["qkv"].flops + projections["output"].flops
        assert products[2 * i : 2 * i + 2] == [cost["scores"].flops, cost["av"].flops]


@pytest.mark.parametrize("kind", [kind for kind in SHAPES if kind != "encoder"])
@pytest.mark.parametrize("length", [5, TOKENS])
def test_cache_bytes_are_those_of_real_tensors(tiny, kind, length):
    family, changes = SHAPES[kind]
    model = tiny(family, **changes)
    with torch.no_grad():
        cache = cache_of(model(ids()[:, :length], use_cache=True))
    held = sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values))
    kept = AttentionShapes(cached_shapes(attention_shapes(model), cache))
    assert held == cache_bytes(kept, length, batch=BATCH, dtype="fp32")


def test_either_cache_of_a_latent_is_recognised(tiny):
    """Releases of transformers differ in what they keep; neither is taken for the other."""
    shapes = attention_shapes(tiny("deepseek_v3"))
    for kind, width in (("MLA", (16, 4)), ("MHA", (4 * 12, 4 * 6))):
        layers = [
            SimpleNamespace(keys=torch.zeros(BATCH, 1, 5, width[0]),
                            values=torch.zeros(BATCH, 1, 5, width[1]))
            for _ in shapes.layers
        ]  # fmt: skip
        found = cached_shapes(shapes, SimpleNamespace(layers=layers))
        assert found == cache_variants(shapes)[kind].layers
    layers[0].keys = layers[0].keys[..., :-1]
    with pytest.raises(AssertionError, match="neither"):
        cached_shapes(shapes, SimpleNamespace(layers=layers))


def test_expanded_keys_and_values_are_the_what_if_of_a_latent(tiny):
    """What attention itself is given in MLA is what MHA of these widths would have to keep."""
    from headatlas.interp.attach import attach

    model, held = tiny("deepseek_v3"), []
    with torch.no_grad(), attach(model, observers=[lambda call: held.append((call.k, call.v))]):
        model(ids(), use_cache=False)
    expanded = sum(part.numel() * part.element_size() for pair in held for part in pair)
    what_if = cache_variants(attention_shapes(model))["MHA"]
    assert expanded == cache_bytes(what_if, TOKENS, batch=BATCH, dtype="fp32")


def cache_of(output):
    cache = getattr(output, "cache", None)
    return output.past_key_values if cache is None else cache


def cached_shapes(shapes, cache):
    """Each layer's own shape; with a latent, that of the numbers per token its cache holds."""
    kept = []
    expanded = cache_variants(shapes)["MHA"].layers
    for layer, wide, held in zip(shapes.layers, expanded, cache.layers, strict=True):
        if layer.latent is None:
            kept.append(layer)
            continue
        numbers = sum(part.numel() // (BATCH * part.shape[-2]) for part in (held.keys, held.values))
        ways = {layer.cache_width: layer, wide.cache_width: wide}
        assert numbers in ways, f"{numbers} per token: neither the latent nor what it expands to"
        kept.append(ways[numbers])
    return tuple(kept)


@pytest.mark.parametrize("family", [one for one in FAMILIES if one not in SEQ2SEQ_FAMILIES])
def test_a_config_alone_says_what_the_model_says(tiny, family):
    model = tiny(family, attn="eager")
    assert config_shapes(model.config).layers == attention_shapes(model).layers


def test_windows_and_latents_are_read():
    gemma = config_shapes(AutoConfig.for_model("gemma3_text", **FAMILIES["gemma3_text"]))
    assert [layer.window for layer in gemma.layers] == [WINDOW, None]
    deepseek = config_shapes(AutoConfig.for_model("deepseek_v3", **FAMILIES["deepseek_v3"]))
    layer = deepseek.layers[0]
    assert layer.latent == LatentShape(16, 4, 16)
    assert (layer.d_head, layer.d_value, layer.kind) == (12, 6, "MLA")


def test_shapes_of_large_models_need_no_weights():
    """Full-size configs, as published: skeletons alone."""
    v3 = config_shapes(AutoConfig.for_model("deepseek_v3"))
    layer = v3.layers[0]
    assert (len(v3.layers), layer.d_model, layer.n_heads, layer.d_head) == (61, 7168, 128, 192)
    assert layer.latent == LatentShape(512, 64, 1536)
    falcon = config_shapes(AutoConfig.for_model("falcon", num_hidden_layers=2))
    assert falcon.layers[0].kind == "MQA"  # which its config says in a way of its own
    bloom = config_shapes(AutoConfig.for_model("bloom"))
    assert bloom.layers[0].causal


def test_one_stack_of_an_encoder_decoder_pair(tiny):
    encoder = attention_shapes(tiny("t5").get_encoder())
    assert encoder.layers[0].causal is False
    assert (encoder.layers[0].d_head, len(encoder.layers)) == (8, 2)


def save_config(folder, config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_needs_no_more_than_its_config(tmp_path):
    folder = save_config(tmp_path / "one", {**DECODER, "model_type": "llama"})
    found = attention_shapes(folder)
    assert found.layers == uniform_shapes(2, d_model=32, n_heads=4, n_kv_heads=2).layers
    assert found.name == str(folder)


def test_a_gguf_file(tiny, tmp_path):
    from ...interp.checkpoints import byte_level, write_llama_gguf

    tokenizer = byte_level()
    model = tiny("llama", vocab_size=len(tokenizer))
    write_llama_gguf(tmp_path / "one.gguf", model, tokenizer)
    assert attention_shapes(tmp_path / "one.gguf").layers == attention_shapes(model).layers


def refused(tmp_path):
    base = {**DECODER, "model_type": "llama"}
    deep = {**base, "num_hidden_layers": 10**7}
    return {
        "no attention": (MambaConfig(hidden_size=16, num_hidden_layers=1), "can be seen in"),
        "no window": (AutoConfig.for_model("gemma3_text", sliding_window=0), "sliding_window of"),
        "relative positions": (
            AutoConfig.for_model("deberta-v2", relative_attention=True), "relative positions",
        ),
        "shared keys": (
            AutoConfig.for_model("gemma3n_text", num_kv_shared_layers=2), "share keys and values",
        ),
        "windows both ways": (AutoConfig.for_model("modernbert"), "look both ways"),
        "two stacks": (AutoConfig.for_model("t5", **FAMILIES["t5"]), "encoder-decoder pair"),
        "chunks": (
            AutoConfig.for_model("llama", **DECODER, layer_types=["chunked_attention"] * 2),
            "'chunked_attention'",
        ),
        "gates": (
            AutoConfig.for_model("qwen3_next", **DECODER, layer_types=["full_attention"] * 2),
            "neither MHA, GQA, MQA nor MLA",
        ),
        "shared layers": (
            AutoConfig.for_model("albert", hidden_size=32, num_attention_heads=4),
            "1 are there",
        ),
        "local layers": (AutoConfig.for_model("gpt_neo"), "local attention"),
        "too deep": (save_config(tmp_path / "deep", deep), "at most"),
        "foreign code": (
            save_config(tmp_path / "code", {**base, "attn_implementation": "owner/kernel"}),
            "foreign code",
        ),
        "no model": (tmp_path / "nothing", "no file or folder"),
        "unknown kind": (save_config(tmp_path / "kind", {"model_type": "nonsense"}), "nonsense"),
        "a file": (save_config(tmp_path / "file", base) / "config.json", "is a file"),
    }  # fmt: skip


def test_what_is_refused(tmp_path):
    for what, (source, text) in refused(tmp_path).items():
        act = config_shapes if hasattr(source, "model_type") else attention_shapes
        with pytest.raises(InputError) as caught:
            act(source)
        assert text in str(caught.value), what


hostile = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.integers(10**6, 10**20), st.floats(),
    st.text(max_size=8), st.lists(st.sampled_from(["full_attention", "sliding_attention", 3])),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip
KEYS = [
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "sliding_window", "layer_types", "kv_lora_rank", "num_kv_shared_layers", "attention_layers",
    "is_encoder_decoder", "intermediate_size", "q_lora_rank", "qk_rope_head_dim", "v_head_dim",
]  # fmt: skip


@given(
    st.sampled_from(["llama", "mistral", "deepseek_v3", "gpt2"]),
    st.dictionaries(st.sampled_from(KEYS), hostile, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_any_config_gives_shapes_or_a_clear_error(tmp_path_factory, family, changes):
    config = {**FAMILIES[family], "model_type": family, **changes}
    folder = save_config(tmp_path_factory.getbasetemp() / "fuzzed", config)
    with contextlib.suppress(InputError):
        assert prefill_cost(attention_shapes(folder), 3).flops > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_object_counts_as_its_model_does(tiny, family):
    config = AutoConfig.for_model(family, **FAMILIES[family])
    before = copy.deepcopy(config.__dict__)
    if family in SEQ2SEQ_FAMILIES:
        with pytest.raises(InputError, match="encoder-decoder pair"):
            cost(config)
    else:
        expected = attention_shapes(tiny(family, attn="eager")).layers
        assert cost(config, seq_len=64).shapes.layers == expected
    assert config.__dict__ == before


def test_a_config_of_a_model_that_also_sees():
    text = {**DECODER, "head_dim": 8, "layer_types": ["full_attention"] * 2}
    config = AutoConfig.for_model("gemma3", text_config=text)
    assert [layer.n_heads for layer in attention_shapes(config).layers] == [4, 4]


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("source", [3, None, {"hidden_size": 8}, LlamaConfig, b"tiny"])
def test_what_is_no_model(source):
    with pytest.raises(InputError, match=r"attention is counted of .*; got "):
        cost(source)


@given(st.dictionaries(st.sampled_from(KEYS), hostile, max_size=3))
@settings(max_examples=40, deadline=None)
def test_any_config_object_gives_shapes_or_a_clear_error(changes):
    config = LlamaConfig(**DECODER)
    for key, value in changes.items():
        with contextlib.suppress(Exception):  # of the config's own checks
            setattr(config, key, value)
    with contextlib.suppress(InputError):
        assert prefill_cost(attention_shapes(config), 3).flops > 0


@pytest.mark.real
def test_the_numbers_of_smollm2_are_those_of_its_weights():
    from headatlas.interp.load import load

    model, _ = load("smollm2-135m")
    assert attention_shapes("smollm2-135m").layers == attention_shapes(model).layers


def test_a_loaded_model_without_attention(tiny):
    model = AutoModel.from_config(MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(InputError, match="attention"):
        attention_shapes(model)
