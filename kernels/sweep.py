"""Statistics that need every weight: A is computed tile by tile and summed where it stands.

A tile is a few rows of all heads over the keys they see, small enough to stay in cache, so memory
is O(N) per head whatever is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .blocks import Rows, hide, log_weights, weigh
from .chunks import bias_block
from .masks import Mask
from .plan import Plan
from .values import Request

TILE = 5 << 17  # numbers per tile on a CPU: 2.5 MB of float32
_STRETCH = 32
_NEVER = float("-inf")
_HEIGHTS = (256, 128, 64, 32, 16, 8)


@dataclass(frozen=True)
class Tile:
    """Rows of one sequence and the keys they touch.

    Args:
        sequence: Which sequence.
        rows: First and one past the last row.
        keys: First and one past the last key that any row sees.
        edges: Keys in this range are visible to every live row.
        pairs: First and one past the last of the plan's listed pairs that stand in these rows.

    Example:
        >>> tile = Tile(0, rows=(0, 4), keys=(0, 4), edges=(0, 1))
        >>> tile.pairs
        (0, 0)
    """

    sequence: int
    rows: tuple[int, int]
    keys: tuple[int, int]
    edges: tuple[int, int]
    pairs: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Sums:
    """Where the sweep writes; None is not computed.

    Args:
        mass: [head, batch, slot, query].
        column: [head, batch, query, column].
        entropy: [batch, head, query].
        top_weight: [batch, head, query].
        top_key: [batch, head, query].
        received: [batch, head, key], float64: tile after tile is added to the same keys.

    Example:
        >>> Sums(entropy=torch.zeros(1, 2, 3)).entropy.shape
        torch.Size([1, 2, 3])
    """

    mass: Float[Tensor, "head batch slot query"] | None = None
    column: Float[Tensor, "head batch query column"] | None = None
    entropy: Float[Tensor, "batch head query"] | None = None
    top_weight: Float[Tensor, "batch head query"] | None = None
    top_key: Int[Tensor, "batch head query"] | None = None
    received: Float[Tensor, "batch head key"] | None = None


def sweep(
    request: Request,
    mask: Mask,
    plan: Plan | None,
    norm: Float[Tensor, "batch head query"],
    sums: Sums,
) -> None:
    """Fill `sums` from the tiles of A.

    Args:
        request: The call; q and k already in the statistics' type.
        mask: Its mask.
        plan: How the matches are summed; None without matches.
        norm: lse, plus infinity on dead rows.
        sums: Zeroed (`top_key`: -1) tensors, written in place.

    Example:
        >>> from .values import Scores
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> sums = Sums(entropy=torch.zeros(1, 1, 2))
        >>> call = Request(q=x, k=x, v=x, scores=Scores())
        >>> sweep(call, Mask(), None, torch.tensor([[[1.0, 2.0]]]).log(), sums)
        >>> (sums.entropy[0, 0].exp()).tolist()
        [1.0, 2.0]
    """
    sizes, device = request.sizes, request.q.device
    lo, hi = mask.intervals(*sizes, device)
    for tile in _tiles(request, mask, plan, (lo, hi)):
        b, rows, keys = (
            slice(tile.sequence, tile.sequence + 1),
            slice(*tile.rows),
            slice(*tile.keys),
        )
        bias = None if request.scores.bias is None else bias_block(request, b, rows, keys).detach()
        block = Rows(
            request.q[b, :, rows], request.k[b, :, keys], norm[b, :, rows],
            lo[b, rows], hi[b, rows], keys.start, bias,
        )  # fmt: skip
        A = _add_rows(block, request, tile, sums)
        if sums.received is not None:
            sums.received[b, :, keys] += A.sum(-2)
        if sums.mass is not None and plan is not None:
            _add_masses(A[0], tile, (request, mask, plan), sums)


def _add_rows(block: Rows, request: Request, tile: Tile, sums: Sums) -> Tensor:
    """Entropy and top of a tile; returns its A."""
    b, rows = slice(tile.sequence, tile.sequence + 1), slice(*tile.rows)
    t = log_weights(block, request)
    if sums.top_key is not None and sums.top_weight is not None:
        # Of ln A: it orders the keys even where every weight is too small for exp
        best, key = lowest_top(hide(t, block, tile.edges, _NEVER))
        sums.top_weight[b, :, rows] = best.exp()
        sums.top_key[b, :, rows] = torch.where(best > _NEVER, key + block.key0, -1)
    A, log_A = weigh(t, block, tile.edges, logs=sums.entropy is not None)
    if sums.entropy is not None and log_A is not None:
        entropy = torch.linalg.vecdot(A, log_A)
        if bool((entropy.isnan() & ~block.lse.isnan()).any()):  # 0 * NaN of a hidden key
            entropy = torch.linalg.vecdot(A, hide(log_A, block, tile.edges, 0.0))
        sums.entropy[b, :, rows] = entropy.neg_()
    return A


def lowest_top(
    A: Float[Tensor, "*shape key"],
) -> tuple[Float[Tensor, "*shape"], Int[Tensor, "*shape"]]:
    """The largest entry along the last axis and its lowest index.

    torch's max with index costs ten times max alone, so it is only asked within the winning
    stretch of 32.

    Args:
        A: At least one key.

    Returns:
        Values and indices.

    Example:
        >>> lowest_top(torch.tensor([0.1, 0.4, 0.4]))
        (tensor(0.4000), tensor(1))
    """
    whole = A.shape[-1] // _STRETCH * _STRETCH
    if whole == 0:
        return A.amax(-1), A.argmax(-1)
    stretches = A[..., :whole].unflatten(-1, (-1, _STRETCH))
    tops = stretches.amax(-1)
    best, which = tops.amax(-1), tops.argmax(-1)
    winner = stretches.gather(-2, which[..., None, None].expand(*which.shape, 1, _STRETCH))
    key = which * _STRETCH + winner.squeeze(-2).argmax(-1)
    if whole < A.shape[-1]:
        tail = A[..., whole:]
        last = tail.amax(-1)
        key = torch.where(last > best, tail.argmax(-1) + whole, key)
        best = torch.maximum(best, last)
    return best, key


def _add_masses(A: Tensor, tile: Tile, call: tuple[Request, Mask, Plan], sums: Sums) -> None:
    request, mask, plan = call
    heads, _, n = A.shape
    b, rows, keys = tile.sequence, slice(*tile.rows), slice(*tile.keys)
    if sums.mass is None:
        return
    if tile.pairs[0] < tile.pairs[1]:
        at, cell = _locate(tile, plan)
        found = A.view(heads, -1).index_select(1, at)
        sums.mass[:, b].flatten(1).scatter_add_(1, cell.expand_as(found), found)
    if plan.columns is not None and sums.column is not None:
        flat = A.view(-1, n) @ plan.columns.keys[b, keys]
        sums.column[:, b, rows] = flat.view(heads, -1, flat.shape[-1])
    for index in plan.compared:
        match = request.matches[index]
        q_label, k_label = (
            x.to(A.device) for x in (match.q_label[b, rows], match.k_label[b, keys])
        )
        equal = q_label[:, None] == k_label
        if match.strict:
            own = mask.positions(*request.sizes, A.device)[b, rows]
            equal &= torch.arange(*tile.keys, device=A.device) != own[:, None]
        sums.mass[:, b, index, rows] = (A * equal).sum(-1)


def _locate(tile: Tile, plan: Plan) -> tuple[Tensor, Tensor]:
    """Flat index (row, key) of the tile's pairs in it, and (match, query) of where they go.

    Cheaper to compute at each call, from indices of half the size, than to keep in memory.
    """
    _, n_slot, n_query, n_key = plan.shape
    part, b = slice(*tile.pairs), tile.sequence
    width = tile.keys[1] - tile.keys[0]
    at = (plan.pairs.row[part] - (b * n_query + tile.rows[0])) * width
    at += plan.pairs.key[part] - (b * n_key + tile.keys[0])
    return at, plan.pairs.cell[part].long() - b * n_slot * n_query


def _tiles(
    request: Request, mask: Mask, plan: Plan | None, span: tuple[Tensor, Tensor]
) -> Sequence[Tile]:
    heads, device = request.q.shape[1], request.q.device
    if plan is None:
        key = ("tiles", *request.sizes, heads, device)
        return mask.remember(key, lambda: _cut(span, heads, None))
    key = ("tiles", heads)
    if key not in plan.memory:
        plan.memory[key] = _cut(span, heads, plan)
    return plan.memory[key]  # type: ignore[return-value]


def _cut(span: tuple[Tensor, Tensor], heads: int, plan: Plan | None) -> list[Tile]:
    """Rows of each sequence in tiles of about `TILE` numbers."""
    los, his = (x.cpu().numpy() for x in span)
    on_cpu = span[0].device.type == "cpu"
    budget = TILE * (torch.get_num_threads() if on_cpu else 32)
    tiles = []
    for b, (lo, hi) in enumerate(zip(los, his, strict=True)):
        live = hi > lo
        first = int(live.argmax()) if live.any() else len(live)
        while first < len(live):
            last = first + _height(lo[first:], hi[first:], budget // heads)
            on = live[first:last]
            if on.any():
                los_on, his_on = lo[first:last][on], hi[first:last][on]
                keys = int(los_on.min()), int(his_on.max())
                # Dead rows see nothing: then no key is visible to all
                edges = (int(los_on.max()), int(his_on.min())) if on.all() else (0, 0)
                tiles.append(_tile(b, (first, last), keys, edges, plan))
            first = last
    return tiles


def _height(lo: np.ndarray, hi: np.ndarray, budget: int) -> int:
    """The largest number of rows whose tile of one head stays within the budget."""
    for height in _HEIGHTS:
        height = min(height, len(lo))
        on = hi[:height] > lo[:height]
        if not on.any() or height * (hi[:height].max() - lo[:height][on].min()) <= budget:
            return height
    return min(_HEIGHTS[-1], len(lo))


def _tile(
    b: int, rows: tuple[int, int], keys: tuple[int, int], edges: tuple[int, int], plan: Plan | None
) -> Tile:
    if plan is None or not len(plan.pairs):
        return Tile(b, rows, keys, edges)
    base = b * plan.shape[2]
    row = plan.pairs.row
    bounds = torch.tensor([base + rows[0], base + rows[1]], dtype=row.dtype, device=row.device)
    first, last = torch.searchsorted(row, bounds).tolist()
    return Tile(b, rows, keys, edges, (first, last))
