"""A call under torch.compile, in a process without the tests' type checks, which it cannot trace.

TRITON_INTERPRET=1 python -m tests.kernels.compiled_call
"""

from __future__ import annotations

import torch
from torch import Tensor

from headatlas.kernels.api import Mask, Match, Scores, Weights, attention_probe

N = 20


def call(q: Tensor, k: Tensor, tokens: Tensor, sinks: Tensor) -> tuple[Tensor | None, ...]:
    here = torch.arange(N)[None]
    matches = [Match(here - 1, here), Match(tokens, tokens, strict=True)]
    matches += [Match(tokens % m, tokens % m) for m in (2, 3, 4)]
    scores = Scores(softcap=4.0, sinks=sinks)
    got = attention_probe(
        q, k, k, mask=Mask(window=9), scores=scores, matches=matches, entropy=True, top=True,
        received=True, weights=Weights(heads=(1,)), backend="triton",
    )  # fmt: skip
    pooled = attention_probe(q, k, k, weights=Weights(pool=(4, 5)), backend="triton").weights
    return got.out, got.mass, got.entropy, got.top_key, got.received, got.weights, pooled


def main() -> None:
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, N, 16, generator=random) for heads in (4, 2))
    tokens, sinks = torch.arange(N)[None] % 7, torch.zeros(4)
    for x in (q, k, sinks):
        x.requires_grad_()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    given = q, k, tokens, sinks
    mine, same = compiled(*given), call(*given)
    for a, b in zip(mine, same, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    slopes = (torch.autograd.grad(x[0].square().sum(), (q, k, sinks)) for x in (mine, same))
    for a, b in zip(*slopes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    print("one graph, same results, same gradients")


if __name__ == "__main__":
    main()
