import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.layers.projections import rms_norm
from headatlas.interp.layers.rope import Rope, rotate


def at(*positions):
    return torch.tensor([positions])


@settings(max_examples=30, deadline=None)
@given(
    pairs=st.integers(1, 5),
    rest=st.integers(0, 3),
    interleaved=st.booleans(),
    position=st.integers(0, 10_000),
)
def test_each_pair_turns_as_a_complex_number(pairs, rest, interleaved, position):
    rope = Rope(theta=50.0, d_rotary=2 * pairs, interleaved=interleaved)
    x = torch.randn(1, 2, 1, 2 * pairs + rest, dtype=torch.float64)
    rotation = rope.rotation(at(position), x.shape[-1], x.dtype)
    turned = rotate(x, rotation, interleaved=interleaved)
    angle = position * rope.frequencies(x.shape[-1])
    phase = torch.polar(torch.ones(pairs), angle).to(torch.complex128)
    for m in range(pairs):
        a, b = (2 * m, 2 * m + 1) if interleaved else (m, m + pairs)
        expected = torch.complex(x[..., a], x[..., b]) * phase[m]
        torch.testing.assert_close(turned[..., a], expected.real, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(turned[..., b], expected.imag, rtol=1e-5, atol=1e-5)
    assert torch.equal(turned[..., 2 * pairs :], x[..., 2 * pairs :])


def test_the_factor_multiplies():
    x = torch.randn(1, 1, 2, 4)
    plain = Rope().rotation(at(1, 2), 4, torch.float32)
    scaled = Rope(attention_factor=2.0).rotation(at(1, 2), 4, torch.float32)
    torch.testing.assert_close(rotate(x, scaled), 2 * rotate(x, plain))


def test_given_frequencies_replace_theta():
    rope = Rope(theta=7.0, inv_freq=(0.25, 0.125))
    assert rope.frequencies(4).tolist() == [0.25, 0.125]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm(dtype):
    x = torch.randn(3, 8).to(dtype)
    weight = torch.randn(8).to(dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    limit = 4 * torch.finfo(dtype).eps
    for offset in (False, True):
        expected = exact * (weight.double() + offset)
        seen = rms_norm(x, weight, 1e-6, unit_offset=offset)
        assert seen.dtype == dtype
        torch.testing.assert_close(seen.double(), expected, rtol=limit, atol=limit)
