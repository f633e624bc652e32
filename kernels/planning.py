"""Decide, once per set of matches, how each label-match mass is summed; remember it on the mask.

Three ways, chosen by counting the visible matching pairs of each match in O(N log N):

- listed: the pairs themselves, while they are few per row;
- columns: all rows look for one and the same label (delimiters): A @ indicator columns;
- compared: label against label in each tile, for what is neither.

Listed pairs are scored one dot product each (`pairs`) unless the tiles of A have to be computed
anyway or the lists are dense: then they are read from the tiles (`sweep`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from .masks import Mask, version
from .matching import find, stack_labels
from .plan import Columns, Pairs, Plan
from .values import Match, Request

Remembered = TypeVar("Remembered")

_LISTED_PER_ROW = 64  # pairs per row, on average, up to which a match is listed
_COLUMN_PER_ROW = 4  # and from which a key-only match becomes a column
_SWEEP_DENSITY = 0.15  # listed pairs per visible pair from which tiles beat single dot products


def plan_matches(request: Request, mask: Mask) -> Plan:
    """The plan of a call's matches: remembered until the mask, or any match, is dropped.

    Args:
        request: The validated call.
        mask: Its mask.

    Returns:
        The plan; a new one when labels were changed in place.

    Example:
        >>> from .values import Scores
        >>> x, here = torch.zeros(1, 1, 4, 2), torch.arange(4)[None]
        >>> call = Request(q=x, k=x, v=x, scores=Scores(), matches=(Match(here - 1, here),))
        >>> plan = plan_matches(call, Mask())
        >>> plan.pairs.row.tolist(), plan.pairs.key.tolist()
        ([1, 2, 3], [0, 1, 2])
    """
    return remembered(request, mask, f"cpu {request.stat_dtype}", lambda: _build(request, mask))


def remembered(
    request: Request, mask: Mask, kind: str, build: Callable[[], Remembered]
) -> Remembered:
    """What a backend works out about a call's matches, until the mask or any match is dropped.

    Args:
        request: The validated call.
        mask: Its mask, which remembers.
        kind: Tells the plans of one set of matches apart.
        build: Makes the plan.

    Returns:
        The remembered or a new plan; a new one when labels were changed in place.

    Example:
        >>> from .values import Scores
        >>> x = torch.zeros(1, 1, 4, 2)
        >>> call, mask = Request(q=x, k=x, v=x, scores=Scores()), Mask()
        >>> remembered(call, mask, "answer", lambda: 42), remembered(call, mask, "answer", dict)
        (42, 42)
    """
    # Dead references equal nothing, so a reused id cannot find a stale plan
    gone = partial(_forget, weakref.ref(mask))
    known = tuple(
        (weakref.ref(m, gone), version(m.q_label), version(m.k_label)) for m in request.matches
    )
    return mask.remember(("plan", *request.sizes, request.q.device, kind, known), build)


def _forget(mask: weakref.ref[Mask], dead: weakref.ref[Match]) -> None:
    alive = mask()
    if alive is not None:
        alive.drop(
            "plan",
            lambda key: any(
                ref is dead for part in key if isinstance(part, tuple) for ref, *_ in part
            ),
        )


def _build(request: Request, mask: Mask) -> Plan:
    batch, n_query, n_key = request.sizes
    q_label, k_label = stack_labels(request)
    found = find(request, mask, q_label, k_label)
    count, own, low = found.count, found.own, found.low
    lists, columns, compared = _choose(count, found.one_label)
    column = _columns(columns, low, k_label, count, own, request.stat_dtype)
    extra = None if column is None or column.own is None else own[columns].amax(0)  # type: ignore[index]
    pairs = _enumerate(lists, found.order, found.start, count, own, extra)
    lo, hi = mask.intervals(batch, n_query, n_key, request.q.device)
    return Plan(
        pairs=pairs,
        columns=column,
        compared=tuple(compared),
        dense=len(pairs) > _SWEEP_DENSITY * int((hi.long() - lo).sum()),
        shape=(batch, len(request.matches) + (extra is not None), n_query, n_key),
    )


def _choose(count: Tensor, one_label: Tensor) -> tuple[list[int], list[int], list[int]]:
    """Match indices by way of summing: listed, columns, compared."""
    rows = max(count.shape[1] * count.shape[2], 1)
    ways: tuple[list[int], list[int], list[int]] = ([], [], [])
    totals, single = count.sum((1, 2)).tolist(), one_label.tolist()
    for index, (n, one) in enumerate(zip(totals, single, strict=True)):
        column = one and n > _COLUMN_PER_ROW * rows
        ways[1 if column else 0 if n <= _LISTED_PER_ROW * rows else 2].append(index)
    return ways


def _enumerate(
    chosen: list[int],
    order: Tensor,
    start: Tensor,
    count: Tensor,
    own: Tensor | None,
    extra: Tensor | None,
) -> Pairs:
    """Write out the pairs of the chosen matches, less the own keys of strict ones.

    `extra` own keys [batch, query] (-1: none) follow in a slot of their own after the last match.
    One match at a time, so that no more than the indices of all pairs are held.
    """
    n_match, batch, n_query = count.shape
    n_slot = n_match + (extra is not None)
    n_key = order.shape[-1]
    # A tile's flat indices stay below 256 * n_key
    largest = batch * max(n_slot * n_query, 256 * n_key)
    index = torch.int32 if largest < 2**31 else torch.int64
    found = []
    for which in chosen:
        row, key = _runs(order[which], start[which], count[which])
        if own is not None:
            kept = key != own[which].flatten()[row]
            row, key = row[kept], key[kept]
        found.append((which, row.to(index), key.to(index)))
    if extra is not None:
        row = (extra.flatten() >= 0).nonzero()[:, 0]
        found.append((n_match, row.to(index), extra.flatten()[row].to(index)))
    empty = torch.zeros(0, dtype=index, device=count.device)
    rows = torch.cat([empty, *(row for _, row, _ in found)])
    by_row = torch.argsort(rows, stable=True)
    rows = rows[by_row]
    keys = torch.cat([empty, *(key + row // n_query * n_key for _, row, key in found)])[by_row]
    # (sequence * n_slot + match) * n_query + query, where row = sequence * n_query + query
    cells = [row + (row // n_query * (n_slot - 1) + m) * n_query for m, row, _ in found]
    return Pairs(rows, keys, torch.cat([empty, *cells])[by_row])


def _runs(order: Tensor, start: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Row (sequence * n_query + query) and key of each pair of one match."""
    n = count.flatten()
    row = torch.repeat_interleave(n)
    at = torch.arange(len(row), device=n.device)
    at += (start.flatten() - (n.cumsum(0) - n))[row]
    at += row // max(count.shape[1], 1) * order.shape[-1]
    return row, order.flatten()[at]


def _columns(
    chosen: list[int],
    label: Tensor,
    k_label: Tensor,
    count: Tensor,
    own: Tensor | None,
    dtype: torch.dtype,
) -> Columns | None:
    """The key-only matches; each sequence looks for one label [match, batch]."""
    if not chosen:
        return None
    keys = k_label[chosen] == label[chosen][..., None]
    mine = None if own is None else (own[chosen] >= 0).movedim(0, -1).to(dtype)
    return Columns(
        match=tuple(chosen),
        keys=keys.movedim(0, -1).to(dtype).contiguous(),
        rows=(count[chosen] > 0).movedim(0, -1).to(dtype),
        own=mine if mine is not None and bool(mine.any()) else None,
    )
