"""Nothing, everything, what cannot be cut, and what a pruned model can still do."""

import copy
import threading
from typing import Any

import pytest
import torch

from headatlas.circuits.prune.remove import remove as module
from headatlas.circuits.prune.remove.copies import comparison_twin
from headatlas.circuits.prune.remove.pruning import pruning_of
from headatlas.circuits.prune.remove.remove import remove_heads
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from headatlas.interp.interventions import intervene, zero
from headatlas.interp.sites import attention_sites
from tests.conftest import DECODER, build_tiny

from .families import NAMES, all_heads, inputs, logits

RAGGED = ["L0H0", "L0H1", "L1H3"]


@pytest.mark.parametrize("name", NAMES)
def test_all_heads(name: str, whole: Any):
    model, heads = whole(name), all_heads(name)
    smaller = remove_heads(model, heads)
    given = inputs(name, left=False)
    empty = logits(smaller, given)
    assert torch.isfinite(empty).all()
    if not name.startswith("falcon"):
        with intervene(model, zero(heads)):
            wanted = logits(model, given)
        torch.testing.assert_close(empty, wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())


def test_nothing_is_a_copy(whole: Any):
    model = whole("llama")
    same = remove_heads(model, [])
    assert same is not model
    assert torch.equal(logits(same, inputs("llama", True)), logits(model, inputs("llama", True)))
    pruning = pruning_of(same)
    assert pruning is not None
    assert pruning.ordinary
    assert pruning.removed == ()


def test_a_set_of_heads_does(whole: Any):
    smaller = remove_heads(whole("llama"), {HeadId("", 0, 0), HeadId("", 1, 3)})
    assert [layer.self_attn.q_proj.out_features for layer in smaller.model.layers] == [24, 24]


def test_one_name_does(whole: Any):
    pruning = pruning_of(remove_heads(whole("llama"), "L0H1"))
    assert pruning is not None
    assert pruning.removed == (HeadId("", 0, 1),)


def test_what_holds_heads_is_no_heads(whole: Any, as_users_call: None):
    class GateResult:
        def removed(self) -> tuple[HeadId, ...]:
            return (HeadId("", 0, 1),)

    pruning: Any = pruning_of(remove_heads(whole("llama"), "L0H1"))
    for given, instead in (
        (GateResult(), r"got GateResult\. Pass the heads it holds: \.removed\(\)\."),
        (pruning, r"got Pruning\. Pass the heads it holds: \.removed\."),
        (3, r"got int\. Pass one or more of them, such as \['L0H1', 'L2H3'\]\."),
        (None, "got NoneType"),
    ):
        with pytest.raises(InputError, match=instead):
            remove_heads(whole("llama"), given)  # pyright: ignore[reportArgumentType]
    assert remove_heads(whole("llama"), GateResult().removed()) is not None


@pytest.mark.parametrize(
    ("name", "heads", "said"),
    [
        ("llama", ["L0KV0", "L1KV1"], "an ordinary checkpoint, which from_pretrained reads"),
        ("llama", ["L0H0", "L1KV0"], "layers keep from 2 to 3 heads"),
        ("llama", ["L0H0", "L0H2", "L1KV0"], "layers keep from 1 to 2 key-value heads"),
        ("llama", ["L0H0", "L1H0"], "serve unequal numbers of query heads"),
        ("llama", ["L0KV0", "L0KV1"], "a layer keeps no head"),
        ("gpt2", ["L0H0", "L1H0"], "GPT2Config cannot hold 3 heads of 8 in every layer"),
        ("gemma3-mqa", ["L0H0", "L1H0"], "is not a multiple of the number of attention heads"),
    ],
)
def test_what_reads_it_and_why(name: str, heads: list[str], said: str, whole: Any):
    pruning = pruning_of(remove_heads(whole(name), heads))
    assert pruning is not None
    assert said in pruning.saved_as
    assert pruning.ordinary is ("load_pruned" not in pruning.saved_as)


