import gc
import weakref

import pytest
import torch
from transformers import DogeConfig, DogeForCausalLM

from headatlas.interp import sites as sites_module
from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from headatlas.interp.projections import head_matrices, output_projections
from headatlas.interp.sites import Site, attention_sites, hook_drift
from headatlas.interp.switch import is_switched


def test_what_a_site_says(tiny):
    first, second = attention_sites(tiny("llama"))
    assert first == Site("model.layers.0.self_attn", "", 0, 4, 2, 8, 8, True)
    assert (second.layer, second.prefix) == (1, "")
    assert second.heads[3] == HeadId("", 1, 3)


def test_widths_of_latent_attention(tiny):
    site = attention_sites(tiny("deepseek_v3"))[0]
    assert (site.n_heads, site.n_kv_heads, site.d_head, site.d_value) == (4, 4, 12, 6)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_stacks_of_an_encoder_decoder(tiny, family):
    found = [(s.stack, s.layer, s.causal, s.prefix) for s in attention_sites(tiny(family))]
    assert found == [
        ("enc", 0, False, "enc."),
        ("enc", 1, False, "enc."),
        ("dec", 0, True, "dec."),
        ("cross", 0, False, "cross."),
        ("dec", 1, True, "dec."),
        ("cross", 1, False, "cross."),
    ]


def test_an_encoder_alone_has_one_stack(tiny):
    found = attention_sites(tiny("t5").get_encoder())
    assert [(site.stack, site.causal) for site in found] == [("", False)] * 2


def test_bert_looks_both_ways(tiny):
    assert not any(site.causal for site in attention_sites(tiny("bert")))


def test_surveyed_once_until_the_modules_change(tiny, monkeypatch):
    from headatlas.interp import survey

    runs = []
    examine = survey.examine
    monkeypatch.setattr(survey, "examine", lambda model: runs.append(1) or examine(model))
    model = tiny("llama")
    assert attention_sites(model) is attention_sites(model)
    hook_drift(model)
    assert len(runs) == 1
    model.model.layers = model.model.layers[:1]
    assert len(attention_sites(model)) == 1
    assert len(runs) == 2


def pad_widely(model):
    embedding = torch.nn.Embedding(120, 32)
    model.set_input_embeddings(embedding)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.double(),
        lambda model: model.model.layers[0].mlp.up_proj.double(),
        lambda model: model.set_attn_implementation("eager"),
        pad_widely,
        lambda model: setattr(model.model.layers[1], "mlp", torch.nn.Identity()),
        lambda model: setattr(model.model.layers[1].mlp.act_fn, "added", torch.nn.Linear(1, 1)),
        lambda model: model.model.layers[1].self_attn.register_parameter(
            "added", torch.nn.Parameter(torch.zeros(1))
        ),
        lambda model: model.to("meta"),
    ],
    ids=["dtype", "one dtype", "eager", "shape", "module", "child", "weight", "device"],
)
def test_whatever_may_change_the_forward_is_surveyed_anew(tiny, monkeypatch, change):
    from headatlas.interp import survey

    model, runs = tiny("llama"), []
    known = attention_sites(model)
    monkeypatch.setattr(survey, "examine", lambda model: runs.append(1) or (known, 0.0))
    assert attention_sites(model) is known
    assert not runs
    change(model)
    attention_sites(model)
    assert runs == [1]


def test_values_gradients_and_training_mode_are_not_surveyed_anew(tiny, monkeypatch):
    from headatlas.interp import survey

    model = tiny("llama")
    known = attention_sites(model)
    monkeypatch.setattr(survey, "examine", None)
    model.train()
    model.requires_grad_(False)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert attention_sites(model) is known


def test_a_model_that_breaks_under_hooks_is_seen_in_its_own_code_or_refused(monkeypatch):
    """Doge reads the dtype of the mask tensor that we replace by a value of ours."""
    from headatlas.interp import survey

    def refuse(*_):
        raise InputError("nothing.")

    config = DogeConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    model, ids = DogeForCausalLM(config).eval(), torch.arange(12)[None]
    before = model(ids).logits
    message = r"DogeForCausalLM cannot be hooked: it runs alone.*\(AttributeError: .*'dtype'"
    with monkeypatch.context() as patch:
        patch.setattr(survey, "list_inline", refuse)
        with pytest.raises(InputError, match=message):
            attention_sites(model)
    assert model.config._attn_implementation == "sdpa"
    assert not is_switched(model)
    assert all(site.inline and site.causal for site in attention_sites(model))
    torch.testing.assert_close(model(ids).logits, before, rtol=0, atol=0)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_requests_to_stop_pass_through_the_survey(tiny, monkeypatch, stop):
    from headatlas.interp import survey

    def interrupt(*_):
        raise stop

    monkeypatch.setattr(survey, "list_calls", interrupt)
    with pytest.raises(stop):
        attention_sites(tiny("llama"))


def test_drift_is_that_of_the_present_dtype_and_implementation(tiny):
    model = tiny("llama", attn="eager")
    single = hook_drift(model)
    assert 0 < single <= 1e-4
    model.half()
    half = hook_drift(model)
    assert half == hook_drift(tiny("llama", attn="eager").half())
    assert half != single
    model.set_attn_implementation("sdpa")
    other = hook_drift(model)
    assert other == hook_drift(tiny("llama").half())
    assert other != half
    known = attention_sites(model)
    with attach(model) as found:  # the block's own implementation is no change
        assert found is known
        assert attention_sites(model) is known


def test_a_survey_does_not_keep_its_model(tiny):
    model = tiny("llama")
    attention_sites(model)
    assert model in sites_module._SURVEYS
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "family", ["llama", "gpt2", "opt", "gpt_neox", "phi3", "deepseek_v3", "bert", "t5", "bart"]
)
def test_output_projections_are_found_without_names(tiny, family):
    model = tiny(family)
    found = output_projections(model)
    names = {id(module): name for name, module in model.named_modules()}
    assert tuple(found) == attention_sites(model)
    endings = ("o_proj", "c_proj", "out_proj", "dense", ".o")
    for site, module in found.items():
        name = names[id(module)]
        assert name.endswith(endings)
        assert name.rsplit(".", 2)[0] in site.module or site.module.rsplit(".", 1)[0] in name
        matrices = head_matrices(module, site)
        z = torch.randn(3, site.n_heads, site.d_value)
        bias = getattr(module, "bias", None)
        expected = module(z.flatten(1)) - (0 if bias is None else bias)
        torch.testing.assert_close(torch.einsum("nhv,hvd->nd", z, matrices), expected)
