"""Composition scores between all pairs of heads, through products no larger than heads need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...interp.errors import InputError
from ...interp.sites import Site, unbridged
from ..arguments import whole_number
from .composition import KINDS, Composition, Pairs
from .null import gamma_p, rotation_moments
from .reading import Reading, read_model

Progress = Callable[[str, int, int], None]
_MOST_NUMBERS = 2**22  # of one product of source and target heads


@torch.no_grad()
def composition(
    model: Any,
    *,
    kinds: str | Sequence[str] = KINDS,
    delta: int = 0,
    up_to_norms: bool = False,
    block: int | None = None,
    progress: Progress | None = None,
) -> Composition:
    """How much of what head a writes is read by head b, for every a in an earlier layer than b.

    In row-vector form, ‖·‖ the Frobenius norm:

        Q: ‖W_OV^a W_QK^b‖ / (‖W_OV^a‖ ‖W_QK^b‖)
        K: ‖W_OV^a (W_QK^b)ᵀ‖ / (‖W_OV^a‖ ‖W_QK^b‖)
        V: ‖W_OV^a W_OV^b‖ / (‖W_OV^a‖ ‖W_OV^b‖)

    W_QK = W_Q R_Δ W_Kᵀ with the model's own rotation R_Δ, W_OV = W_V W_O. RMSNorm and LayerNorm
    gains are folded into the rows of W_Q, W_K and W_V; under LayerNorm the mean is taken off what
    heads read and write. Biases, the norms' division and what MLPs in between do are left out.
    Where attention and MLP run in parallel the same pairs count. The factors next to the product
    are replaced by their triangular QR factors, so nothing is expanded to d_model × d_model.

    `expected` and `z` are those of the null in which one map is turned at random against the other
    with both spectra kept: exact moments (`rotation_moments`), `p` from the gamma distribution with
    these. In trained models most pairs differ from it, because all heads write into few directions
    of the stream: p says that two heads fit better than directions drawn at random, and the order
    of the pairs onto one target says which fit it best.

    Args:
        model: a transformers model of one stack.
        kinds: any of "Q", "K", "V".
        delta: Δ, how many positions the query of b stands after its key; V does not depend on it.
        up_to_norms: leave out norms that stand between (QK-norm, norms behind attention); the
            result names them.
        block: query heads of a target layer per product; None: as many as keep it under 16 MiB.
        progress: called with ("composition", layers done, layers).

    Returns:
        Scores of all pairs. All query heads count as targets: heads of one group share W_K and
        W_V, which the column `target_kv_head` tells; their K and Q scores differ through W_Q.

    Raises:
        InputError: no exact linear map exists (the message says in which layers and why), several
            stacks, fewer than two layers, an unknown kind, or a delta in a model without rotation.

    Example:
        >>> import headatlas as ha
        >>> found = composition(ha.load("tiny")[0], kinds="K")
        >>> found
        <composition of 32 heads: 384 pairs each of K, delta 0>
        >>> found.table(top=1)[["source", "target"]].values.tolist()
        [['L1H1', 'L2H2']]

    Reference: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.
    """
    model = unbridged(model)
    chosen = _kinds(kinds)
    delta = _delta(delta)
    if block is not None:
        block = whole_number("block", block, 1)
    reading = read_model(model, chosen, delta=delta, up_to_norms=up_to_norms)
    layers = list(reading.weights)
    if len(layers) < 2:
        raise InputError("composition needs heads in two layers; this model has one.")
    wide = next(iter(reading.weights.values())).W_O.dtype == torch.float64
    dtype = torch.float64 if wide else torch.float32
    sides = [_source(reading, site, dtype) for site in layers[:-1]]
    found = {kind: _Sums(reading) for kind in chosen}
    for done, target in enumerate(layers):
        for kind in chosen if done else ():
            side = _target(reading, target, kind, dtype)
            for source, into in zip(layers, sides[:done], strict=False):
                found[kind].put(source, target, into, side, block)
        if progress is not None:
            progress("composition", done + 1, len(layers))
    pairs = {kind: sums.pairs() for kind, sums in found.items()}
    kv_heads = tuple(
        head.head * site.n_kv_heads // site.n_heads for site in layers for head in site.heads
    )
    return Composition(reading.heads, pairs, delta, reading.caveats, kv_heads)


def _kinds(kinds: str | Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys([kinds] if isinstance(kinds, str) else kinds))
    unknown = [name for name in names if name not in KINDS]
    if unknown or not names:
        what = repr(unknown[0]) if unknown else "none"
        raise InputError(f"kinds of composition are 'Q', 'K' and 'V'; got {what}.")
    return names


def _delta(delta: Any) -> int:
    if isinstance(delta, bool | np.bool_) or not hasattr(delta, "__index__"):
        raise InputError(f"delta is a whole number of positions; got {delta!r}.")
    return int(delta.__index__())


@dataclass(frozen=True, eq=False)
class _Side:
    """One factor of the products of a layer: factor [head, a, b], tr and tr² of its Gram [head]."""

    factor: Tensor
    trace: Tensor
    trace2: Tensor


def _side(factor: Tensor, gram: Tensor, dtype: torch.dtype) -> _Side:
    trace = factor.square().sum((1, 2)).cpu()
    return _Side(factor.to(dtype), trace, gram.square().sum((1, 2)).cpu())


def _source(reading: Reading, site: Site, dtype: torch.dtype) -> _Side:
    """R of W_V = U R, times W_O: as much of W_OV as its norm with anything behind it depends on."""
    value = torch.linalg.qr(reading.weights[site].W_V.double(), mode="r").R
    factor = _per_query_head(value, site) @ reading.output(site)
    return _side(factor, factor @ factor.mT, dtype)


def _target(reading: Reading, site: Site, kind: str, dtype: torch.dtype) -> _Side:
    """What a source's output is multiplied by, [head, d_model, rank]."""
    one = reading.weights[site]
    if kind == "V":
        front, back = _per_query_head(one.W_V.double(), site), reading.output(site).mT
    else:
        query, key = reading.queries(site), _per_query_head(one.W_K.double(), site)
        front, back = (query, key) if kind == "Q" else (key, query)
    factor = front @ torch.linalg.qr(back, mode="r").R.mT
    return _side(factor, factor.mT @ factor, dtype)


