"""What is refused rather than hooked wrongly."""

import re

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from headatlas.interp import survey, switch
from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError
from headatlas.interp.sites import attention_sites, hook_drift

IDS = torch.tensor([[5, 9, 11, 9, 40, 7], [3, 4, 5, 6, 7, 8]])


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.fixture
def no_inline(monkeypatch):
    """Only the registry: what its refusals say where the model's own code shows nothing."""

    def refuse(*_):
        raise InputError("nothing.")

    monkeypatch.setattr(survey, "list_inline", refuse)


class TestKeywords:
    def test_an_unknown_one_is_refused(self, tiny):
        model = tiny("llama")
        logits(model)
        with (
            attach(model),
            pytest.raises(InputError, match=r"model\.layers\.0\.self_attn .* 'temperature'"),
        ):
            model(IDS, temperature=2.0)

    def test_packed_batches_are_refused(self, tiny):
        model = tiny("llama")
        with attach(model), pytest.raises(InputError, match="packed batches"):
            model(IDS, cu_seq_lens_q=torch.tensor([0, 6, 12]))

    def test_none_is_no_keyword(self, tiny):
        model = tiny("llama")
        own = logits(model)
        with attach(model), torch.no_grad():
            torch.testing.assert_close(model(IDS, temperature=None).logits, own)

    def test_sparse_attention_is_refused(self, tiny, no_inline):
        class Sparse(type(tiny("llama").model.layers[0].self_attn)):
            def forward(self, *args, **kwargs):
                return super().forward(*args, indices=torch.tensor([0]), **kwargs)

        model = tiny("llama")
        model.model.layers[1].self_attn.__class__ = Sparse
        with pytest.raises(InputError, match=r"layers\.1\.self_attn .*'indices': it selects keys"):
            attention_sites(model)


class TinyConfig(PretrainedConfig):
    model_type = "tiny-outsider"


class TinyAttention(nn.Module):
    """Attention that asks no registry."""

    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden_states, **_):
        q, k, v = self.qkv(hidden_states).chunk(3, -1)
        return self.out((q @ k.transpose(1, 2)).softmax(-1) @ v), None


class Outsider(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config, block=TinyAttention):
        super().__init__(config)
        self.embed, self.attention = nn.Embedding(20, 8), block(8)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids):
        return BaseModelOutput(last_hidden_state=self.attention(self.embed(input_ids))[0])


class Mixer(nn.Linear):
    def __init__(self, width):
        super().__init__(width, width)

    def forward(self, x):
        return super().forward(x), None


class TestRefusals:
    def test_attention_outside_the_registry(self):
        """Linear attention has no softmax to be seen at."""

        class LinearAttention(TinyAttention):
            def forward(self, hidden_states, **_):
                q, k, v = self.qkv(hidden_states).chunk(3, -1)
                return self.out(q @ (k.transpose(1, 2) @ v)), None

        message = (
            "LinearAttention without transformers' attention registry, so that hooks there miss "
            "it. Nor does its own code show them: no softmax over scores whose result is "
            "multiplied with values was seen."
        )
        with pytest.raises(InputError, match=re.escape(message)):
            attention_sites(Outsider(TinyConfig(), LinearAttention))

    def test_no_attention(self):
        with pytest.raises(InputError, match="Outsider has no attention heads"):
            attention_sites(Outsider(TinyConfig(), Mixer))

    def test_part_of_the_layers(self, tiny):
        model = tiny("llama")
        model.model.layers[1].self_attn = TinyAttention(32)
        with pytest.raises(InputError, match=r"not seen: model\.layers\.1\.self_attn\."):
            attention_sites(model)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_weights_that_are_not_finite(self, tiny, value):
        model = tiny("llama")
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[3, 2] = value
        name = r"model\.layers\.1\.mlp\.up_proj\.weight holds a value that is not finite"
        with pytest.raises(InputError, match=name):
            attention_sites(model)

    def test_other_objects(self):
        with pytest.raises(InputError, match="PreTrainedModel; got Linear"):
            attention_sites(nn.Linear(2, 2))

    def test_attention_that_hooks_cannot_reproduce(self, tiny):
        class Scaled(type(tiny("llama").model.layers[0].self_attn)):
            def forward(self, *args, **kwargs):
                output, weights = super().forward(*args, **kwargs)
                hooked = self.config._attn_implementation != "sdpa"
                return output * (0.5 if hooked else 1.0), weights

        model = tiny("llama")
        model.model.layers[0].self_attn.__class__ = Scaled
        with pytest.raises(InputError, match="hooked outputs differ from its own"):
            attention_sites(model)

    def test_the_refused_model_is_as_it_was(self, tiny):
        model = tiny("llama").train()
        model.model.layers[1].self_attn = TinyAttention(32)
        names = sorted(model.__dict__)
        for look in (attention_sites, hook_drift, lambda m: attach(m).__enter__()):
            with pytest.raises(InputError):
                look(model)
        assert model.config._attn_implementation == "sdpa"
        assert all(module.training for module in model.modules())
        assert sorted(model.__dict__) == names
        assert switch._HELD == {}
