"""Weights against the modules they come from, and heads rebuilt from them."""

import pytest
import torch
from transformers import AutoConfig, AutoModel

from headatlas.interp.attach import attach
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_base
from headatlas.interp.load import load
from headatlas.interp.pattern import masked_scores, mix_values, softmax_rows
from headatlas.interp.projections import head_matrices
from headatlas.interp.sites import attention_sites
from headatlas.interp.survey_probe import is_encoder_decoder
from headatlas.interp.weights import Reading, head_weights

from .weight_models import IDS, Adapted, Int8, Tripled, build, leaving, relative, seen_by

NAMED = (
    *("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "gemma", "gemma3_text", "phi3", "bert"),
    "deepseek_v3",
)
OTHERS = (*("gemma2", "opt", "qwen3", "olmo2", "gpt_oss", "cohere2", "gpt_bigcode", "t5", "bart"),)
FAMILIES = NAMED + OTHERS
QK_NORM = ("gemma3_text", "qwen3", "olmo2")
POST_NORM = ("gemma2", "gemma3_text", "olmo2")
# rounding of sums of at most 48 terms in each of the four steps, with headroom: far below 1e-5
LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}


def inputs_of(part, seen, n):
    """What a map reads, side by side, from what the modules saw."""
    read = [seen[reading.projection][0].reshape(n, -1, reading.width) for reading in part.reads]
    return torch.cat(read, -1)


def apply(part, x):
    out = torch.einsum("bpd,hde->bphe", x, part.weight)
    return out if part.bias is None else out + part.bias


def rebuild(model, limit):
    """Every step from the attention's input to its output, through the extracted weights."""
    weights = head_weights(model)
    calls, gaps = {}, []
    decoder = IDS[:, :4] if is_encoder_decoder(model) else None
    more = {} if decoder is None else {"decoder_input_ids": decoder}
    with attach(model, observers=[lambda call: calls.update({call.site: call})]):
        seen, _ = seen_by(model, lambda: run_base(model, IDS, **more))
    left = leaving(model, [site.module for site in weights], lambda: run_base(model, IDS, **more))
    cache = capture(model, None, IDS, names_filter=lambda name: True, decoder_ids=decoder)
    rot = "rot_" if ("rot_q", 0) in cache else ""
    for site, found in weights.items():
        kinds = ("q", "k", "v", "pattern", "z", "result")
        here = {kind: cache[kind, site.layer, site.stack] for kind in kinds}
        for kind in "qkv":
            part = getattr(found, kind)
            gaps.append(relative(apply(part, inputs_of(part, seen, len(IDS))), here[kind]))
        q, k = (cache[rot + kind, site.layer, site.stack].transpose(1, 2) for kind in "qk")
        scores = masked_scores(q, k, calls[site].mask, calls[site].scores)
        pattern, _ = softmax_rows(scores, calls[site].scores.sinks)
        z = mix_values(pattern.to(q.dtype), here["v"].transpose(1, 2)).transpose(1, 2)
        result = torch.einsum("bphv,hvd->bphd", z, found.W_O)
        total = result.sum(2) + (0 if found.b_O is None else found.b_O)
        output = left[site.module]
        if torch.equal(output, calls[site].z.transpose(1, 2).flatten(2)):
            # BERT's attention module ends at z; its sibling maps it on
            output = seen[found.o.reads[0].projection][1]
        output = output.reshape(total.shape)
        pairs = (pattern, here["pattern"]), (z, here["z"]), (result, here["result"])
        gaps += [relative(*pair) for pair in (*pairs, (total, output))]
    assert max(gaps) <= limit
    return max(gaps)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((f, torch.float32) for f in FAMILIES), *((f, torch.float64) for f in NAMED)],
)
def test_heads_rebuilt_from_weights(tiny, families, family, dtype):
    # experts have no float64: dense layers alone
    dense = {"first_k_dense_replace": 2} if family == "deepseek_v3" else {}
    rebuild(build(tiny, families, family, dtype=dtype, **dense), LIMIT[dtype])


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_and_statements(tiny, families, family):
    model = build(tiny, families, family)
    weights = head_weights(model)
    assert tuple(weights) == attention_sites(model)
    for site, found in weights.items():
        for part, heads in ((found.q, site.n_heads), (found.k, site.n_kv_heads)):
            width = sum(reading.width for reading in part.reads)
            assert part.weight.shape == (heads, width, site.d_head)
            assert part.exact == (family not in QK_NORM)
        assert found.W_V.shape[::2] == (site.n_kv_heads, site.d_value)
        assert found.W_O.shape[:2] == (site.n_heads, site.d_value)
        assert found.v.exact
        assert found.o.exact == (family not in POST_NORM)
        assert found.exact == (family not in QK_NORM + POST_NORM)
        assert ("divides by the size" in found.statement) == (family in QK_NORM)
        assert ("not added there one by one" in found.statement) == (family in POST_NORM)
        assert ("All maps are exact." in found.statement) == found.exact
        rotated = family not in ("gpt2", "gpt_bigcode", "bert", "opt", "t5", "bart")
        if family != "cohere2":  # whose global layers do not rotate
            assert ("W_Q: before RoPE" in found.statement) == rotated
        for part in (found.q, found.k, found.v, found.o):
            assert all(str(reading) in found.statement for reading in part.reads)
        assert found.site.module in repr(found)