def _per_query_head(shared: Tensor, site: Site) -> Tensor:
    return shared.repeat_interleave(site.n_heads // site.n_kv_heads, 0)


class _Sums:
    """Squared norms of the products of one kind, and their moments under the null."""

    def __init__(self, reading: Reading) -> None:
        ends = np.cumsum([0, *(site.n_heads for site in reading.weights)])
        self.place = {
            site: slice(int(ends[i]), int(ends[i + 1])) for i, site in enumerate(reading.weights)
        }
        self.d = reading.d_model - reading.centred
        shape = (int(ends[-1]),) * 2
        self.square, self.size, self.mean, self.variance = (
            torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(4)
        )

    def put(self, source: Site, target: Site, a: _Side, b: _Side, block: int | None) -> None:
        """Multiply all heads of two layers, some target heads at a time."""
        rows, d = self.place[source], self.place[target]
        left = a.factor.flatten(0, 1)
        heads, _, rank = b.factor.shape
        step = block or max(1, _MOST_NUMBERS // max(1, len(left) * rank))
        for start in range(0, heads, step):
            some = b.factor[start : start + step]
            product = left @ some.transpose(0, 1).flatten(1)
            product = product.square_().unflatten(1, (len(some), rank)).sum(2)
            summed = product.unflatten(0, a.factor.shape[:2]).sum(1)
            columns = slice(d.start + start, d.start + start + len(some))
            self.square[rows, columns] = summed.double().cpu()
        own = (a.trace[:, None], a.trace2[:, None]), (b.trace[None], b.trace2[None])
        self.size[rows, d] = a.trace[:, None] * b.trace[None]
        self.mean[rows, d], self.variance[rows, d] = rotation_moments(*own, self.d)

    def pairs(self) -> Pairs:
        """Scores of all pairs; NaN where the source is not earlier, or a map is zero."""
        live = torch.where(self.size > 0, self.size, torch.nan)
        sd = self.variance.sqrt()
        z = (self.square - self.mean) / torch.where(sd > 1e-6 * self.mean, sd, torch.nan)
        p = gamma_p(self.square / live, self.mean / live, self.variance / live**2)
        return Pairs(
            (self.square / live).sqrt().numpy(), (self.mean / live).sqrt().numpy(),
            z.numpy(), p.numpy(),
        )  # fmt: skip
