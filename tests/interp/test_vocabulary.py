"""One thing under the names that people give it: layers, heads, targets, tokens."""

import pytest
import torch

from headatlas.interp.attach import Edit
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId, KvHeadId, parse_head
from headatlas.interp.inputs import read_inputs
from headatlas.interp.intervene import intervene, run
from headatlas.interp.interventions import gate, mean, patch, resample, zero
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig
from headatlas.interp.layers.scale import diagnose_scales
from headatlas.interp.load import load
from headatlas.interp.tokens import tokenize
from headatlas.interp.weights import head_weights

TEXTS = ["the cat sat on the mat", "a dog"]


@pytest.fixture(scope="module")
def loaded():
    return load("tiny")


@pytest.fixture(scope="module")
def tokens(loaded):
    return tokenize(loaded[1], TEXTS)


@pytest.fixture(scope="module")
def encoded(tokens):
    """What a tokenizer gives under return_tensors="pt"."""
    return {"input_ids": tokens.ids, "attention_mask": tokens.mask.long()}


class TestTokens:
    def test_a_tokenizers_own_output_is_read_with_its_padding(self, loaded, tokens):
        model, tokenizer = loaded
        own = tokenizer(TEXTS, return_tensors="pt", padding=True)
        assert not own["attention_mask"].all()
        expected = run(model, tokens, zero("L0H1")).logits
        assert torch.equal(run(model, own, zero("L0H1")).logits, expected)
        seen = capture(model, tokenizer, own, names_filter="z")
        assert torch.equal(seen["z", 3], capture(model, None, tokens, names_filter="z")["z", 3])
        assert mean(model, own, "L0H1").values.origin == "the mean over 2 documents"

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"input_ids": [[1, 2]]}, "input_ids must be Tokens or integer ids"),
            ({"attention_mask": torch.ones(1, 2)}, "attention_mask must be a tensor"),
            ({"position_ids": torch.ones(2, 2)}, "holds position_ids, which is not read"),
            ({"token_type_ids": torch.ones(2, 2)}, "token_type_ids that are not 0"),
        ],
    )
    def test_what_cannot_be_passed_on(self, loaded, encoded, changes, message):
        with pytest.raises(InputError, match=message):
            read_inputs(loaded[0], {**encoded, **changes})

    @pytest.mark.usefixtures("as_users_call")
    def test_texts_are_told_apart_from_tokens(self, loaded):
        for text in ("a text", ["a text"]):
            with pytest.raises(InputError, match="tokens is text"):
                run(loaded[0], text)

    def test_generation_with_the_mask_reads_the_bos(self, loaded, tokens):
        """Without it, a BOS of the padding's number is hidden and the text is another."""
        model, ids = loaded[0], tokens.ids[:1]
        with intervene(model, gate("L0H1", 1.0)):
            out = model.generate(
                ids, attention_mask=tokens.mask[:1], max_new_tokens=3, do_sample=False
            )
        for at in range(ids.shape[1], out.shape[1]):
            assert out[0, at] == model(out[:, :at]).logits[0, -1].argmax()


class TestScales:
    def test_tokens_bring_their_mask(self, loaded, tokens, encoded):
        """A padded sequence counts as it does alone."""
        model = loaded[0]
        found = diagnose_scales(model, tokens)
        for same in (
            diagnose_scales(model, encoded),
            diagnose_scales(model, tokens.ids, tokens.mask),
        ):
            assert same[2] == found[2]
        short = tokens.ids[1:], tokens.mask[1:]
        alone = short[0][:, : tokens.lengths[1]]
        seen, expected = diagnose_scales(model, *short)[1].scaled, diagnose_scales(model, alone)
        assert seen.entropy_share == pytest.approx(expected[1].scaled.entropy_share, rel=1e-4)
        assert seen.logit_variance == pytest.approx(expected[1].scaled.logit_variance, rel=1e-4)

    def test_keys(self, loaded, tokens):
        found = diagnose_scales(loaded[0], tokens)
        site = list(found)[3]
        assert found[3] is found[-1] is found[site] is found[site.module]
        with pytest.raises(InputError, match="no scores of 4"):
            found[4]

    @pytest.mark.usefixtures("as_users_call")
    def test_refusals(self, loaded, tokens):
        with pytest.raises(InputError, match="a Tokens brings its own mask"):
            diagnose_scales(loaded[0], tokens, tokens.mask)
        with pytest.raises(InputError, match="layers read states"):
            diagnose_scales(HookedAttention(AttentionConfig(8, 2)), tokens)


class TestLayers:
    def test_negative_layers(self, loaded, tokens):
        cache = capture(loaded[0], None, tokens, layers=[-1, 0], names_filter=["z"])
        assert [name.split(".")[1] for name in cache] == ["0", "3"]
        assert torch.equal(cache["z", -1], cache["z", 3])
        assert ("z", -2) not in cache
        weights = head_weights(loaded[0])
        assert weights[-1] is weights[3]

    def test_beyond_the_first(self, loaded, tokens):
        with pytest.raises(InputError, match="no attention layer -5; it has 0 to 3"):
            capture(loaded[0], None, tokens, layers=[-5])
        with pytest.raises(InputError, match="no weights of -5"):
            head_weights(loaded[0])[-5]