def test_what_latent_attention_reads(tiny):
    found, *_ = head_weights(tiny("deepseek_v3")).values()
    attention = "model.layers.0.self_attn"
    assert [str(reading) for reading in found.q.reads] == [
        f"the output of {attention}.q_a_layernorm"
    ]
    latent = Reading(f"{attention}.kv_b_proj", 16, f"{attention}.kv_a_layernorm")
    stream = Reading(f"{attention}.kv_a_proj_with_mqa", 32, "model.layers.0.input_layernorm")
    assert sorted(found.k.reads, key=lambda reading: reading.width) == [latent, stream]
    assert found.v.reads == (latent,)
    start = 0
    for reading in found.k.reads:  # each block fills its own part of the key
        block = found.W_K[:, start : start + reading.width]
        start += reading.width
        off = slice(8, None) if reading == latent else slice(None, 8)
        assert (block[..., off] == 0).all()
        assert (block != 0).any()


def test_the_tensors_are_views_where_the_layout_allows(tiny):
    model = tiny("llama")
    found, *_ = head_weights(model).values()
    before = found.W_Q[1, 0, 0].item()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(2)
    assert found.W_Q[1, 0, 0].item() == 2 * before
    assert not any(w.requires_grad for w in (found.W_Q, found.W_K, found.W_V, found.W_O))


class TestFolding:
    @pytest.mark.parametrize(
        "family",
        ["gpt2", "gpt_neox", "llama", "qwen2", "gemma", "gemma3_text", "bert", "deepseek_v3",
         "cohere2", "opt", "qwen3"],
    )  # fmt: skip
    def test_norm_and_map_are_one(self, tiny, families, family):
        """(x / size(x)) W' + b' is the map applied to the norm's output."""
        model = build(tiny, families, family)
        plain, folded = head_weights(model), head_weights(model, fold_norm=True)
        seen, _ = seen_by(model, lambda: run_base(model, IDS))
        for site in plain:
            for kind in "qkv":
                part, own = getattr(folded[site], kind), getattr(plain[site], kind)
                columns = []
                for reading in part.reads:
                    assert reading.folded
                    assert "divided by its size" in str(reading)
                    x = seen[reading.norm][0].reshape(len(IDS), -1, reading.width)
                    norm = model.get_submodule(reading.norm)
                    eps = getattr(norm, "eps", getattr(norm, "variance_epsilon", None))
                    centred = type(norm).__name__ in ("LayerNorm", "Cohere2LayerNorm")
                    spread = x - x.mean(-1, keepdim=True) if centred else x
                    columns.append(x * (spread.square().mean(-1, keepdim=True) + eps).rsqrt())
                expected = apply(own, inputs_of(own, seen, len(IDS)))
                assert relative(apply(part, torch.cat(columns, -1)), expected) <= 1e-5

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("family", ["llama", "gpt2", "gemma"])
    def test_other_dtypes(self, tiny, families, family, dtype):
        """Folding multiplies in float64, then rounds to the model's dtype."""
        wide, narrow = build(tiny, families, family), build(tiny, families, family).to(dtype)
        narrow_to = {n: w.double() for n, w in narrow.state_dict().items()}
        wide.double().load_state_dict(narrow_to)
        expected, *_ = head_weights(wide, fold_norm=True).values()
        seen, *_ = head_weights(narrow, fold_norm=True).values()
        assert seen.v.reads[0].folded
        assert seen.W_V.dtype == dtype
        assert relative(seen.W_V.double(), expected.W_V) <= torch.finfo(dtype).eps

    def test_a_layer_norm_is_centred_in_the_matrix(self, tiny):
        found, *_ = head_weights(tiny("gpt2"), fold_norm=True).values()
        assert found.W_Q.sum(1).abs().max() <= 1e-5
        llama, *_ = head_weights(tiny("llama"), fold_norm=True).values()
        assert llama.W_Q.sum(1).abs().max() > 1e-2

    def test_what_reads_no_norm_stays(self, tiny, families):
        """OLMo-2 attends to the residual stream as it is."""
        plain, *_ = head_weights(build(tiny, families, "olmo2")).values()
        folded, *_ = head_weights(build(tiny, families, "olmo2"), fold_norm=True).values()
        assert torch.equal(plain.W_Q, folded.W_Q)
        assert [reading.folded for reading in folded.q.reads] == [False]
        assert str(folded.q.reads[0]) == "the input of model.layers.0.self_attn.q_proj"


