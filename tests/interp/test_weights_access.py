"""What weights say of themselves, and how those of a layer and of a head are named."""

import pytest
import torch

from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId, KvHeadId
from headatlas.interp.sites import attention_sites
from headatlas.interp.weights import head_weights

from .weight_models import build


@pytest.mark.parametrize("fold", [False, True])
def test_the_statement_says_what_is_read_and_what_is_folded(tiny, fold):
    """Word by word, of one matrix of each kind of input."""
    llama = head_weights(tiny("llama"), fold_norm=fold)[1].statement
    norm = "model.layers.1.input_layernorm"
    read = f"input of {norm}, divided by its size" if fold else f"output of {norm}"
    folded = "norm folded in" if fold else "norm not folded in"
    assert llama == (
        f"W_Q, W_K and W_V read the {read} ({folded}). W_O reads z, the input of "
        "model.layers.1.self_attn.o_proj. W_Q: before RoPE. W_K: before RoPE. All maps are exact."
    )
    latent = head_weights(tiny("deepseek_v3"), fold_norm=fold)[0].statement
    assert latent.startswith("W_Q reads the")
    for name in ("self_attn.q_a_layernorm", "self_attn.kv_a_layernorm", "input_layernorm"):
        assert f"model.layers.0.{name}" in latent
    assert " and, below it, the " in latent
    assert latent.count(f"({folded})") == 4


def test_a_statement_where_no_norm_is_read(tiny, families):
    found = head_weights(build(tiny, families, "olmo2"), fold_norm=True)[0]
    assert "W_Q reads the input of model.layers.0.self_attn.q_proj." in found.statement
    assert "folded in" not in found.statement


class TestKeys:
    def test_a_site_its_module_and_its_number_are_one(self, tiny):
        model = tiny("llama")
        weights = head_weights(model)
        site = attention_sites(model)[1]
        found = weights[site]
        assert found.site == site
        for key in (1, -1, torch.tensor(1), "model.layers.1.self_attn"):
            assert weights[key] is found
            assert key in weights
            assert weights.get(key) is found
        assert list(weights) == list(attention_sites(model))
        assert repr(weights) == "<weights of 2 attention modules: model.layers.0.self_attn, …>"

    @pytest.mark.usefixtures("as_users_call")
    @pytest.mark.parametrize(
        "key", [2, -3, True, 1.0, "model.layers.1", None, [1], HeadId("", 0, 1)]
    )
    def test_other_keys(self, tiny, key):
        weights = head_weights(tiny("llama"))
        with pytest.raises(
            InputError, match=r"module such as 'model.layers.0.self_attn', or a lay"
        ):
            weights[key]
        assert key not in weights
        assert weights.get(key) is None
        assert weights.get(key, 3) == 3

    def test_numbers_do_not_tell_stacks_apart(self, tiny):
        model = tiny("t5")
        weights = head_weights(model)
        with pytest.raises(InputError, match="tell the stacks enc, dec, cross apart"):
            weights[0]
        assert 0 not in weights
        site = attention_sites(model)[-1]
        assert weights[site.module] is weights[site]


class TestOneHead:
    def test_the_group_is_resolved(self, tiny):
        found, *_ = head_weights(tiny("llama")).values()
        head = found.head(3)
        assert (head.head, head.kv_head) == (3, 1)
        assert torch.equal(head.W_Q, found.W_Q[3])
        assert torch.equal(head.W_V, found.W_V[1])
        assert head.b_K is None
        W_V, W_O = head.ov
        assert (W_V @ W_O).shape == (32, 32)
        W_Q, W_K = head.qk
        assert torch.equal(W_Q @ W_K, found.W_Q[3] @ found.W_K[1].T)

    def test_biases(self, tiny):
        found, *_ = head_weights(tiny("gpt2")).values()
        assert torch.equal(found.head(2).b_V, found.b_V[2])

    def test_by_address(self, tiny):
        found = head_weights(tiny("llama"))[1]
        for head in ("L1H3", HeadId("", 1, 3), torch.tensor(3)):
            assert found.head(head).head == 3
        crossed = head_weights(tiny("bart"))["model.decoder.layers.1.encoder_attn"]
        assert crossed.head("cross.L1H2").head == 2

    @pytest.mark.usefixtures("as_users_call")
    @pytest.mark.parametrize(
        ("head", "message"),
        [
            (4, "has heads 0 to 3; got 4"),
            (-1, "has heads 0 to 3; got -1"),
            ("L1H4", "has heads 0 to 3; got 'L1H4'"),
            ("L10H3", "is L1, which has no head L10H3"),
            (HeadId("", 0, 3), "is L1, which has no head L0H3"),
            ("cross.L1H3", "is L1, which has no head cross.L1H3"),
            ("3", "a head is written L18H6"),
            (1.0, "a number, 0 to 3, or an address such as L1H3; got 1.0"),
            (True, "a number, 0 to 3"),
            (None, "a number, 0 to 3"),
            ([1], "a number, 0 to 3"),
            (KvHeadId("", 1, 0), "L1KV0 is a key-value head"),
        ],
    )
    def test_no_such_head(self, tiny, head, message):
        found = head_weights(tiny("llama"))[1]
        with pytest.raises(InputError, match=message):
            found.head(head)
