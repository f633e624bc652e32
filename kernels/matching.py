"""Which visible keys carry the label that each query looks for, as runs of ordered keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from .masks import Mask
from .values import Request


@dataclass(frozen=True)
class Found:
    """The visible keys that match each row, of every match [match, batch, query].

    Args:
        order: Keys of a sequence by (label, index) [match, batch, key].
        start: Where in that order the run of a row's keys starts.
        count: How long it is.
        own: The row's own key where a strict match would count it, else -1; None without any.
        low: Lowest label among the rows that match anything [match, batch].
        one_label: Whether all rows look for one and the same label [match].
    """

    order: Int64[Tensor, "match batch key"]
    start: Int64[Tensor, "match batch query"]
    count: Int64[Tensor, "match batch query"]
    own: Int64[Tensor, "match batch query"] | None
    low: Int64[Tensor, "match batch"]
    one_label: Bool[Tensor, " match"]


def stack_labels(request: Request) -> tuple[Tensor, Tensor]:
    """Labels of all matches: queries' [match, batch, query], keys' [match, batch, key].

    Args:
        request: A call with matches.

    Example:
        >>> from .values import Match, Scores
        >>> x, here = torch.zeros(1, 1, 4, 2), torch.arange(4)[None]
        >>> call = Request(q=x, k=x, v=x, scores=Scores(), matches=(Match(here - 1, here),))
        >>> stack_labels(call)[0].tolist()
        [[[-1, 0, 1, 2]]]
    """
    device = request.q.device
    q_label = torch.stack([m.q_label.to(device, torch.int64) for m in request.matches])
    return q_label, torch.stack([m.k_label.to(device, torch.int64) for m in request.matches])


def find(request: Request, mask: Mask, q_label: Tensor, k_label: Tensor) -> Found:
    """Find the visible keys that match each row, in O(N log N) per match.

    Args:
        request: The call, for its sizes and which matches are strict.
        mask: Its mask.
        q_label: Labels of the queries [match, batch, query].
        k_label: Labels of the keys [match, batch, key].

    Returns:
        Runs of keys, before the own keys of strict matches are taken out.

    Example:
        >>> from .values import Match, Scores
        >>> x, here = torch.zeros(1, 1, 4, 2), torch.arange(4)[None]
        >>> call = Request(q=x, k=x, v=x, scores=Scores(), matches=(Match(here - 1, here),))
        >>> find(call, Mask(), *stack_labels(call)).count.tolist()
        [[[0, 1, 1, 1]]]
    """
    lo, hi = (x.long() for x in mask.intervals(*request.sizes, request.q.device))
    order, start, count = _find(q_label, k_label, lo, hi)
    own = _own_keys(request, mask, q_label, k_label, (lo, hi))
    low, high = _label_range(q_label, count)
    return Found(order, start, count, own, low, (low >= high).all(-1))


def _find(
    q_label: Tensor, k_label: Tensor, lo: Tensor, hi: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys ordered by (label, index), and each row's visible matching keys in that order.

    Keys of one label are in order of index and a row sees an interval, so what it sees and
    matches is one run: where the run starts, and how long it is, [match, batch, query].
    """
    n_key = k_label.shape[-1]
    both = torch.cat([q_label, k_label], -1)
    if both.numel():
        least, most = (int(x) for x in both.aminmax())
        if max(-least, most) > 2**62 // max(n_key, 1) - 2:
            both = torch.unique(both, return_inverse=True)[1]  # hashes: ranks keep equality
    q_rank, k_rank = both.split([q_label.shape[-1], n_key], -1)
    code = (k_rank * n_key + torch.arange(n_key, device=k_label.device)).sort(-1)
    begin = torch.searchsorted(code.values, (q_rank * n_key + lo).contiguous())
    end = torch.searchsorted(code.values, (q_rank * n_key + hi).contiguous())
    return code.indices, begin, end - begin


def _own_keys(
    request: Request, mask: Mask, q_label: Tensor, k_label: Tensor, span: tuple[Tensor, Tensor]
) -> Int64[Tensor, "match batch query"] | None:
    """The own key of each row of a strict match where it is visible and matches, else -1."""
    strict = [m.strict for m in request.matches]
    if not any(strict) or not k_label.shape[-1]:
        return None
    q_pos = mask.positions(*request.sizes, request.q.device)
    at = q_pos.clamp(0, k_label.shape[-1] - 1).expand_as(q_label)
    mine = (k_label.gather(-1, at) == q_label) & (q_pos >= span[0]) & (q_pos < span[1])
    mine = mine & torch.tensor(strict, device=q_label.device)[:, None, None]
    return torch.where(mine, q_pos, -1)


def _label_range(q_label: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest label among the rows that match anything, [match, batch]."""
    if not q_label.shape[-1]:
        return q_label.new_zeros(q_label.shape[:2]), q_label.new_zeros(q_label.shape[:2])
    limit = torch.iinfo(torch.int64)
    low = q_label.masked_fill(count == 0, limit.max).amin(-1)
    return low, q_label.masked_fill(count == 0, limit.min).amax(-1)
