import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from headatlas.interp import sources as sources_module
from headatlas.interp.attach import attach
from headatlas.interp.columns import Candidate, Claims, Pool, match_columns, tolerance
from headatlas.interp.norms import NormForm, is_norm, read_norm
from headatlas.interp.sites import attention_sites
from headatlas.interp.sources import sources

from .weight_models import build

BETWEEN = {"phi3": "qkv_proj", "gpt_neox": "query_key_value", "gpt2": "c_attn"}


def projections(source):
    return [part.input.projection.rsplit(".", 1)[-1] for part in source.parts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_neox", "gpt2", "bert", "mistral"])
def test_where_columns_come_from(tiny, family, dtype):
    model = tiny(family, dtype=dtype)
    found = sources(model)
    assert tuple(found) == attention_sites(model)
    for site, here in found.items():
        order = []
        for kind, own in (("q", ("q_proj", "query")), ("k", ("k_proj", "key")), ("v", None)):
            source = getattr(here, kind)
            assert source.missing == ""
            (part,) = source.parts
            n = source.n_heads * source.width
            assert part.places.tolist() == list(range(n))
            assert (part.factor == 1).all()
            assert source.rotated == (kind != "v" and family not in ("gpt2", "bert"))
            assert part.input.norm is not None
            assert projections(source)[0] in (*(own or ("v_proj", "value")), BETWEEN.get(family))
            order.append(part.columns)
        d, width = site.d_head, site.n_heads * site.d_head
        if family == "gpt_neox":  # [head, (q, k, v), d]
            heads = torch.arange(3 * width).reshape(site.n_heads, 3, d)
            expected = [heads[:, i].flatten() for i in range(3)]
        elif family == "gpt2":
            expected = torch.arange(3 * width).split(width)
        elif family == "phi3":
            kv = site.n_kv_heads * d
            expected = torch.arange(width + 2 * kv).split([width, kv, kv])
        else:
            expected = [torch.arange(len(columns)) for columns in order]
        for columns, own in zip(order, expected, strict=True):
            assert torch.equal(columns, own)


def test_latent_attention(tiny):
    """k is a part of the normalised latent for each head, and a rotary part shared by all."""
    here, *_ = sources(tiny("deepseek_v3")).values()
    assert projections(here.q) == ["q_b_proj"]
    assert here.q.parts[0].input.norm == "model.layers.0.self_attn.q_a_layernorm"
    assert sorted(projections(here.k)) == ["kv_a_proj_with_mqa", "kv_b_proj"]
    assert projections(here.v) == ["kv_b_proj"]
    parts = dict(zip(projections(here.k), here.k.parts, strict=True))
    rotary = parts["kv_a_proj_with_mqa"]
    assert rotary.input.norm == "model.layers.0.input_layernorm"
    # 4 heads of 8 + 4: pairs (x0, x1), (x2, x3) become halves (x0, x2), (x1, x3), behind 16 latents
    assert rotary.columns.tolist() == [16, 18, 17, 19] * 4
    assert rotary.places.tolist() == [12 * head + 8 + i for head in range(4) for i in range(4)]
    latent = parts["kv_b_proj"]
    assert latent.input.norm == "model.layers.0.self_attn.kv_a_layernorm"
    assert latent.columns.tolist() == [14 * head + i for head in range(4) for i in range(8)]


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3", "olmo2"])
def test_columns_are_followed_through_norms(tiny, families, family):
    here, *_ = sources(build(tiny, families, family)).values()
    assert here.q.norms == ("model.layers.0.self_attn.q_norm",)
    assert here.k.norms == ("model.layers.0.self_attn.k_norm",)
    assert here.v.norms == ()
    assert [projections(source) for source in (here.q, here.k, here.v)] == [
        ["q_proj"], ["k_proj"], ["v_proj"]
    ]  # fmt: skip


def test_one_norm_for_queries_and_keys(tiny):
    model = tiny("qwen3")
    for layer in model.model.layers:
        layer.self_attn.k_norm = layer.self_attn.q_norm
    here, *_ = sources(model).values()
    assert here.q.norms == here.k.norms == ("model.layers.0.self_attn.q_norm",)
    assert projections(here.q) + projections(here.k) == ["q_proj", "k_proj"]


@pytest.mark.parametrize(
    ("family", "norm"),
    [("gemma2", "post_attention_layernorm"), ("olmo2", "post_attention_layernorm"),
     ("llama", None), ("bert", None), ("gpt2", None)],
)  # fmt: skip
def test_norms_after_the_output(tiny, families, family, norm):
    for here in sources(build(tiny, families, family)).values():
        assert (here.post_norm or "").endswith(norm or "")
        assert (here.post_norm is None) == (norm is None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_factors(tiny, dtype):
    here, *_ = sources(tiny("opt", dtype=dtype)).values()
    limit = torch.finfo(dtype).eps
    assert here.q.parts[0].factor.tolist() == pytest.approx([8**-0.5] * 32, rel=limit)
    assert (here.k.parts[0].factor == 1).all()


def test_the_factor_of_a_rotation(tiny):
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "attention_factor": 1.25}
    here, *_ = sources(tiny("llama", rope_parameters=rope)).values()
    assert here.q.rotated
    assert here.q.parts[0].factor.tolist() == pytest.approx([1.25] * 32, rel=1e-6)
    assert (here.v.parts[0].factor == 1).all()


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_cross_attention_reads_the_encoder(tiny, family):
    for site, here in sources(tiny(family)).items():
        assert not here.q.missing + here.k.missing + here.v.missing
        if site.stack == "cross":
            assert here.k.parts[0].input.norm.startswith(
                ("encoder.final_layer_norm", "model.encoder.layers.1.final_layer_norm")
            )
            assert "decoder" in here.q.parts[0].input.norm


class TestTies:
    def test_equal_weights(self, tiny):
        """q and k of equal weights: either would do, and each gets its own."""
        model = tiny("gpt_neox", num_attention_heads=4)
        llama = tiny("llama", num_key_value_heads=4)
        for layer in llama.model.layers:
            layer.self_attn.k_proj.weight.data.copy_(layer.self_attn.q_proj.weight)
        here, *_ = sources(llama).values()
        assert projections(here.q) + projections(here.k) == ["q_proj", "k_proj"]
        assert here.q.tied
        assert here.k.tied
        assert not any(s.q.tied for s in sources(model).values())

    def test_the_same_module_twice(self, tiny):
        model = tiny("llama", num_key_value_heads=4)
        for layer in model.model.layers:
            layer.self_attn.k_proj = layer.self_attn.q_proj
        here, *_ = sources(model).values()
        assert projections(here.k) == ["q_proj"]
        assert not here.k.missing

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    def test_zero_weights(self, tiny, family):
        model = tiny(family)
        attention_sites(model)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
                    module.weight.zero_()
                    if module.bias is not None:
                        module.bias.zero_()
        for here in sources(model).values():
            for source in (here.q, here.k, here.v):
                assert source.tied
                assert not source.missing
        here, *_ = sources(model).values()
        if family == "gpt2":
            assert [s.parts[0].columns[0].item() for s in (here.q, here.k, here.v)] == [0, 32, 64]

    def test_a_choice_is_not_kept(self, tiny):
        """Two equal weights that part ways after the first look must not stay mixed up."""
        model = tiny("llama", num_key_value_heads=4)
        other = [layer.self_attn.k_proj.weight.clone() for layer in model.model.layers]
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight.data.copy_(layer.self_attn.q_proj.weight)
        sources(model)
        for layer, weight in zip(model.model.layers, other, strict=True):
            layer.self_attn.k_proj.weight.data.copy_(weight)
        assert not any(s.k.tied for s in sources(model).values())

    def test_columns_that_only_coincide_are_reported(self):
        x = torch.randn(8, 4)
        x[:, 3] = x[:, 2]
        y = x.clone()
        same = Candidate("a", y, torch.eye(4)[:, [0, 1, 2, 3]], None, x)
        found = match_columns(y[:, [0, 2]], Pool([same]), Claims())
        assert found.owner.tolist() == [0, -2]


class TestMissing:
    def test_what_no_module_gives(self, tiny):
        class Doubled(type(tiny("llama").model.layers[0].self_attn)):
            def forward(self, hidden_states, *args, **kwargs):
                weight = self.q_proj.weight.data
                self.q_proj.forward = lambda x: torch.tanh(x @ weight.T)
                return super().forward(hidden_states, *args, **kwargs)

        model = tiny("llama")
        model.model.layers[1].self_attn.__class__ = Doubled
        first, second = sources(model).values()
        assert first.q.missing == ""
        assert "model.layers.1.self_attn.q_proj does not give x W + b" in second.q.missing
        assert second.k.missing == ""

    def test_values_made_outside_any_module(self, tiny):
        class Own(nn.Module):
            def __init__(self, weight):
                super().__init__()
                self.weight = weight

            def forward(self, x):
                return x @ self.weight.T

        model = tiny("llama")
        attention = model.model.layers[1].self_attn
        attention.v_proj = Own(attention.v_proj.weight)
        _, second = sources(model).values()
        assert "16 of the 16 columns of v equal no output" in second.v.missing
        assert second.v.parts == ()
        with pytest.raises(ValueError, match="16 of the 16"):
            second.v.gather({}, 1)


def test_sources_are_kept_until_the_model_changes(tiny):
    model = tiny("llama")
    known = sources(model)
    assert sources(model) is known
    model.half()
    assert sources(model) is not known
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert all(isinstance(key, nn.Module) for key in sources_module._KNOWN)


def test_the_model_is_left_alone(tiny):
    model = tiny("llama").train()
    calls = []
    attention_sites(model)
    with attach(model, observers=[lambda call: calls.append(call)]):
        sources(model)
    assert calls == []  # observers of an outer block do not see the probe
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_any_choice_of_columns_is_found(seed, dtype):
    """Columns of two random tensors in any order, some scaled: each is told apart."""
    random = torch.Generator().manual_seed(seed)
    rows = 32 if dtype == torch.bfloat16 else 16
    tensors = [torch.randn(rows, n, generator=random).to(dtype) for n in (5, 3)]
    whole = torch.cat(tensors, 1)
    order = torch.randint(0, 8, (6,), generator=random)
    factor = torch.where(torch.arange(6) < 3, 1.0, 0.37).to(dtype)
    candidates = [Candidate(str(i), t) for i, t in enumerate(tensors)]
    found = match_columns(whole[:, order] * factor, Pool(candidates), Claims())
    flat = torch.where(found.owner == 0, found.column, found.column + 5)
    assert torch.equal(flat, order)
    torch.testing.assert_close(found.factor, factor.double(), rtol=tolerance(dtype), atol=0.0)


class TestNorms:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize(("offset", "centred"), [(0.0, False), (1.0, False), (0.0, True)])
    def test_formulas(self, offset, centred, dtype):
        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight, self.eps = nn.Parameter(torch.randn(16).to(dtype)), 1e-5

        torch.manual_seed(0)
        norm = Norm()
        x = (torch.randn(40, 16) * 3 + 1).to(dtype)
        wide = x.float() - (x.float().mean(-1, keepdim=True) if centred else 0)
        y = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        y = (y * (norm.weight.float() + offset)).to(dtype)
        assert read_norm(norm, x, y.detach()) == NormForm(centred, offset)
        assert read_norm(norm, x, y.detach() * 1.5) is None

    @pytest.mark.parametrize("family", ["llama", "gpt2", "gemma", "cohere2"])
    def test_centred_numbers_are_no_riddle(self, tiny, families, family):
        """Where the mean is zero a LayerNorm and an RMSNorm agree."""
        norm = next(m for m in build(tiny, families, family).modules() if is_norm(m))
        torch.manual_seed(0)
        x = torch.randn(40, 32)
        x = x - x.mean(-1, keepdim=True)
        expected = NormForm(family in ("gpt2", "cohere2"), 1.0 if family == "gemma" else 0.0)
        assert read_norm(norm, x, norm(x).detach()) == expected
        assert read_norm(norm.bfloat16(), x.bfloat16(), norm(x.bfloat16()).detach()) == expected
