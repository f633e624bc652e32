import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.attach import Edit
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from headatlas.interp.hook_names import choose_names
from headatlas.interp.sites import Site
from headatlas.interp.tokens import Tokens

IDS = torch.tensor([[5, 9, 11, 9, 40, 7], [3, 4, 5, 6, 7, 8]])


class Words:
    """A tokenizer of a few words."""

    bos_token_id, cls_token_id, pad_token_id = 1, None, 0
    words = ("<pad>", "<s>", "</s>", "a", "the", "cat", "dog", "saw")

    def __call__(self, texts, **_):
        many = not isinstance(texts, str)
        ids = [[self.words.index(w) for w in t.split()] for t in (texts if many else [texts])]
        return {"input_ids": ids if many else ids[0]}

    def convert_ids_to_tokens(self, ids):
        return [self.words[i] if i < len(self.words) else None for i in ids]


def test_names_and_shapes_of_a_rotary_model(tiny):
    cache = capture(tiny("llama"), None, IDS, names_filter=lambda name: True)
    shapes = {
        "q": (2, 6, 4, 8),
        "k": (2, 6, 2, 8),
        "rot_q": (2, 6, 4, 8),
        "rot_k": (2, 6, 2, 8),
        "v": (2, 6, 2, 8),
        "attn_scores": (2, 4, 6, 6),
        "pattern": (2, 4, 6, 6),
        "z": (2, 6, 4, 8),
        "result": (2, 6, 4, 32),
    }
    assert list(cache) == [f"blocks.{n}.attn.hook_{kind}" for n in (0, 1) for kind in shapes]
    for kind, shape in shapes.items():
        assert cache[kind, 1].shape == shape
        assert cache[kind, 1] is cache[f"blocks.1.attn.hook_{kind}"]
        assert cache[f"hook_{kind}", 1, "attn"] is cache[kind, 1]
        assert not cache[kind, 1].requires_grad
    assert ("pattern", 1) in cache
    assert ("pattern", 2) not in cache
    assert "18 tensors" in repr(cache)