class TestMissing:
    def test_no_plain_output_projection(self, tiny):
        model = tiny("llama")
        for layer in model.model.layers:
            layer.self_attn.o_proj = torch.nn.Sequential(torch.nn.Tanh(), layer.self_attn.o_proj)
        found, *_ = head_weights(model).values()
        assert not found.exact
        assert found.q.exact
        with pytest.raises(InputError, match="has no W_O: no plain linear map takes z"):
            found.W_O
        with pytest.raises(InputError, match="has no W_O"):
            found.head(0)

    def test_no_plain_query(self, tiny):
        model = tiny("llama")
        attention = model.model.layers[0].self_attn
        attention.q_proj.register_forward_hook(lambda module, args, output: output * output)
        found, *_ = head_weights(model).values()
        with pytest.raises(InputError, match="has no W_Q: no linear map was found"):
            found.W_Q
        assert found.W_K.shape == (2, 32, 8)

    @pytest.mark.parametrize(
        ("family", "kind"),
        [("llama", "q"), ("llama", "k"), ("llama", "v"), ("qwen3", "k"), ("gpt2", "c_attn")],
    )
    def test_tokens_mixed_behind_the_projection(self, tiny, family, kind):
        """At the first token there is nothing to mix, so that all columns are found there."""
        model = tiny(family)
        if family == "gpt2":
            part = model.transformer.h[0].attn.c_attn
        else:
            part = model.model.layers[0].self_attn.get_submodule(f"{kind}_proj")

        def mix(module, args, y):
            return y + 0.5 * torch.nn.functional.pad(y, (0, 0, 1, 0))[:, :-1]

        owner = model.get_submodule(attention_sites(model)[0].module)
        name = "c_attn" if family == "gpt2" else f"{kind}_proj"
        setattr(owner, name, torch.nn.Sequential(part))
        getattr(owner, name).register_forward_hook(mix)
        found = head_weights(model)[0]
        for one in "qkv" if family == "gpt2" else kind:
            assert "is x W at the first token alone" in getattr(found, one).inexact
            assert getattr(found, one).weight is None


def wrap_output(attention, how):
    """Change what leaves the attention module, and so what W_O would have to be."""
    base = attention.o_proj
    if how in ("adapter", "adapter first"):
        attention.o_proj = Adapted(base, first=how == "adapter first")
    elif how == "square adapter":  # as wide as the output: its shape does not tell it apart
        attention.o_proj = Adapted(base, first=True)
        attention.o_proj.a = torch.nn.Linear(32, 32, bias=False)
        attention.o_proj.b = torch.nn.Linear(32, 32, bias=False)
    elif how == "hook":
        base.register_forward_hook(lambda module, args, output: output * output)
    elif how == "hook on the attention":
        attention.register_forward_hook(lambda module, args, out: (2 * out[0], *out[1:]))
    else:
        attention.o_proj = {"subclass": Tripled, "int8": Int8}[how](
            *((32, 32, False) if how == "subclass" else (base,))
        )


