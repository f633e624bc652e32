"""Attention that hides from names and shapes is refused; what changes after a survey is seen."""

from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.vit import modeling_vit

import headatlas as ha
from headatlas.interp.attach import Edit, attach
from headatlas.interp.errors import InputError
from headatlas.interp.sites import attention_sites

from .inline_models import build_inline
from .signal_models import build

IDS = torch.arange(8)[None] + 3


def attend(x):
    """Attention of two heads over the states themselves."""
    q = x.unflatten(-1, (2, -1)).transpose(1, 2)
    out = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    return out.transpose(1, 2).reshape(x.shape)


class Mixer(nn.Module):
    """Attends under a name that says nothing."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + attend(self.linear(x))


class ParameterAttention(nn.Module):
    """Holds no Linear."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        return x + attend(x @ self.weight)


class SoftmaxMixer(Mixer):
    def forward(self, x):
        y = self.linear(x)
        return x + torch.softmax(y @ y.mT, -1) @ x


class FlatAttention(nn.Module):
    """Gives one long vector, which its parent takes apart again."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return attend(self.linear(x)).reshape(len(x), -1)


class PoolingAttention(FlatAttention):
    def forward(self, x):
        return attend(self.linear(x))[:, -1]


class Behind(nn.Module):
    """An MLP behind something else; `give` says how that enters."""

    def __init__(self, mlp, part, give=lambda x, found: found):
        super().__init__()
        self.mlp, self.attention, self.give = mlp, part, give

    def forward(self, x):
        return self.mlp(self.give(x, self.attention(x)))


class TestHidden:
    @pytest.mark.parametrize("part", [Mixer, ParameterAttention, SoftmaxMixer])
    def test_under_another_name(self, tiny, part):
        model = tiny("llama")
        block = model.model.layers[1]
        block.mlp = Behind(block.mlp, part(model.config.hidden_size))
        with pytest.raises(InputError, match=r"attends in model\.layers\.1\.mlp\.attention beside"):
            attention_sites(model)

    @pytest.mark.parametrize(
        ("part", "give"),
        [
            (FlatAttention, lambda x, found: x + found.reshape(x.shape)),
            (PoolingAttention, lambda x, found: x + found[:, None]),
        ],
        ids=["flat", "pooled and given back"],
    )
    def test_behind_one_vector(self, tiny, part, give):
        model = tiny("llama")
        block = model.model.layers[1]
        block.mlp = Behind(block.mlp, part(model.config.hidden_size), give)
        with pytest.raises(InputError, match=r"not seen: model\.layers\.1\.mlp\.attention"):
            attention_sites(model)

    def test_pooled_and_kept_apart(self):
        """SigLIP's head reads the tokens, and nothing of it goes back to them."""
        assert len(attention_sites(build("pooling"))) == 2

    def test_beside_the_registry_in_one_module(self, tiny):
        model = tiny("llama")
        own = type(model.model.layers[0].self_attn)

        class Both(own):
            def forward(self, hidden_states, *args, **kwargs):
                output, weights = super().forward(hidden_states, *args, **kwargs)
                return output + attend(hidden_states), weights

        model.model.layers[1].self_attn.__class__ = Both
        with pytest.raises(InputError, match=r"attends in model\.layers\.1\.self_attn beside"):
            attention_sites(model)

    def test_a_function_of_ones_own(self, tiny):
        own = ALL_ATTENTION_FUNCTIONS["sdpa"]
        AttentionInterface.register("headatlas_test", lambda *args, **kwargs: own(*args, **kwargs))
        try:
            model = tiny("llama")
            model.set_attn_implementation("headatlas_test")
            with pytest.raises(InputError, match="attends by 'headatlas_test', which is none of"):
                attention_sites(model)
        finally:
            del ALL_ATTENTION_FUNCTIONS._global_mapping["headatlas_test"]

    def test_chance(self, tiny):
        model = tiny("llama")
        block = model.model.layers[0]
        block.mlp = Behind(block.mlp, nn.Identity(), lambda x, _: x + torch.randn_like(x))
        with pytest.raises(InputError, match="another output each time it runs"):
            attention_sites(model)