def test_default_leaves_out_what_can_be_derived(tiny):
    kinds = {name.split("hook_")[1] for name in capture(tiny("gpt2"), None, IDS)}
    assert kinds == {"q", "k", "v", "pattern", "z"}
    kinds = {name.split("hook_")[1] for name in capture(tiny("llama"), None, IDS)}
    assert kinds == {"rot_q", "rot_k", "v", "pattern", "z"}


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "t5", "gemma2"])
def test_values_hang_together(tiny, family):
    model = tiny(family, attn="eager")
    cache = capture(model, None, IDS, names_filter=lambda name: "result" not in name)
    for name in cache:
        if not name.endswith("pattern"):
            continue
        base = name.removesuffix("pattern")
        pattern, scores = cache[name], cache[base + "attn_scores"]
        torch.testing.assert_close(scores.softmax(-1), pattern)
        v = cache[base + "v"].transpose(1, 2)
        v = v.repeat_interleave(pattern.shape[1] // v.shape[1], 1)
        torch.testing.assert_close((pattern @ v).transpose(1, 2), cache[base + "z"])


def test_scores_are_minus_infinity_where_masked(tiny):
    scores = capture(tiny("llama"), None, IDS, names_filter="attn_scores")["attn_scores", 0]
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    assert (scores[..., later] == float("-inf")).all()
    assert torch.isfinite(scores[..., ~later]).all()


@pytest.mark.parametrize("family", ["llama", "gpt2", "bart"])
def test_results_sum_to_what_the_layer_adds(tiny, family):
    model = tiny(family)
    outputs = {}
    names = {
        "llama": ("model.layers.1.self_attn", "o_proj"),
        "gpt2": ("transformer.h.1.attn", "c_proj"),
        "bart": ("model.encoder.layers.1.self_attn", "out_proj"),
    }
    module, projection = names[family]
    projection = model.get_submodule(f"{module}.{projection}")
    handle = projection.register_forward_hook(lambda m, a, out: outputs.update(out=out))
    cache = capture(model, None, IDS, names_filter="result")
    handle.remove()
    result = cache["result", 1, "enc" if family == "bart" else ""]
    bias = projection.bias if projection.bias is not None else 0
    torch.testing.assert_close(result.sum(2) + bias, outputs["out"])


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_narrowing_to_heads(tiny, family):
    model = tiny(family)
    kinds = ["rot_q", "v", "attn_scores", "pattern", "z", "result"]
    full = capture(model, None, IDS, names_filter=kinds)
    heads = ["L1H3", "L1H0"]
    cache = capture(model, None, IDS, names_filter=kinds, heads=heads)
    assert cache.heads == (HeadId("", 1, 3), HeadId("", 1, 0))
    assert full.heads is None
    assert ("pattern", 0) not in cache
    for kind in ("attn_scores", "pattern"):
        torch.testing.assert_close(cache[kind, 1], full[kind, 1][:, [3, 0]])
    for kind in ("rot_q", "z", "result"):
        torch.testing.assert_close(cache[kind, 1], full[kind, 1][:, :, [3, 0]])
    torch.testing.assert_close(cache["v", 1], full["v", 1])


def test_edits_are_in_the_cache(tiny):
    model = tiny("llama")

    def uniform(call, pattern):
        return torch.full_like(pattern, 0.25)

    edits = [Edit("pattern", uniform), Edit("z", lambda call, z: z + 1)]
    cache = capture(model, None, IDS, edits=edits, heads=["L0H1"])
    assert (cache["pattern", 0] == 0.25).all()
    values = cache["v", 0][:, :, :1].sum(1, keepdim=True) * 0.25 + 1
    torch.testing.assert_close(cache["z", 0], values.expand(2, 6, 1, 8))


def test_encoder_decoder_names(tiny):
    model = tiny("t5")
    cache = capture(model, None, IDS, names_filter="pattern", decoder_ids=IDS[:, :4])
    assert sorted(cache) == [
        f"{stack}.blocks.{n}.attn.hook_pattern" for stack in ("cross", "dec", "enc") for n in (0, 1)
    ]
    assert cache["pattern", 0, "enc"].shape == (2, 4, 6, 6)
    assert cache["pattern", 0, "dec"].shape == (2, 4, 4, 4)
    assert cache["pattern", 0, "cross"].shape == (2, 4, 4, 6)
    with pytest.raises(InputError, match="was not captured"):
        cache["pattern", 0]
    shifted = torch.cat([torch.zeros(2, 1, dtype=torch.int64), IDS[:, :-1]], 1)
    default = capture(model, None, IDS, names_filter="pattern")
    given = capture(model, None, IDS, names_filter="pattern", decoder_ids=shifted)
    assert torch.equal(default["pattern", 1, "cross"], given["pattern", 1, "cross"])


class TestText:
    def test_texts_of_different_length(self, tiny):
        texts = ["the cat saw a dog", "a cat"]
        cache = capture(tiny("llama"), Words(), texts, prepend_bos=True, names_filter="pattern")
        assert cache.token_ids.tolist()[1] == [1, 3, 5, 0, 0, 0]
        assert cache.mask.tolist()[1] == [True] * 3 + [False] * 3
        assert cache.tokens[1][:3] == ["<s>", "a", "cat"]
        alone = capture(tiny("llama"), Words(), "a cat", prepend_bos=True, names_filter="pattern")
        torch.testing.assert_close(cache["pattern", 1][1:, :, :3, :3], alone["pattern", 1])
        assert (cache["pattern", 1][1, :, :, 3:] == 0).all()

    def test_ids_are_named_by_the_tokenizer_or_by_number(self, tiny):
        ids = torch.tensor([[5, 90]])
        model = tiny("llama")
        assert capture(model, Words(), ids, names_filter="z").tokens == [["cat", "<id·90>"]]
        assert capture(model, None, ids, names_filter="z").tokens == [["5", "90"]]

    def test_left_padded_tokens(self, tiny):
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[0, :2] = False
        tokens = Tokens(IDS, mask, [["x"] * 6] * 2, False)
        pattern = capture(tiny("llama"), None, tokens, names_filter="pattern")["pattern", 0]
        assert (pattern[0, :, :, :2] == 0).all()
        torch.testing.assert_close(pattern[0, :, 2:].sum(-1), torch.ones(4, 4))

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            ("a cat", {}, "a text needs a tokenizer"),
            (torch.tensor([1, 2]), {}, r"integer ids \[batch, pos\]"),
            (torch.ones(1, 2), {}, "integer ids"),
            (torch.empty(1, 0, dtype=torch.int64), {}, "integer ids"),
            (torch.tensor([[3, 97]]), {}, r"lie in 0\.\.96; got 3 to 97"),
            (torch.tensor([[-1, 3]]), {}, r"lie in 0\.\.96"),
            (IDS, {"prepend_bos": True}, "prepend_bos applies to texts"),
            (IDS, {"decoder_ids": IDS}, "no decoder"),
        ],
    )
    def test_refused_input(self, tiny, text, options, message):
        with pytest.raises(InputError, match=message):
            capture(tiny("llama"), None, text, **options)