@pytest.mark.parametrize(
    ("heads", "text"),
    [
        (["L0H9"], "no head L0H9; model.layers.0.self_attn has 4 query heads"),
        (["L7H0"], "no head L7H0; its layers are L0 to L1"),
        (["enc.L0H0"], "no head enc.L0H0"),
        (["L0H0", "L0KV0"], "named twice"),
        (["H0"], "a head is written L18H6"),
    ],
)
def test_unknown_heads(heads: Any, text: str, whole: Any):
    with pytest.raises(InputError, match=text):
        remove_heads(whole("llama"), heads)


def test_a_name_is_no_model(as_users_call: None):
    with pytest.raises(InputError, match="expected a transformers model"):
        remove_heads("tiny", ["L0H0"])  # pyright: ignore[reportArgumentType]


def test_not_inside_a_block(whole: Any):
    model = whole("llama")
    with intervene(model, zero("L0H0")), pytest.raises(InputError, match="outside the block"):
        remove_heads(model, ["L0H1"])


def test_twice_only_where_the_config_holds_the_first(whole: Any):
    once = remove_heads(whole("llama"), ["L0KV0", "L1KV1"])
    twice = remove_heads(once, ["L0H1", "L1H0"])
    at_once = remove_heads(whole("llama"), ["L0KV0", "L1KV1", "L0H3", "L1H0"])
    given = inputs("llama", left=True)
    torch.testing.assert_close(logits(twice, given), logits(at_once, given), rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="at once from the whole model"):
        remove_heads(remove_heads(whole("llama"), ["L0H1"]), ["L1H0"])


def test_a_norm_over_all_heads_is_named():
    """OLMo-2 divides all queries by their common size, which would change with the heads."""
    with pytest.raises(InputError, match=r"q_norm acts on all heads together .* shape \(32,\)"):
        remove_heads(build_tiny("olmo2", seed=1), ["L0H1"])


@pytest.fixture(autouse=True)
def _olmo(families: Any):
    families.setdefault("olmo2", DECODER)
    families.setdefault("stablelm", {**DECODER, "qk_layernorm": True})
    families.setdefault("cohere", {**DECODER, "use_qk_norm": True})


def test_norms_with_weights_of_each_head_are_cut():
    model = build_tiny("cohere")
    smaller = remove_heads(model, ["L0H1", "L1H0"])
    assert smaller.model.layers[0].self_attn.q_norm.weight.shape == (3, 8)
    given = inputs("cohere", left=True)
    with intervene(model, zero(["L0H1", "L1H0"])):
        wanted = logits(model, given)
    torch.testing.assert_close(logits(smaller, given), wanted, rtol=0, atol=1e-4)


def test_sinks_are_cut(whole: Any):
    smaller = remove_heads(whole("gpt_oss"), ["L0H1"])
    wanted = whole("gpt_oss").model.layers[0].self_attn.sinks[[0, 2, 3]]
    assert torch.equal(smaller.model.layers[0].self_attn.sinks, wanted)


def test_a_wrong_cut_is_refused(whole: Any, monkeypatch: pytest.MonkeyPatch):
    """The comparison with the masked model catches columns of another head."""

    def other(needs: torch.Tensor, kept: Any) -> torch.Tensor:
        return stays(needs, [head + 1 if head == 2 else head for head in kept])

    stays = module._stays
    monkeypatch.setattr(module, "_stays", other)
    with pytest.raises(InputError, match="differs from the model with them silenced by"):
        remove_heads(whole("llama"), ["L0H1", "L0H3"])


def test_a_layer_that_bears_no_other_number_is_refused(monkeypatch: pytest.MonkeyPatch, whole: Any):
    from headatlas.circuits.prune.remove import surgery

    monkeypatch.setattr(surgery, "_WIDTHS", ())  # so that GPT-2's split_size stays
    with pytest.raises(InputError, match="does not run with fewer heads in a layer"):
        remove_heads(whole("gpt2"), ["L0H1"])