class TestWindowsBesideHeads:
    def test_through_the_registry(self):
        """Two windows of eight patches, laid out as twice the heads."""
        model, kind = build("vit"), modeling_vit.ViTAttention

        class Windowed(kind):
            def forward(self, x, *args, **kwargs):
                n, heads = x.shape[1] - 1, 4
                q, k, v = (
                    part(x[:, 1:]).view(len(x), 2, n // 2, heads, -1).permute(0, 3, 1, 2, 4)
                    for part in (self.q_proj, self.k_proj, self.v_proj)
                )
                own = ALL_ATTENTION_FUNCTIONS.get_interface(
                    model.config._attn_implementation, modeling_vit.eager_attention_forward
                )
                flat = [part.reshape(len(x), 2 * heads, n // 2, -1) for part in (q, k, v)]
                z, _ = own(self, *flat, None, is_causal=False, scaling=1.0, dropout=0.0)
                z = z.transpose(1, 2).reshape(q.shape).permute(0, 2, 3, 1, 4)
                return torch.cat([x[:, :1], z.reshape(len(x), n, -1)], 1), None

        for module in model.modules():
            if type(module) is kind:
                module.__class__ = Windowed
        with pytest.raises(InputError, match="attends from 8 places of each of 2 inputs"):
            attention_sites(model)


class TestChangesAfterASurvey:
    def test_a_forward_put_in_place_of_another(self, tiny):
        model = tiny("llama")
        attention_sites(model)
        module = model.model.layers[1].self_attn

        def forward(self, hidden_states, *args, **kwargs):
            return self.o_proj(attend(self.q_proj(hidden_states))), None

        module.forward = MethodType(forward, module)
        with pytest.raises(InputError, match=r"not seen: model\.layers\.1\.self_attn"):
            ha.run(model, IDS, ha.interventions.zero("L1H1"))
        del module.__dict__["forward"]
        assert ha.run(model, IDS, ha.interventions.zero("L1H1")).logits.shape[1] == 8

    def test_blocks_of_ours_are_no_change(self):
        model = build_inline("bloom")
        sites = attention_sites(model)
        with attach(model):
            assert attention_sites(model) is sites
        assert attention_sites(model) is sites

    def test_another_class(self, tiny):
        model = tiny("llama")
        attention_sites(model)
        module = model.model.layers[1].self_attn

        class Other(type(module)):
            def forward(self, hidden_states, *args, **kwargs):
                return self.o_proj(attend(self.q_proj(hidden_states))), None

        module.__class__ = Other
        with pytest.raises(InputError, match=r"layers\.1\.self_attn"):
            ha.capture(model, None, IDS)


class TestPatternsWrittenTo:
    def test_in_place(self):
        model = build_inline("bloom")

        class Strongest(nn.Module):
            def forward(self, weights):
                return weights.mul_(weights >= weights.topk(2, -1).values[..., -1:])

        for block in model.transformer.h:
            block.self_attention.attention_dropout = Strongest()
        with pytest.raises(InputError, match="changed between the softmax and the values"):
            attention_sites(model)

    @pytest.mark.parametrize(("factor", "fits"), [(2.0, True), (0.5, False)])
    def test_in_training_mode(self, factor, fits):
        """Dropout multiplies what it leaves by one number over 1."""
        model = build_inline("bloom")

        class Half(nn.Module):
            def forward(self, weights):
                if not self.training:
                    return weights
                kept = torch.arange(weights.shape[-1]) % 2 == 0
                return weights * factor * (kept if fits else 1)

        for block in model.transformer.h:
            block.self_attention.attention_dropout = Half()
        attention_sites(model)
        model.train()
        seen = []
        with attach(model, observers=[seen.append]):
            if fits:
                model(IDS)
                assert len(seen) == 2
                return
            with pytest.raises(InputError, match="changed between the softmax and the values"):
                model(IDS)


class TestCells:
    def test_blocks_around_do_not_reach_them(self):
        model, x, calls = build("vit"), torch.zeros(1, 3, 32, 32), []
        with attach(model, observers=[calls.append], edits=[Edit("v", lambda _, v: v * 0)]):
            inside = ha.token_cells(model, x)
        assert not calls
        assert (inside == ha.token_cells(model, x)).all()
        assert inside.max(0).tolist() == [3, 3]

    def test_nobody_writes_into_what_is_kept(self):
        model, x = build("vit"), torch.zeros(1, 3, 32, 32)
        ha.token_cells(model, x)[:] = 7
        assert ha.token_cells(model, x).max() == 3

    def test_other_embeddings(self):
        model, x = build("vit"), torch.zeros(1, 3, 32, 32)
        assert len(ha.token_cells(model, x)) == 17
        model.vit.embeddings = build("vit", patch_size=4).vit.embeddings
        assert len(ha.token_cells(model, x)) == 65

    @pytest.mark.parametrize(
        ("kernel", "stride", "padding"), [(7, 4, 3), (3, 2, 1), (12, 8, 2), (12, 8, 0), (6, 8, 0)]
    )
    def test_patches_that_overlap_or_are_padded(self, kernel, stride, padding):
        n = (32 + 2 * padding - kernel) // stride + 1
        model = build("vit", image_size=n * stride, patch_size=stride)
        patches = model.vit.embeddings.patch_embeddings
        patches.projection = nn.Conv2d(3, 32, kernel, stride, padding)
        model.config.image_size = 32
        for module in model.modules():
            if hasattr(module, "image_size"):
                module.image_size = (32, 32)
        cells = ha.token_cells(model, torch.zeros(1, 3, 32, 32))
        rows, columns = divmod(torch.arange(n * n).numpy(), n)
        assert cells[0].tolist() == [-1, -1]
        assert (cells[1:, 0] == rows).all()
        assert (cells[1:, 1] == columns).all()

    def test_small_values_beside_large_positions(self):
        model = build("vit")
        with torch.no_grad():
            model.vit.embeddings.position_embeddings.mul_(1000)
        assert ha.token_cells(model, torch.zeros(1, 3, 32, 32)).max(0).tolist() == [3, 3]

    def test_masks_of_patches_are_no_padding(self):
        x = torch.zeros(1, 3, 32, 32)
        with pytest.raises(InputError, match="holds bool_masked_pos besides"):
            ha.capture(
                build("vit"), None, {"pixel_values": x, "bool_masked_pos": torch.ones(1, 16)}
            )