class TestRefusals:
    @pytest.mark.parametrize(
        ("family", "names", "message"),
        [
            ("gpt2", "rot_q", "no rotary positions: ask for q"),
            ("gpt2", "resid_pre", "there is no 'resid_pre'"),
            ("gpt2", "blocks.2.attn.hook_z", "there is no"),
            ("gpt2", [], "select nothing"),
            ("gpt2", lambda name: False, "select nothing"),
        ],
    )
    def test_names(self, tiny, family, names, message):
        with pytest.raises(InputError, match=message):
            capture(tiny(family), None, IDS, names_filter=names)

    def test_a_key_that_was_not_kept(self, tiny):
        cache = capture(tiny("llama"), None, IDS, names_filter="rot_q")
        with pytest.raises(InputError, match=r"Kept was rot_q.*name q in names_filter"):
            cache["q", 0]

    @pytest.mark.parametrize(
        ("heads", "message"),
        [(["L2H0"], "no head L2H0"), (["L0H4"], "no head"), ([], "empty"), (["head 3"], "written")],
    )
    def test_heads(self, tiny, heads, message):
        with pytest.raises(InputError, match=message):
            capture(tiny("llama"), None, IDS, heads=heads)

    def test_size_is_counted_before_running(self, tiny):
        model = tiny("llama")
        cache = capture(model, None, IDS, names_filter=lambda name: True)
        held = sum(tensor.numel() * tensor.element_size() for tensor in cache.values())
        options = {"names_filter": lambda name: True}
        capture(model, None, IDS, max_bytes=held, **options)
        with pytest.raises(InputError, match="Narrow them with names_filter"):
            capture(model, None, IDS, max_bytes=held - 1, **options)

    def test_results_need_a_plain_output_projection(self, tiny):
        model = tiny("llama")
        for layer in model.model.layers:
            layer.self_attn.o_proj = torch.nn.Sequential(torch.nn.Tanh(), layer.self_attn.o_proj)
        with pytest.raises(InputError, match="no plain linear map"):
            capture(model, None, IDS, names_filter="result")


SITES = [Site("a", "", 0, 2, 1, 4, 4, True), Site("b", "", 1, 2, 1, 4, 4, True)]


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.text(max_size=20),
        st.lists(st.sampled_from(["pattern", "z", "hook_v", "blocks.1.attn.hook_k", "?"])),
        st.from_regex(r"blocks\.\d\.attn\.hook_(q|k|v|z|pattern|result)", fullmatch=True),
    ),
    st.booleans(),
)
def test_any_filter_selects_known_names_or_is_refused(names, rotary):
    known = {want.name for want in choose_names(SITES, lambda n: True, None, rotary=rotary)}
    try:
        wanted = choose_names(SITES, names, None, rotary=rotary)
    except InputError:
        return
    assert wanted
    assert {want.name for want in wanted} <= known
