"""Label-match mass from listed pairs: one dot product per matching pair, nothing else.

mass[i, m] = sum over listed (i, j) of exp(s[i, j] - lse[i])
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .blocks import exp_weights
from .plan import Pairs, Plan
from .values import Request

_PIECE = 1 << 17  # pairs × group per sampled product: bounds the memory, keeps it in cache
_GATHER = 1 << 16  # numbers per gathered chunk, where there is no sampled product


@dataclass(frozen=True)
class Piece:
    """Pairs of a range of rows as a sparse pattern, once per query head of a group.

    Args:
        rows: First and one past the last row (sequence * n_query + query).
        pairs: First and one past the last pair.
        pattern: Zero CSR matrix [group * rows, sequences * keys] that is nonzero at the pairs.

    Example:
        >>> pattern = _pattern(torch.tensor([0, 1]), torch.tensor([2]), 3, torch.float32)
        >>> Piece(rows=(0, 1), pairs=(0, 1), pattern=pattern).pattern.shape
        torch.Size([1, 3])
    """

    rows: tuple[int, int]
    pairs: tuple[int, int]
    pattern: Tensor


def add_pairs(
    request: Request,
    plan: Plan,
    lse: Float[Tensor, "head row"],
    mass: Float[Tensor, "head cell"],
) -> None:
    """Add the weight of every listed pair to its cell.

    Args:
        request: The call; q and k already in the statistics' type.
        plan: Where the pairs are.
        lse: Per head, rows of all sequences in a line; plus infinity on dead rows.
        mass: Per head, cells as `Pairs.cell` numbers them; written in place.

    Example:
        >>> from .planning import plan_matches
        >>> from .masks import Mask
        >>> from .values import Match, Scores
        >>> x, here = torch.zeros(1, 1, 3, 2), torch.arange(3)[None]
        >>> call = Request(q=x, k=x, v=x, scores=Scores(), matches=(Match(here - 1, here),))
        >>> mass = torch.zeros(1, 3)
        >>> add_pairs(call, plan_matches(call, Mask()), torch.zeros(1, 3), mass)
        >>> mass
        tensor([[0., 1., 1.]])
    """
    if not len(plan.pairs):
        return
    fused = request.q.device.type == "cpu"
    score = _sampled(request, plan) if fused else _gathered(request, plan.pairs)
    for first, last, s in score:
        part = slice(first, last)
        row = plan.pairs.row[part]
        s = _cap_and_bias(request, s, row, plan.pairs.key[part])
        hidden = None if request.scores.bias is None else s == float("-inf")
        weight = exp_weights(s.sub_(lse.index_select(1, row)))
        if hidden is not None:
            weight.masked_fill_(hidden, 0.0)
        mass.scatter_add_(1, plan.pairs.cell[part].long().expand_as(weight), weight)


def _sampled(request: Request, plan: Plan):
    """Scaled dot products of consecutive pairs, by torch's sampled dense-dense product.

    Sequences are laid end to end and the heads of a group become extra rows, so that one pattern
    serves all sequences and k is never repeated.
    """
    q, k, group = request.q, request.k, request.group
    batch, n_kv = k.shape[:2]
    width = q.shape[-1]
    rows = q.view(batch, n_kv, group, -1, width).permute(1, 2, 0, 3, 4)
    rows = rows.reshape(n_kv, group, -1, width)
    keys = k.transpose(0, 1).reshape(n_kv, -1, width)
    for piece in _pieces(plan, group, q.dtype):
        part = rows[:, :, slice(*piece.rows)]
        n = piece.pairs[1] - piece.pairs[0]
        s = [
            torch.sparse.sampled_addmm(
                piece.pattern,
                part[head].reshape(-1, width),
                keys[head].mT,
                beta=0.0,
                alpha=request.scale,
            ).values()
            for head in range(n_kv)
        ]
        yield *piece.pairs, torch.cat(s).view(n_kv * group, n)


def _pieces(plan: Plan, group: int, dtype: torch.dtype) -> list[Piece]:
    memory, key = plan.memory, ("pieces", group, dtype)
    if key not in memory:
        memory[key] = _cut(plan, group, dtype)
    return memory[key]  # type: ignore[return-value]


def _cut(plan: Plan, group: int, dtype: torch.dtype) -> list[Piece]:
    batch, _, n_query, n_key = plan.shape
    n_row = batch * n_query
    counts = torch.bincount(plan.pairs.row, minlength=n_row)
    ends = counts.cumsum(0)
    done, first_row, pieces = 0, 0, []
    limit = max(_PIECE // group, 1)
    while done < len(plan.pairs):
        # At least one row, else as many as stay under the limit
        last_row = int(torch.searchsorted(ends, done + limit, right=True))
        last_row = min(max(last_row, first_row + 1), n_row)
        last = int(ends[last_row - 1])
        if last > done:
            crow = torch.zeros(group * (last_row - first_row) + 1, dtype=torch.int64)
            crow[1:] = counts[first_row:last_row].repeat(group).cumsum(0)
            column = plan.pairs.key[done:last].repeat(group)
            pattern = _pattern(crow, column, batch * n_key, dtype)
            pieces.append(Piece((first_row, last_row), (done, last), pattern))
        first_row, done = last_row, last
    return pieces


def _pattern(crow: Tensor, column: Tensor, n_column: int, dtype: torch.dtype) -> Tensor:
    index = torch.int32 if max(len(column), n_column) < 2**31 else torch.int64
    with warnings.catch_warnings():  # torch calls its CSR tensors beta, once per process
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(
            crow.to(index),
            column.to(index),
            torch.zeros(len(column), dtype=dtype),
            size=(len(crow) - 1, n_column),
            check_invariants=False,  # a key may stand twice in a row: once per match
        )


def _gathered(request: Request, pairs: Pairs):
    """The same by gathering q and k rows in chunks: for devices without a sampled product."""
    q, k, group = request.q, request.k, request.group
    n_kv, width = k.shape[1], q.shape[-1]
    rows = q.transpose(0, 1).reshape(n_kv, group, -1, width)
    keys = k.transpose(0, 1).reshape(n_kv, 1, -1, width)
    step = max(_GATHER // (q.shape[1] * width), 1)
    step = step if q.device.type == "cpu" else 256 * step
    for first in range(0, len(pairs), step):
        last = min(first + step, len(pairs))
        dots = rows[:, :, pairs.row[first:last]] * keys[:, :, pairs.key[first:last]]
        yield first, last, dots.sum(-1).mul_(request.scale).view(n_kv * group, -1)


def _cap_and_bias(request: Request, s: Tensor, row: Tensor, key: Tensor) -> Tensor:
    """Softcap and bias of scaled products [head, pair]."""
    cap, bias = request.scores.softcap, request.scores.bias
    if cap is not None:
        s = s.div_(cap).tanh_().mul_(cap)
    if bias is None:
        return s
    batch, n_query, n_key = request.sizes
    full = bias.detach().expand(batch, bias.shape[1], n_query, n_key)
    at = full[row // n_query, :, row % n_query, key % n_key]  # [pair, head or 1]
    return s.add_(at.T.to(s.dtype))
