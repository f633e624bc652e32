"""No path builds a tensor that grows with the square of the sequence."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headatlas.kernels.api import Mask, Match, Scores, Weights, attention_probe
from headatlas.kernels.sweep import TILE

N, HEADS, D = 2048, 4, 8


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operator returned."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // leaf.itemsize)
        return result


HERE = torch.arange(N)[None]
TOKENS = torch.randint(0, 100, (1, N), generator=torch.Generator().manual_seed(0))
MATCHES = {
    "offsets": [Match(HERE - o, HERE) for o in range(1, 9)],
    "tokens": [Match(TOKENS, TOKENS, strict=True)],
    "one label": [Match(0 * TOKENS, TOKENS % 3)],
    "dense": [Match(TOKENS % 2, TOKENS % 2, strict=True)],
}


@pytest.mark.parametrize("kind", MATCHES)
@pytest.mark.parametrize(
    ("mask", "scores"),
    [
        (Mask(), Scores()),
        (Mask(window=100), Scores(softcap=5.0)),
        (Mask(k_range=torch.tensor([[5, N]])), Scores(sinks=torch.zeros(HEADS))),
    ],
    ids=["causal", "window", "padded"],
)
def test_statistics_stay_linear(kind: str, mask: Mask, scores: Scores) -> None:
    q = torch.randn(1, HEADS, N, D, generator=torch.Generator().manual_seed(1))
    rows = torch.arange(0, N, N // 32)[None]
    with Largest() as largest:
        got = attention_probe(
            q, q[:, :2], q[:, :2], mask=mask, scores=scores, matches=MATCHES[kind],
            weights=Weights(rows=rows), entropy=kind == "tokens", top=kind == "tokens",
            received=kind == "offsets",
        )  # fmt: skip
    assert got.mass is not None
    assert largest.numel >= q.numel()
    assert largest.numel < HEADS * N * N / 8


@pytest.mark.parametrize("pool", [(64, 64), (1, N), (N, 1), (1000, 7)])
def test_a_grid_needs_a_grid_and_a_tile(pool: tuple[int, int]) -> None:
    q = torch.randn(1, HEADS, N, D, generator=torch.Generator().manual_seed(1))
    with Largest() as largest:
        got = attention_probe(q, q, q, weights=Weights(pool=pool))
    assert got.weights is not None
    assert got.weights.shape[2:] == (-(-N // pool[0]), -(-N // pool[1]))
    assert largest.numel < 2 * TILE


def test_what_keys_receive_needs_a_tile() -> None:
    q = torch.randn(1, HEADS, N, D, generator=torch.Generator().manual_seed(1))
    with Largest() as largest:
        got = attention_probe(q, q, q, mask=Mask(causal=False), received=True)
    assert got.received is not None
    torch.testing.assert_close(got.received.sum(-1), torch.full((1, HEADS), float(N)))
    assert largest.numel < 2 * TILE
