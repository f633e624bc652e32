"""A model with heads cut out is the model with their z set to 0, in every layout."""

import copy
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from headatlas.circuits.prune.remove.pruning import pruning_of
from headatlas.circuits.prune.remove.remove import remove_heads
from headatlas.interp.interventions import intervene, zero
from headatlas.interp.sites import attention_sites

from .families import FALCONS, NAMES, all_heads, inputs, logits

CASES = {
    # one of layer 0, so that groups of two are left with one and two; all but one of layer 1
    "ragged": lambda heads: [
        head for head in heads if ((head.head + len(head.site)) % 4 == 1 + head.layer) != head.layer
    ],
    "first layer": lambda heads: [h for h in heads if h.layer == 0],
    "half": lambda heads: [h for h in heads if h.head < 2],
}
# what the family's config can hold: equal numbers in all layers, with a width of a head of its own
ORDINARY = ("llama", "gemma3-mqa", "phi3", "deepseek_v3", "t5", "gpt_oss")


@contextmanager
def silenced(name: str, model: Any, heads: list[Any]):
    """z = 0 for `heads`; Falcon, which cannot be hooked, at the input of `dense`."""
    if name not in FALCONS:
        with intervene(model, zero(heads)):
            yield
        return
    handles = []
    for layer, block in enumerate(model.transformer.h):
        gate = torch.ones(4, 8)
        gate[[h.head for h in heads if h.layer == layer]] = 0

        def cut(module: Any, given: Any, gate: torch.Tensor = gate) -> Any:
            return (given[0] * gate.flatten(),)

        handles.append(block.self_attention.dense.register_forward_pre_hook(cut))
    yield
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_masked_is_removed(name: str, case: str, whole: Any):
    model, heads = whole(name), CASES[case](all_heads(name))
    before = copy.deepcopy(model.state_dict())
    smaller = remove_heads(model, heads)
    for left in (False, True):
        given = inputs(name, left)
        with silenced(name, model, heads):
            wanted = logits(model, given)
        gap = (logits(smaller, given) - wanted).abs().max() / wanted.abs().max()
        assert gap < 1e-5
        assert (logits(model, given) - wanted).abs().max() > 1e-3 * wanted.abs().max()
    assert sum(w.numel() for w in smaller.parameters()) < sum(w.numel() for w in model.parameters())
    assert type(smaller) is type(model)
    pruning = pruning_of(smaller)
    assert pruning is not None
    assert pruning.drift is not None
    assert pruning.drift < 1e-5
    assert set(pruning.removed) == set(heads)
    assert pruning.ordinary is (name in ORDINARY and case == "half")
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", ["llama", "gpt2", "deepseek_v3", "bert", "t5"])
def test_heads_are_numbered_anew(name: str, whole: Any):
    """What is left can be hooked, and `heads_before` says which head each one was."""
    heads = CASES["ragged"](all_heads(name))
    smaller = remove_heads(whole(name), heads)
    pruning = pruning_of(smaller)
    assert pruning is not None
    left = [head for site in attention_sites(smaller) for head in site.heads]
    assert pruning.heads_before.keys() == set(left)
    assert set(pruning.heads_before.values()) == set(all_heads(name)) - set(heads)
    one = left[-1]
    given = inputs(name, left=False)
    with intervene(whole(name), zero([*heads, pruning.heads_before[one]])):
        wanted = logits(whole(name), given)
    with intervene(smaller, zero(one)):
        gap = (logits(smaller, given) - wanted).abs().max() / wanted.abs().max()
    assert gap < 1e-5


@pytest.mark.parametrize(
    ("name", "case"),
    [
        *((name, "ragged") for name in NAMES if name != "bert"),
        *((name, "first layer") for name in ("llama", "gpt2", "t5", "falcon")),
    ],
)
def test_generation_is_that_of_the_masked_model(name: str, case: str, whole: Any):
    model, heads = whole(name), CASES[case](all_heads(name))
    given = {key: value for key, value in inputs(name, left=True).items() if "decoder" not in key}
    given |= {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    with silenced(name, model, heads):
        wanted = model.generate(**given)
    smaller = remove_heads(model, heads)
    assert torch.equal(smaller.generate(**given), wanted)
    if (
        case == "ragged" and name != "falcon-mha"
    ):  # whose ALiBi knows no static cache, in the whole model either
        static = {"cache_implementation": "static", "disable_compile": True}
        assert torch.equal(smaller.generate(**given, **static), wanted)


def test_a_cache_holds_the_groups_that_are_left(whole: Any):
    """Of 2 KV heads, layer 0 keeps one for its two queries; layer 1 keeps both for three."""
    smaller = remove_heads(whole("llama"), ["L0KV0", "L1H3"])
    with torch.no_grad():
        cache = smaller(torch.tensor([[5, 6, 7]]), use_cache=True).past_key_values
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(1, 1, 3, 8), (1, 2, 3, 8)]
    attention = [layer.self_attn for layer in smaller.model.layers]
    assert [one.k_proj.out_features for one in attention] == [8, 16]
    assert [one.q_proj.out_features for one in attention] == [16, 24]


def test_latents_are_cached_whatever_the_heads(whole: Any):
    smaller = remove_heads(whole("deepseek_v3"), CASES["ragged"](all_heads("deepseek_v3")))
    with torch.no_grad():
        caches = [
            model(torch.tensor([[5, 6, 7]]), use_cache=True).past_key_values
            for model in (whole("deepseek_v3"), smaller)
        ]
    shapes = [[tuple(layer.keys.shape) for layer in cache.layers] for cache in caches]
    assert shapes[0] == shapes[1]


def test_a_layer_without_heads_still_adds_its_bias(whole: Any):
    smaller = remove_heads(whole("gpt2"), [head for head in all_heads("gpt2") if head.layer == 1])
    out = smaller.transformer.h[1].attn(torch.randn(2, 3, 32))[0]
    bias = whole("gpt2").transformer.h[1].attn.c_proj.bias
    torch.testing.assert_close(out, bias.expand(2, 3, 32), rtol=0, atol=0)
