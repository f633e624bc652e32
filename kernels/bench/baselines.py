"""What the probe is measured against: torch's own attention, and how patterns are scored today."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .cases import BF16, Call, Case, Found
from .problem import Ask, Problem

FLASH, CUDNN, FLEX = "SDPA-FA2", "SDPA-cuDNN", "flex+lse"
EAGER, DETECTORS = "eager export", "eager+detectors"
_DETECTED = Ask(entropy=True, top=True, compared=4, weights=BF16)


def baselines() -> list[Case]:
    """torch's fused attention, and eager attention with its weights and with detectors on them.

    Example:
        >>> [case.name for case in baselines()]
        ['SDPA-FA2', 'SDPA-cuDNN', 'flex+lse', 'eager export', 'eager+detectors']
    """
    return [
        Case(FLASH, Ask(), _sdpa, own=False, context=_only("FLASH_ATTENTION"), partial=True),
        Case(CUDNN, Ask(), _sdpa, own=False, context=_only("CUDNN_ATTENTION"), partial=True),
        Case(FLEX, Ask(), _flex, own=False, partial=True),
        Case(EAGER, Ask(weights=BF16), _eager, own=False, coarse=True, partial=True),
        Case(DETECTORS, _DETECTED, _detectors, own=False, coarse=True, partial=True),
    ]


def _only(backend: str) -> Callable[[], AbstractContextManager[Any]]:
    def context() -> AbstractContextManager[Any]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel([getattr(SDPBackend, backend)])

    return context


def _sdpa(problem: Problem) -> Call:
    q, k, v = problem.q, problem.k, problem.v

    def call() -> Found:
        return {"out": scaled_dot_product_attention(q, k, v, is_causal=True)}

    return call


def _flex(problem: Problem) -> Call:
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    q, k, v = problem.q, problem.k, problem.v
    n = problem.setting.n

    def block_mask():
        causal = lambda b, h, q, k: q >= k  # noqa: E731  # flex_attention reads its signature
        return create_block_mask(causal, None, None, n, n, device=q.device.type)

    blocks = problem.keep("flex", block_mask)
    compiled = torch.compile(flex_attention, dynamic=False)

    def call() -> Found:
        out, aux = compiled(q, k, v, block_mask=blocks, return_aux=AuxRequest(lse=True))
        if aux.lse is None:
            raise RuntimeError("flex_attention gave no lse.")
        return {"out": out}

    return call


def _attend(problem: Problem) -> Callable[[], tuple[Tensor, Tensor]]:
    """Attention as models write it: every step a tensor of all scores."""
    q, k, v, setting = problem.q, problem.k, problem.v, problem.setting
    n, scale = setting.n, setting.d**-0.5

    def build() -> Tensor:
        hidden = torch.full((n, n), torch.finfo(q.dtype).min, dtype=q.dtype, device=q.device)
        return hidden.triu(1)[None, None]

    hidden = problem.keep("eager", build)

    def call() -> tuple[Tensor, Tensor]:
        scores = torch.matmul(q, k.mT) * scale + hidden
        A = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(A, v), A

    return call


def _eager(problem: Problem) -> Call:
    attend = _attend(problem)

    def call() -> Found:
        out, A = attend()
        return {"out": out, "weights": A}

    return call


def _detectors(problem: Problem) -> Call:
    """Entropy, top weight and four masses from the written weights; label masks made before."""
    attend = _attend(problem)
    matches = problem.matches(Ask(compared=_DETECTED.compared))

    def build() -> list[Tensor]:
        return [m.q_label[:, None, :, None] == m.k_label[:, None, None] for m in matches]

    hits = problem.keep("hits", build)

    def call() -> Found:
        out, A = attend()
        top_weight, _ = A.max(-1)
        return {
            "out": out,
            "entropy": torch.special.entr(A).sum(-1, dtype=torch.float32),
            "top_weight": top_weight,
            "mass": torch.stack([(A * hit).sum(-1, dtype=torch.float32) for hit in hits], -1),
        }

    return call
