"""Gradients of `out` on the CPU backend against finite differences, in float64."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from headatlas.kernels.api import Mask, Match, Scores, attention_probe

PADDED = torch.tensor([[1, 4], [0, 3]])
N = 4


def tensors(d_value: int = 3) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    shapes = ((2, 2, N, 3), (2, 1, N, 3), (2, 1, N, d_value))
    made = (torch.randn(*s, generator=random, dtype=torch.float64) for s in shapes)
    return tuple(x.requires_grad_() for x in made)


@pytest.mark.parametrize("d_value", [3, 2])
@pytest.mark.parametrize(
    "mask",
    [
        Mask(),
        Mask(causal=False),
        Mask(k_range=PADDED),
        Mask(window=2),
        Mask(q_pos=torch.tensor([[-1, 0, 5, 2], [0, 1, 2, 3]])),
    ],
    ids=["causal", "full", "padded", "window", "positions"],
)
def test_q_k_v(mask: Mask, d_value: int) -> None:
    assert gradcheck(lambda *x: attention_probe(*x, mask=mask).out, tensors(d_value))


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("mask", [Mask(), Mask(k_range=PADDED)], ids=["causal", "padded"])
def test_bias_and_sinks(mask: Mask, softcap: float | None) -> None:
    random = torch.Generator().manual_seed(1)
    bias = torch.randn(1, 2, N, N, generator=random, dtype=torch.float64).requires_grad_()
    sinks = torch.randn(2, generator=random, dtype=torch.float64).requires_grad_()

    def out(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Tensor | None:
        scores = Scores(softcap=softcap, bias=bias, sinks=sinks)
        return attention_probe(q, k, v, mask=mask, scores=scores).out

    assert gradcheck(out, (*tensors(), bias, sinks))


def test_a_fixed_bias_that_hides_whole_rows() -> None:
    bias = torch.zeros(1, 1, N, N, dtype=torch.float64)
    bias[..., 3, :] = -torch.inf
    bias[..., 1] = -torch.inf
    assert gradcheck(lambda *x: attention_probe(*x, scores=Scores(bias=bias)).out, tensors())


def test_sinks_alone_reach_q_and_k() -> None:
    sinks = torch.full((2,), 0.5, dtype=torch.float64)
    assert gradcheck(lambda *x: attention_probe(*x, scores=Scores(sinks=sinks)).out, tensors())


def test_statistics_carry_no_gradient() -> None:
    q, k, v = tensors()
    here = torch.arange(N).expand(2, N)
    got = attention_probe(q, k, v, matches=[Match(here - 1, here)], entropy=True, top=True)
    assert got.out is not None
    assert got.out.requires_grad
    for part in (got.lse, got.mass, got.entropy, got.top_weight):
        assert part is not None
        assert not part.requires_grad