class TestHeads:
    def test_pairs(self):
        assert parse_head((1, 2)) == HeadId.parse((1, 2)) == HeadId("", 1, 2)
        assert zero((1, 2)).heads == (HeadId("", 1, 2),)
        assert zero([(1, 2), "L0KV1"]).heads == (HeadId("", 1, 2), KvHeadId("", 0, 1))

    @pytest.mark.usefixtures("as_users_call")
    @pytest.mark.parametrize("pair", [(1, 2, 3), (1, -1), (True, 1), (1.0, 2)])
    def test_other_tuples(self, pair):
        with pytest.raises(InputError, match="a head is written"):
            parse_head(pair)

    def test_a_key_value_head_is_captured_as_its_group(self, loaded, tokens):
        cache = capture(loaded[0], None, tokens, heads=["L1KV1"], names_filter=["z", "v"])
        assert [str(head) for head in cache.heads] == ["L1H2", "L1H3"]
        assert cache["v", 1].shape[2] == 4
        with pytest.raises(InputError, match="no head L1KV4; it has L0KV0 to L3KV3"):
            capture(loaded[0], None, tokens, heads="L1KV4")

    def test_a_key_value_head_has_no_weights_of_its_own(self, loaded):
        with pytest.raises(InputError, match=r"L1KV1 is a key-value head.* W_K\[1\] and W_V\[1\]"):
            head_weights(loaded[0])[1].head("L1KV1")

    def test_a_patch_from_a_narrow_capture_is_refused_when_built(self, loaded, tokens):
        cache = capture(loaded[0], None, tokens, heads=["L1H2"])
        patch(cache, "L1H2")
        with pytest.raises(InputError, match=r"holds heads \[2\] of layer 1, not L1H3"):
            patch(cache, ["L1H2", "L1H3"])
        with pytest.raises(InputError, match="not L1KV4"):
            patch(cache, "L1KV4", "v")

    def test_a_patch_of_keys_captured_under_single_heads_says_why(self, loaded, tokens):
        model = loaded[0]
        with intervene(model, zero("L0H0", "k")):
            cache = capture(model, None, tokens, names_filter="rot_k")
        assert cache["rot_k", 0].shape[2] == 8
        with pytest.raises(InputError, match="single query heads had keys or values of their own"):
            run(model, tokens, patch(cache, "L0KV0", "k"))
        run(model, tokens, patch(cache, "L0H1", "k"))


class TestTargets:
    @pytest.mark.parametrize(
        ("name", "own"),
        [("attn_scores", "scores"), ("hook_z", "z"), ("rot_q", "q"), ("hook_rot_k", "k")],
    )
    def test_names_of_transformerlens(self, name, own):
        assert zero("L0H1", name).target == own
        assert Edit(name, lambda call, value: value).target == own

    @pytest.mark.parametrize(
        ("name", "message"),
        [("hook_q", "hook_q comes before RoPE"), ("hook_result", "result follows from z")],
    )
    def test_what_is_no_target(self, name, message):
        with pytest.raises(InputError, match=message):
            zero("L0H1", name)

    def test_a_patch_by_such_a_name(self, loaded, tokens):
        cache = capture(loaded[0], None, tokens, names_filter=["attn_scores"])
        assert patch(cache, "L0H1", "hook_attn_scores").target == "scores"


class TestLayersOfOurOwn:
    @pytest.mark.usefixtures("as_users_call")
    def test_what_needs_a_model_says_what_works(self, tokens):
        layer = HookedAttention(AttentionConfig(8, 2))
        takes = "A HookedAttention takes zero, gate and add"
        for make in (
            lambda: mean(layer, tokens, "L0H1"),
            lambda: resample(layer, tokens, "L0H1", seed=0),
            lambda: patch(layer, "L0H1", tokens=tokens),
        ):
            with pytest.raises(InputError, match=takes):
                make()
        with pytest.raises(InputError, match=r"got a HookedAttention\. With layers of our own"):
            capture(layer, None, tokens)

    def test_resample_names_what_makes_documents_of_one_length(self, loaded, tokens):
        with pytest.raises(InputError, match=r"headatlas\.interp\.tokens\.windows"):
            resample(loaded[0], tokens, "L0H1", seed=0)


def test_values_print_without_their_numbers(loaded, tokens):
    assert repr(tokens) == "<Tokens: 2 × 10 ids, 6 of them padding, with a BOS>"
    head = repr(head_weights(loaded[0])[1].head(3))
    assert head.startswith("OneHead(head=3, kv_head=1, W_Q=[128, 16] float32, ")
    layer = HookedAttention(AttentionConfig(8, 2))
    _, cache = layer.decode(torch.zeros(1, 3, 8))
    assert repr(cache) == "KVCache(dropped=0, k=[1, 2, 3, 4] float32, v=[1, 2, 3, 4] float32)"
    assert "tensor(" not in repr(layer.trace(torch.zeros(1, 3, 8)))
