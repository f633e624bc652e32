"""Layers under autocast: they run, close to float32, and observers see what attention took."""

import pytest
import torch
from torch import nn

from headatlas.interp.interventions import run, zero
from headatlas.interp.layers.hooks import attach_layers

from .variants import LATENT_VARIANTS, VARIANTS, inputs, layer_of, paddings

ROUNDED = {"atol": 0.15, "rtol": 0.05}
NARROW = torch.bfloat16


def autocast():
    return torch.autocast("cpu", NARROW)


@pytest.mark.parametrize("name", VARIANTS)
class TestAutocast:
    def test_close_to_float32(self, name):
        """With gaps in the padding too; all that is seen is narrow and autocast is off then."""
        layer, x = layer_of(VARIANTS[name], dtype=torch.float32), inputs(2, 6, dtype=torch.float32)
        padding, seen = paddings(2, 6)["gap"], []

        def see(call):
            seen.append({call.q.dtype, call.k.dtype, call.v.dtype, call.z.dtype})
            assert not torch.is_autocast_enabled("cpu")

        wide = layer(x, padding=padding)
        with autocast(), attach_layers(layer, observers=[see]):
            narrow = layer(x, padding=padding)
            trace = layer.trace(x)
        assert seen == [{NARROW}] * 2
        assert narrow.dtype == trace.out.dtype == NARROW
        assert trace.attn_scores.dtype == torch.float32
        torch.testing.assert_close(narrow.float(), wide, **ROUNDED)
        assert not torch.equal(narrow.float(), wide)

    def test_decoding(self, name):
        layer, x = layer_of(VARIANTS[name], dtype=torch.float32), inputs(2, 6, dtype=torch.float32)
        with autocast():
            whole = layer(x)
            first, cache = layer.decode(x[:, :4])
            # the next layer of a stack would read what this one put out
            rest, cache = layer.decode(x[:, 4:].to(NARROW), cache)
        torch.testing.assert_close(torch.cat([first, rest], 1), whole, **ROUNDED)
        assert {t.dtype for t in cache._tensors()} == {NARROW}

    def test_gradients(self, name):
        layer, x = layer_of(VARIANTS[name], dtype=torch.float32), inputs(2, 4, dtype=torch.float32)
        with autocast():
            loss = layer(x).float().square().sum()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", LATENT_VARIANTS)
def test_absorbed(name):
    layer, x = layer_of(VARIANTS[name], dtype=torch.float32), inputs(1, 5, dtype=torch.float32)
    with autocast():
        plain, _ = layer.decode(x)
        absorbed, _ = layer.decode(x, absorb=True)
    torch.testing.assert_close(absorbed, plain, **ROUNDED)


@pytest.mark.parametrize("name", ["mha", "gqa", "mla"])
def test_stacked_layers_under_an_intervention(name):
    stack = nn.Sequential(*(layer_of(VARIANTS[name], dtype=torch.float32) for _ in range(2)))
    x = inputs(2, 5, dtype=torch.float32)
    with autocast():
        seen = run(stack, x, zero("L1H2"))
    trace = stack[1].trace(stack[0](x))
    expected = trace.out - trace.result[:, :, 2]
    assert seen.dtype == NARROW
    torch.testing.assert_close(seen.float(), expected, atol=0.6, rtol=0.1)


def test_double_precision_stays():
    layer, x = layer_of(VARIANTS["gqa"]), inputs(1, 4)
    with autocast():
        out = layer(x)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, layer(x))