CHANGES = {
    "adapter": "what leaves model.layers.0.self_attn.* is not what .*o_proj.base makes of z",
    "adapter first": "what leaves model.layers.0.self_attn.* is not what .*o_proj.base makes",
    "square adapter": "what leaves model.layers.0.self_attn.* is not what",
    "hook": "o_proj does not give x W [+] b of its own weight",
    "hook on the attention": "what leaves model.layers.0.self_attn is not what",
    "subclass": "o_proj does not give x W [+] b of its own weight",
    "int8": "o_proj holds no plain weight matrix",
}


class TestOutputs:
    """W_O and result are refused where z W_O is not what leaves the attention."""

    @pytest.mark.parametrize("how", CHANGES)
    def test_another_output(self, tiny, how):
        model = tiny("llama")
        wrap_output(model.model.layers[0].self_attn, how)
        first, second = head_weights(model).values()
        assert not first.o.exact
        assert first.q.exact
        assert second.exact
        with pytest.raises(InputError, match=CHANGES[how]):
            first.W_O
        with pytest.raises(InputError, match=CHANGES[how]):
            capture(model, None, IDS, names_filter="result", layers=[0])
        cache = capture(model, None, IDS, names_filter="result", layers=[1])
        assert cache["result", 1].shape == (2, 6, 4, 32)

    def test_a_sibling_wrapped(self, tiny):
        """BERT's attention module ends at z, so the wrapper is around the module after it."""
        model = tiny("bert")
        output = model.encoder.layer[0].attention.output
        output.dense = Adapted(output.dense)
        first, second = head_weights(model).values()
        assert "is not what encoder.layer.0.attention.output.dense.base" in first.statement
        assert second.exact

    def test_residual_and_norm_inside_the_attention_module(self):
        """ALBERT adds and norms there: z W_O + b_O is still what is added."""
        config = AutoConfig.for_model(
            "albert", vocab_size=80, embedding_size=16, hidden_size=32, num_attention_heads=4,
            intermediate_size=40, num_hidden_layers=1,
        )  # fmt: skip
        model = AutoModel.from_config(config).eval()
        assert all(found.o.exact for found in head_weights(model).values())

    @pytest.mark.parametrize("first", [False, True])
    def test_an_adapter_that_is_trained_later(self, tiny, first):
        """At zero it changes nothing, and the next look sees that it does."""
        model = tiny("llama")
        attention = model.model.layers[0].self_attn
        for name in ("q_proj", "o_proj"):
            base = getattr(attention, name)
            setattr(attention, name, Adapted(base, trained=False, first=first))
        found, *_ = head_weights(model).values()
        assert found.exact
        for module in (attention.q_proj, attention.o_proj):
            module.b.weight.data.normal_()  # .data: the parameter's version stays
        found, *_ = head_weights(model).values()
        assert not found.q.exact
        assert not found.o.exact
        assert found.k.exact
        with pytest.raises(InputError, match="hook_result does not exist"):
            capture(model, None, IDS, names_filter="result")

    @pytest.mark.parametrize("which", ["q_proj", "v_proj", "o_proj"])
    def test_a_hook_that_comes_and_goes(self, tiny, which):
        model = tiny("llama")
        assert all(found.exact for found in head_weights(model).values())
        module = getattr(model.model.layers[1].self_attn, which)
        handle = module.register_forward_hook(lambda module, args, output: output * output)
        part = which[0]
        assert [getattr(f, part).exact for f in head_weights(model).values()] == [True, False]
        handle.remove()
        assert all(found.exact for found in head_weights(model).values())

    def test_head_matrices_need_floats(self, tiny):
        model = tiny("llama")
        site, *_ = attention_sites(model)
        with pytest.raises(InputError, match=r"\(Int8\) holds no plain weight matrix"):
            head_matrices(Int8(torch.nn.Linear(32, 32)), site)
        with pytest.raises(InputError, match="must take 32 inputs"):
            head_matrices(torch.nn.Linear(31, 32), site)


def test_clipping_is_said(tiny, families):
    """No value reaches the bound on the probe, and the model clips all the same."""
    found, *_ = head_weights(build(tiny, families, "olmo", clip_qkv=80.0)).values()
    assert not found.q.exact
    assert not found.v.exact
    assert found.o.exact
    assert "W_V: exact only between -80 and 80" in found.statement


@pytest.mark.parametrize("name", ["tiny", pytest.param("smollm2-135m", marks=pytest.mark.real)])
def test_built_in_models(name):
    model, _ = load(name)
    rebuild(model, 1e-5)
    assert all(weights.exact for weights in head_weights(model).values())
