"""How the masses of one set of matches are computed on a GPU: each match in the cheapest way.

- few: at most four visible keys per row match: one dot product each, from the known lse (`few`);
- columns: all rows look for one and the same label: up to 16 indicator columns per sweep;
- compared: label against label in each tile of scores, at most four matches per sweep.

The dot products of a sweep are made anyway, so what a match adds to it is its comparison, while a
gathered key costs a read of its own: fewer keys are gathered here than on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor
from torch.nn.functional import pad

from ..masks import Mask
from ..matching import Found, find, stack_labels
from ..planning import remembered
from ..values import Request
from .rows import COLUMNS, LABEL_STEP, Labels

MOST_FEW = 4
"""Visible keys per row up to which a match is gathered."""
PER_SWEEP = 4
"""Matches that one sweep compares: more, and their labels and sums fill the registers.

A softcap, a bias and strictness take half of the room each; one match always fits.
"""


@dataclass(frozen=True, eq=False)
class Sweep:
    """The matches of one launch of the forward kernel.

    Args:
        labels: What the kernel takes.
        compared: Index of each compared match among the call's.
        columns: Index of each key-only match.
        looking: 1 on rows that look for the label, for each key-only match.
    """

    labels: Labels
    compared: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    looking: Float[Tensor, "batch query column"] | None = None


@dataclass(frozen=True, eq=False)
class FusedPlan:
    """All matches of a call, by way of computing them.

    Args:
        sweeps: Launches of the forward kernel; the first has no matches where none need one.
        few: Index of each gathered match among the call's.
        keys: Its visible keys, -1 where there are fewer.
    """

    sweeps: tuple[Sweep, ...]
    few: tuple[int, ...] = ()
    keys: Int32[Tensor, "batch match query most"] | None = None


def plan_fused(request: Request, mask: Mask) -> FusedPlan:
    """The plan of a call, remembered as long as the mask and the matches are.

    Under torch.compile, where sizes must not depend on labels, every match is compared.

    Args:
        request: The validated call.
        mask: Its mask.

    Returns:
        A plan for the device of q.

    Example:
        >>> from ..values import Match, Scores
        >>> x, here = torch.zeros(1, 1, 9, 16), torch.arange(9)[None]
        >>> call = Request(q=x, k=x, v=x, scores=Scores(), matches=(Match(here - 1, here),))
        >>> plan_fused(call, Mask()).keys[0, 0, :3, 0].tolist()
        [-1, 0, 1]
    """
    if not request.matches:
        return FusedPlan(sweeps=(Sweep(Labels()),))
    if torch.compiler.is_compiling():
        everything = range(len(request.matches))
        return FusedPlan(sweeps=_sweeps(request, mask, *stack_labels(request), [*everything], []))
    kind = f"fused {request.q.dtype} {_n_bent(request)}"
    return remembered(request, mask, kind, lambda: _build(request, mask))


def _build(request: Request, mask: Mask) -> FusedPlan:
    q_label, k_label = stack_labels(request)
    found = find(request, mask, q_label, k_label)
    most = (
        found.count.flatten(1).amax(-1).tolist() if found.count[0].numel() else [0] * len(q_label)
    )
    one_label = found.one_label.tolist()
    few, columns, compared = [], [], []
    for index, match in enumerate(request.matches):
        key_only = one_label[index] and not match.strict
        way = few if most[index] <= MOST_FEW else columns if key_only else compared
        way.append(index)
    return FusedPlan(
        sweeps=_sweeps(request, mask, q_label, k_label, compared, columns, found),
        few=tuple(few),
        keys=_few_keys(found, few, max((most[i] for i in few), default=0)),
    )


def _few_keys(found: Found, few: list[int], most: int) -> Tensor | None:
    """Keys of the gathered matches [batch, match, query, most]; own keys of strict ones out."""
    if not few:
        return None
    run = torch.arange(max(most, 1), device=found.order.device)
    start, count = found.start[few], found.count[few]
    at = (start[..., None] + run).clamp(max=max(found.order.shape[-1] - 1, 0))
    keys = found.order[few].gather(-1, at.flatten(2)).view(at.shape)
    keys = keys.masked_fill(run >= count[..., None], -1)
    if found.own is not None:
        keys = keys.masked_fill(keys == found.own[few][..., None], -1)
    return keys.transpose(0, 1).int().contiguous()


def _sweeps(
    request: Request,
    mask: Mask,
    q_label: Tensor,
    k_label: Tensor,
    compared: list[int],
    columns: list[int],
    found: Found | None = None,
) -> tuple[Sweep, ...]:
    """Some compared matches or sixteen columns each (both fill the registers); at least one."""
    batch, n_query, n_key = request.sizes
    own = mask.positions(batch, n_query, n_key, request.q.device).clamp(-1, n_key).int()
    own = own.contiguous()
    groups = []
    for strict in (False, True):
        most = max(PER_SWEEP >> (_n_bent(request) + strict), 1)
        these = [index for index in compared if request.matches[index].strict == strict]
        groups += [(these[i : i + most], []) for i in range(0, len(these), most)]
    groups += [([], columns[i : i + COLUMNS]) for i in range(0, len(columns), COLUMNS)]
    made = []
    for these, those in groups or [([], [])]:
        q_code, k_code = _codes(q_label, k_label, these)
        ones, looking = _columns(found, k_label, those, request.q.itemsize)
        strict = sum(1 << at for at, index in enumerate(these) if request.matches[index].strict)
        labels = Labels(q_code, k_code, own if strict else None, strict, ones)
        made.append(Sweep(labels, tuple(these), tuple(those), looking))
    return tuple(made)


def _n_bent(request: Request) -> int:
    return (request.scores.softcap is not None) + (request.scores.bias is not None)


def _codes(
    q_label: Int[Tensor, "match batch query"],
    k_label: Int[Tensor, "match batch key"],
    of: list[int],
) -> tuple[
    Int32[Tensor, "batch chosen query"] | None, Int32[Tensor, "batch chosen padded_key"] | None
]:
    """32-bit codes that are equal where the labels are: places in the order of all of them."""
    if not of:
        return None, None
    both = torch.cat([q_label[of], k_label[of]], -1)
    codes = torch.searchsorted(both.sort(-1).values, both).transpose(0, 1).int()
    q_code, k_code = codes.split([q_label.shape[-1], k_label.shape[-1]], -1)
    # keys of the padding are hidden from every row: their code is no matter
    k_code = pad(k_code, (0, -k_code.shape[-1] % LABEL_STEP), value=-1)
    return q_code.contiguous(), k_code.contiguous()


def _columns(
    found: Found | None, k_label: Tensor, of: list[int], itemsize: int
) -> tuple[Tensor | None, Tensor | None]:
    """Indicator columns [batch, padded key, 16], and which rows look for them."""
    if found is None or not of:
        return None, None
    dtype = torch.float32 if itemsize == 4 else torch.float16  # of bfloat16 too: see `_walk`
    keys = (k_label[of] == found.low[of][..., None]).movedim(0, -1).to(dtype)
    n_key = keys.shape[1]
    keys = pad(keys, (0, COLUMNS - len(of), 0, -n_key % LABEL_STEP))
    return keys.contiguous(), (found.count[of] > 0).movedim(0, -1).float()