@pytest.mark.parametrize("name", ["llama", "t5", "falcon-groups"])
def test_copies_train_and_follow_the_implementation(name: str, whole: Any):
    heads = [head for head in all_heads(name) if head.head == 3 or head.layer == 0]
    model = copy.deepcopy(remove_heads(whole(name), heads)).train()
    given = inputs(name, left=False)
    model(**given).logits.square().mean().backward()
    weights = {
        n: w for n, w in model.named_parameters() if "layer_norm" not in n and "ln_" not in n
    }
    weights = {n: w for n, w in weights.items() if "layernorm" not in n and w.numel()}
    assert all(w.grad is not None and w.grad.isfinite().all() for w in weights.values())
    model.eval()
    sdpa = logits(model, given)
    if name != "falcon-groups":  # which fixes its implementation when it is built
        model.set_attn_implementation("eager")
        torch.testing.assert_close(logits(model, given), sdpa, rtol=0, atol=1e-4)


def test_a_pattern_is_captured(whole: Any):
    """Uneven groups reach the hooks as one key-value head per query head."""
    smaller = remove_heads(whole("llama"), RAGGED)
    cache = capture(smaller, None, torch.tensor([[5, 6, 7, 8]]), names_filter="pattern")
    whole_cache = capture(
        whole("llama"), None, torch.tensor([[5, 6, 7, 8]]), names_filter="pattern"
    )
    torch.testing.assert_close(cache["pattern", 0], whole_cache["pattern", 0][:, 2:])
    assert cache["pattern", 1].shape == (1, 3, 4, 4)


def test_modes_and_flags_are_kept():
    model = build_tiny("llama").train()
    model.model.layers[1].eval()
    model.lm_head.weight.requires_grad_(False)
    for heads in (["L0H1"], ["L0H1", "L1H2"], ["L0KV0", "L1KV0"]):
        smaller = remove_heads(model, heads)
        flags = smaller.training, smaller.model.layers[0].training, smaller.model.layers[1].training
        assert flags == (True, True, False)
        assert not smaller.lm_head.weight.requires_grad
        assert smaller.model.norm.weight.requires_grad
    assert model.training


def test_bfloat16():
    model = build_tiny("llama", dtype=torch.bfloat16)
    smaller = remove_heads(model, ["L0KV0", "L1KV1"])
    assert {weight.dtype for weight in smaller.parameters()} == {torch.bfloat16}


HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_one_bound_holds_for_every_dtype(dtype: torch.dtype):
    """StableLM norms each head by itself, and heads that stay would get another's norm.

    In bfloat16 that is hardly more than rounding.
    """
    model = build_tiny("stablelm", seed=3)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, weight in model.named_parameters():
            if "layernorm.norms" in name:
                weight.copy_(1 + 0.02 * torch.randn(weight.shape))
    with pytest.raises(InputError, match=r"differs from .* over the limit 3\.5e-04"):
        remove_heads(model.to(dtype), ["L0H0", "L1H0"])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "deepseek_v3", "gpt_oss", "t5"])
def test_half_precision_is_cut_as_it_is(name: str, dtype: torch.dtype, whole: Any):
    """Also where RoPE's frequencies were rounded with the weights."""
    model = copy.deepcopy(whole(name)).to(dtype)
    half = [head for head in all_heads(name) if head.head < 2]
    for heads, ordinary in ((half, name != "gpt2"), (half[:1], False)):
        smaller = remove_heads(model, heads)
        pruning = pruning_of(smaller)
        assert pruning is not None
        assert pruning.drift is not None
        assert pruning.drift < 1e-5
        assert pruning.ordinary is ordinary
        assert {weight.dtype for weight in smaller.parameters()} == {dtype}
        given = inputs(name, left=False)
        with intervene(model, zero(heads)):
            wanted = logits(model, given)
        gap = (logits(smaller, given) - wanted).abs().max() / wanted.abs().max()
        assert gap < 0.1


def test_a_twin_shares_what_needs_no_widening():
    model = build_tiny("llama")
    own, twin = model.lm_head.weight, comparison_twin(model).lm_head.weight
    assert twin is own
    half = build_tiny("llama", dtype=torch.bfloat16)
    half.model.norm.float()
    half.config._attn_implementation_internal = "flash_attention_2"
    wide = comparison_twin(half)
    assert {weight.dtype for weight in wide.parameters()} == {torch.float32}
    assert wide.model.norm.weight is half.model.norm.weight
    assert wide.config._attn_implementation == "sdpa"
    assert half.config._attn_implementation == "flash_attention_2"
    assert half.lm_head.weight.dtype == torch.bfloat16


