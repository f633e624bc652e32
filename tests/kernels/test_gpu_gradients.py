"""Gradients of the compiled kernels, and torch.compile, on a CUDA GPU: see `test_gpu`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headatlas.kernels.api import Mask, attention_probe
from headatlas.kernels.reference import probe as reference
from headatlas.kernels.values import Request

from .test_gpu import BF16, FP16, FP32, VARIANTS, full_float32, wide
from .variants import Variant, ask, plain

__all__ = ["full_float32"]  # a fixture of this file as well
pytestmark = pytest.mark.gpu


# gradients


def gradients(out: Tensor | None, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    assert out is not None
    random = torch.Generator().manual_seed(9)
    grad = torch.randn(out.shape, generator=random).to(out.device, out.dtype)
    return torch.autograd.grad(out, leaves, grad)


def assert_gradients_agree(request: Request, mask: Mask, leaves: list[Tensor]) -> None:
    """Twice the error of plain autograd, and a unit of the inputs' type on the largest gradient.

    The fused backward rounds the gradient of the scores to that type before its products.
    """
    got = gradients(ask(request, mask, "triton").out, leaves)
    exact = gradients(reference(request, mask).out, leaves)
    rough = gradients(plain(request, mask).out, leaves)
    for at, (mine, right, usual) in enumerate(zip(got, exact, rough, strict=True)):
        assert mine.dtype == leaves[at].dtype
        error, allowed = ((x.double() - right.double()).abs().max() for x in (mine, usual))
        unit = torch.finfo(request.q.dtype).eps * (16 if request.q.dtype == FP32 else 2)
        assert float(error) <= 2 * float(allowed) + unit * float(right.abs().max()), at


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("d", [64, 80])
def test_gradients_through_aten(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, causal: bool, d: int
) -> None:
    from headatlas.kernels.fused import gradients as module

    def no_recompute(*arguments):
        raise AssertionError("recomputed where aten's backward applies")

    monkeypatch.setattr(module, "_recomputed", no_recompute)
    request = bare(wide(heads=4, d_key=d, d_value=d, n_query=255, n_key=255), dtype)
    leaves = [request.q, request.k, request.value]
    assert_gradients_agree(request, Mask(causal=causal), leaves)


RECOMPUTED = ["window", "softcap", "softcap, bias, sinks, window", "sinks", "left padding",
              "gqa, Nq < Nk"]  # fmt: skip


@pytest.mark.parametrize("name", RECOMPUTED)
def test_gradients_by_recomputing(name: str) -> None:
    variant = VARIANTS[name]
    request = bare(variant, BF16)
    others = [request.scores.sinks, request.scores.bias]
    leaves = [request.q, request.k, request.value, *(x for x in others if x is not None)]
    if request.scores.bias is not None:  # the oracle adds −3e38 as it is
        hidden = request.scores.bias.detach()
        hidden = hidden.masked_fill(hidden < -1e30, -torch.inf).requires_grad_()
        request = replace(request, scores=replace(request.scores, bias=hidden))
        leaves[-1] = hidden
    assert_gradients_agree(request, Mask(**variant.mask), leaves)


def test_gradients_in_float32() -> None:
    request = bare(wide(), FP32)
    assert_gradients_agree(request, Mask(), [request.q, request.k, request.value])


def bare(variant: Variant, dtype: torch.dtype) -> Request:
    """A call without statistics, its inputs leaves of a graph."""
    request = variant.build(dtype, "cuda")
    q, k, v = (x.detach().requires_grad_() for x in (request.q, request.k, request.value))
    made = {
        name: None if x is None else x.detach().requires_grad_()
        for name, x in (("bias", request.scores.bias), ("sinks", request.scores.sinks))
    }
    return replace(
        request, q=q, k=k, v=v, scores=replace(request.scores, **made), weights=None,
        entropy=False, top=False, received=False, matches=request.matches[1:2],
    )  # fmt: skip


# torch.compile


def test_compiled_as_one_graph() -> None:
    """Everything is compared label by label there; the kernels are those of a plain call."""
    request = VARIANTS["gqa, Nq < Nk"].build(BF16, "cuda")
    request = replace(request, matches=request.matches[:3])
    mask = Mask()

    def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        got = attention_probe(
            q, k, v, mask=mask, matches=request.matches, weights=request.weights, entropy=True,
            top=True, received=True, backend="triton",
        )  # fmt: skip
        found = got.out, got.lse, got.mass, got.entropy, got.top_weight, got.weights, got.received
        return tuple(x for x in found if x is not None)

    inputs = request.q, request.k, request.value
    got, same = torch.compile(call, fullgraph=True)(*inputs), call(*inputs)
    assert len(got) == len(same) == 7
    for mine, eager in zip(got, same, strict=True):
        torch.testing.assert_close(mine, eager, rtol=2e-5, atol=2e-6)


def test_compiled_gradients() -> None:
    request = bare(wide(heads=4), BF16)
    leaves = [request.q, request.k, request.value]

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        return attention_probe(q, k, v, backend="triton").out

    got = gradients(torch.compile(call, fullgraph=True)(*leaves), leaves)
    same = gradients(call(*leaves), leaves)
    for mine, eager in zip(got, same, strict=True):
        # aten's backward adds dq of several blocks in any order
        torch.testing.assert_close(mine, eager, rtol=2**-6, atol=2**-6)
