"""Attention weights as the small integers of a page, gathered row by row.

A text of up to `EXACT` tokens has every weight on its page, a longer one the largest weight of each
cell of a coarse grid and the strongest keys of each query. All of it is deflated as it comes, so
that no pattern is ever held.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .window import Window

EXACT = 512
GRID = 128
STRONGEST = 4
NO_KEY = 0xFFFF
"""Of a query that sees fewer keys than there are places for; also the most tokens of a page."""

_BYTE, _SHORT = 0xFF, 0xFFFF


def cell_size(n_tokens: int) -> int:
    """Tokens per cell and axis: 1 up to `EXACT`, else as few as make a grid of at most `GRID`.

    Example:
        >>> cell_size(512), cell_size(513), cell_size(4096)
        (1, 5, 32)
    """
    return 1 if n_tokens <= EXACT else -(-n_tokens // GRID)


def as_bytes(weights: Float[Tensor, "*shape"]) -> np.ndarray:
    """The roots of weights in units of 1/255, rounded: small weights keep their size.

    Off by at most √A / 255: 0.004 where A is 1, 0.0004 where it is 0.01. Weights of 1/4 and more
    are among the strongest of their row, which the page knows to 1/65535.
    """
    return (weights.clamp_min(0).sqrt() * _BYTE).round().to(torch.uint8).cpu().numpy()


def largest_by_cell(
    weights: Float[Tensor, "head row key"], cell: int
) -> Float[Tensor, "head cell_row cell_key"]:
    """The largest weight of each cell; cells at the far edges hold fewer entries.

    Example:
        >>> largest_by_cell(torch.tensor([[[0.5, 0.25, 0.25]]]), 2)
        tensor([[[0.5000, 0.2500]]])
    """
    rows, keys = (-(-size // cell) for size in weights.shape[1:])
    room = (0, keys * cell - weights.shape[2], 0, rows * cell - weights.shape[1])
    padded = torch.nn.functional.pad(weights, room)
    return padded.reshape(-1, rows, cell, keys, cell).amax(dim=(2, 4))


def strongest(weights: Float[Tensor, "head row key"]) -> tuple[np.ndarray, np.ndarray]:
    """Keys and weights (in 1/65535) of each row's largest weights, largest first.

    Returns:
        Two arrays of uint16, [head, row, STRONGEST]; a weight of 0 has the key `NO_KEY`.
    """
    found = weights.topk(min(STRONGEST, weights.shape[-1]), dim=-1)
    values = (found.values * _SHORT).round().cpu().numpy().astype(np.uint16)
    keys = found.indices.cpu().numpy().astype(np.uint16)
    keys[values == 0] = NO_KEY
    short = ((0, 0), (0, 0), (0, STRONGEST - keys.shape[-1]))
    return np.pad(keys, short, constant_values=NO_KEY), np.pad(values, short)


@dataclass(eq=False)
class Block:
    """A deflated stream of numbers."""

    _deflate: zlib._Compress = field(default_factory=lambda: zlib.compressobj(6))
    _parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def put(self, numbers: np.ndarray) -> None:
        """Append numbers, row by row, little-endian."""
        self._keep(self._deflate.compress(np.ascontiguousarray(numbers).tobytes()))

    def finish(self) -> bytes:
        """All that was put, deflated (RFC 1950)."""
        self._keep(self._deflate.flush())
        return b"".join(self._parts)

    def _keep(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)


@dataclass(eq=False)
class HeadBlocks:
    """What a page holds of one head."""

    windows: tuple[Window, ...]
    cells: Block = field(default_factory=Block)
    keys: Block = field(default_factory=Block)
    weights: Block = field(default_factory=Block)
    exact: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.exact = [Block() for _ in self.windows]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All of them, in the order of the page."""
        return (self.cells, self.keys, self.weights, *self.exact)

    @property
    def size(self) -> int:
        """Bytes so far."""
        return sum(block.size for block in self.blocks)


def put_rows(
    into: list[HeadBlocks],
    weights: Float[Tensor, "head row seen_key"],
    start: int,
    *,
    cell: int,
    n_tokens: int,
) -> None:
    """Add rows `start`, `start` + 1, … of each head; whole cells of them, but for the last.

    Args:
        into: one per head.
        weights: of these rows, on as many keys as they may see, from the first on.
        start: the first row.
        cell: tokens per cell and axis.
        n_tokens: of the text: keys that are not given weigh 0.
    """
    cells = as_bytes(weights if cell == 1 else largest_by_cell(weights, cell))
    cells = _widened(cells, -(-n_tokens // cell))
    keys, values = strongest(weights)
    for number, head in enumerate(into):
        head.cells.put(cells[number])
        head.keys.put(keys[number].astype("<u2"))
        head.weights.put(values[number].astype("<u2"))
        for window, block in zip(head.windows, head.exact, strict=True):
            first, last = (min(max(row - start, 0), weights.shape[1]) for row in window.rows)
            if first < last:
                exact = as_bytes(weights[number, first:last, slice(*window.keys)])
                block.put(_widened(exact, window.keys[1] - window.keys[0]))


def _widened(numbers: np.ndarray, width: int) -> np.ndarray:
    """With zeros at the end of its last axis."""
    room = [(0, 0)] * (numbers.ndim - 1) + [(0, width - numbers.shape[-1])]
    return np.pad(numbers, room)
