"""Attention weights pooled into a grid: a thumbnail of a long context, never its N × N weights."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from .blocks import log_weights, weigh
from .export import chosen_rows
from .masks import Mask
from .sweep import TILE
from .values import Request


def pool_weights(
    request: Request, mask: Mask, norm: Float[Tensor, "batch head query"]
) -> Float[Tensor, "batch chosen_head cell_row cell_key"]:
    """Mean or maximum of A over cells of rows × keys, in memory of the grid and one tile.

    A is computed a few rows at a time and reduced where it stands. A step either holds whole rows
    of cells or, where a cell is higher than a step, a part of one.

    Args:
        request: The call, with `weights.pool` set; q and k already in the statistics' type.
        mask: Its mask.
        norm: lse, plus infinity on dead rows.

    Returns:
        The grid in the type asked for.

    Example:
        >>> from .values import Scores, Weights
        >>> x = torch.zeros(1, 1, 3, 4)
        >>> call = Request(q=x, k=x, v=x, scores=Scores(), weights=Weights(pool=(2, 2)))
        >>> pool_weights(call, Mask(), torch.tensor([[[1.0, 2.0, 3.0]]]).log())[0, 0]
        tensor([[0.5000, 0.0000],
                [0.3333, 0.3333]])
    """
    wanted = request.weights
    if wanted is None or wanted.pool is None:
        raise ValueError("pool_weights needs weights.pool")
    batch, n_query, n_key = request.sizes
    device, heads = request.q.device, request.q.shape[1]
    chosen = None if wanted.heads is None else torch.tensor(wanted.heads, dtype=torch.int64)
    n_head = heads if chosen is None else len(chosen)
    height, width = (
        min(int(size), max(n, 1)) for size, n in zip(wanted.pool, (n_query, n_key), strict=True)
    )
    in_rows, in_keys = entries(n_query, height, device), entries(n_key, width, device)
    shape = (batch, n_head, len(in_rows), len(in_keys))
    out = torch.zeros(shape, dtype=wanted.dtype or request.q.dtype, device=device)
    step = max(TILE // max(batch * n_head * n_key, 1), 8)
    cells = max(step // height, 1)
    for first in range(0, shape[2] if out.numel() else 0, cells):
        part = slice(first, min(first + cells, shape[2]))
        strip = norm.new_zeros(out[:, :, part].shape, dtype=torch.float64)
        last = min(part.stop * height, n_query)
        for row in range(first * height, last, step):
            index = torch.arange(row, min(row + step, last), device=device).expand(batch, -1)
            block, edges = chosen_rows(request, mask, norm, index, chosen)
            if edges is not None:
                A = weigh(log_weights(block, request), block, edges)[0]
                _add(A, block.key0, (height, width), strip, largest=wanted.reduce == "max")
        if wanted.reduce == "mean":
            strip /= in_rows[part, None] * in_keys
        out[:, :, part] = strip
    return out


def entries(n: int, size: int, device: torch.device) -> Int[Tensor, " cell"]:
    """How many of n indices each stretch of `size` holds.

    Args:
        n: Indices.
        size: Indices per stretch, at least 1.
        device: Where the result lives.

    Example:
        >>> entries(7, 3, torch.device("cpu")).tolist()
        [3, 3, 1]
    """
    return (n - torch.arange(0, n, size, device=device)).clamp(max=size)


def _add(A: Tensor, key0: int, cell: tuple[int, int], strip: Tensor, *, largest: bool) -> None:
    """Reduce rows, then keys; missing entries are 0, which changes no sum and no maximum."""
    n = A.shape[2]
    height, width = min(cell[0], n), cell[1]
    if n % height:
        A = pad(A, (0, 0, 0, -n % height))
    A = A.unflatten(2, (-1, height))
    rows = A.amax(3) if largest else A.sum(3)
    left = key0 % width
    rows = pad(rows, (left, -(left + rows.shape[-1]) % width)).unflatten(-1, (-1, width))
    part = strip[..., key0 // width :][..., : rows.shape[-2]]
    if largest:
        torch.maximum(part, rows.amax(-1).to(strip.dtype), out=part)
    else:
        part += rows.sum(-1)