def test_quantised_weights_are_compared_as_they_are():
    class Packed(torch.nn.Parameter):
        """As quantisers' own: a subclass of Parameter."""

    model = build_tiny("llama", dtype=torch.bfloat16)
    model.model.layers[0].mlp.up_proj.weight = Packed(model.model.layers[0].mlp.up_proj.weight)
    twin = comparison_twin(model)
    assert {weight.dtype for weight in twin.parameters()} == {torch.bfloat16}
    assert twin.model.layers[0].mlp.up_proj.weight is model.model.layers[0].mlp.up_proj.weight
    assert remove_heads(model, ["L0H1"]) is not None


def heads_of(*names: str) -> set[HeadId]:
    return {HeadId("", int(name[1]), int(name[3])) for name in names}


@pytest.mark.parametrize(
    ("second", "gone", "ordinary"),
    [
        ([], (), True),
        (["L0H0"], ("L0H0",), False),  # heads 0 and 2 are left
        (["L0H1", "L1H0"], ("L0H2", "L1H1"), True),
    ],
)
def test_cuts_add_up(second: list[str], gone: tuple[str, ...], ordinary: bool, whole: Any):
    first = ("L0H1", "L0H3", "L1H0", "L1H2")
    once = remove_heads(whole("llama"), list(first))
    twice = remove_heads(once, second)
    pruning, at_once = pruning_of(twice), pruning_of(remove_heads(whole("llama"), [*first, *gone]))
    assert pruning is not None
    assert at_once is not None
    assert pruning.ordinary is ordinary
    assert set(pruning.removed) == heads_of(*first, *gone)
    assert pruning.n_removed == len(first) + len(gone)
    assert pruning.heads_before == at_once.heads_before
    assert pruning.whole == at_once.cuts
    left = [head for site in attention_sites(twice) for head in site.heads]
    assert pruning.heads_before.keys() == set(left)
    if ordinary and second:
        thrice = pruning_of(remove_heads(twice, ["L1H0"]))
        assert thrice is not None
        assert set(thrice.removed) == heads_of(*first, *gone, "L1H3")


def test_layers_that_went_after_a_cut_are_seen(whole: Any):
    once = remove_heads(whole("llama"), ["L0KV0", "L1KV0"])
    once.model.layers = once.model.layers[:1]
    with pytest.raises(InputError, match="no address in the whole model"):
        remove_heads(once, ["L0H0"])


def test_what_cannot_be_copied_is_said(as_users_call: None):
    model = build_tiny("llama")
    model.lock = threading.Lock()
    for heads in ([], ["L0H1"]):
        with pytest.raises(InputError, match=r"Llama\w+ cannot be copied, .* Remove what was hung"):
            remove_heads(model, heads)


@pytest.mark.parametrize("heads", [["L0KV0", "L1KV0"], ["L0H1"], []])
def test_hooks_stay_with_the_given_model(heads: list[str]):
    """Of either kind of result; and they do not count in the comparison either."""
    model, plain = build_tiny("llama"), build_tiny("llama")
    seen: list[int] = []

    def shout(module: Any, given: Any, output: Any) -> Any:
        seen.append(1)
        return output + 1

    model.lm_head.register_forward_hook(shout)
    model.model.layers[0].register_forward_pre_hook(lambda *_: seen.append(1))
    given = inputs("llama", left=True)
    model(**given, output_hidden_states=True)
    seen.clear()
    smaller = remove_heads(model, heads)
    wanted = remove_heads(plain, heads)
    assert torch.equal(logits(smaller, given), logits(wanted, given))
    assert pruning_of(smaller) == pruning_of(wanted)
    assert seen == []
    smaller.set_attn_implementation("eager")
    out = smaller(**given, output_hidden_states=True, output_attentions=True)
    assert (len(out.hidden_states), len(out.attentions)) == (3, 2)
    assert seen == []
    logits(model, given)
    assert len(seen) == 2
