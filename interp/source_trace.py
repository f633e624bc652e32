"""Watch one forward pass and work out what each attention call's q, k and v came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .attach import AttentionCall
from .columns import Candidate, Claims, Matches, Pool, match_columns, tolerance
from .norms import is_norm, read_norm
from .sites import Site
from .source_parts import Input, Part, SiteSources, Source, matrix


@dataclass(frozen=True, eq=False)
class _Event:
    name: str
    module: nn.Module
    x: Tensor
    y: Tensor


class Trace:
    """What ran between one attention call and the next, and what it says about both.

    Args:
        names: the name of each watched module, by id.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = names
        self.events: list[_Event] = []
        self.norms: dict[tuple[int, ...], _Event] = {}  # the last of each shape: the encoder's
        self.found: dict[Site, Any] = {}
        self.open: AttentionCall | None = None

    def see(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """A watched module ran."""
        self.events.append(_Event(self.names[id(module)], module, x, y))

    def attend(self, call: AttentionCall) -> None:
        """An attention module got its q, k and v: trace them."""
        self.close()
        claims = Claims()
        segment = _Segment(self.events, list(self.norms.values()), call)
        self.found[call.site] = [segment.source(kind, claims) for kind in ("q", "k", "v")]
        self._forget()
        self.open = call

    def close(self) -> None:
        """Learn from the events since the last call where its z went."""
        if self.open is None:
            return
        site, z = self.open.site, self.open.z.transpose(1, 2).flatten(2)
        output, norm = _follow(z, self.events)
        self.found[site] = SiteSources(*self.found[site], output=output, post_norm=norm)
        self.open = None

    def _forget(self) -> None:
        for event in self.events:
            if is_norm(event.module):
                self.norms[tuple(event.y.shape)] = event
        self.events = []


def _follow(z: Tensor, events: Sequence[_Event]) -> tuple[str | None, str | None]:
    """The Linear that reads z, and a norm that reads what it gives."""
    linear = (event for event in events if not is_norm(event.module))
    output = next((event for event in linear if _equal(event.x, z)), None)
    if output is None:
        return None, None
    norms = (e for e in events if is_norm(e.module) and _equal(e.x, output.y))
    norm = next(norms, None)
    return output.name, None if norm is None else norm.name


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and torch.equal(a.reshape(b.shape), b)


_Output = tuple[_Event, Candidate, Tensor]
_Pools = tuple[list[_Output], list[_Output], Pool]


class _Segment:
    """The modules called between two attention calls, beside the attention they led to."""

    def __init__(
        self, events: Sequence[_Event], earlier: Sequence[_Event], call: AttentionCall
    ) -> None:
        self.call = call
        self.linear = [event for event in events if not is_norm(event.module)]
        self.norms = [event for event in events if is_norm(event.module)]
        self.earlier = [*self.norms[::-1], *earlier]
        self._known: dict[int, _Pools] = {}

    def source(self, kind: str, claims: Claims) -> Source:
        heads = getattr(self.call, kind)
        _, n_heads, self.length, width = heads.shape
        self.batch = heads.shape[0]
        target = heads.transpose(1, 2).flatten(2)
        linear, candidates, pool = self._pools()
        direct = match_columns(target[:, 0], pool, claims)
        rotated = _moves(target, direct, [values for _, _, values in candidates])
        missing = _missing(kind, direct)
        parts: list[Part] = []
        through: list[str] = []
        for index in direct.owner.unique().tolist() if not missing else ():
            event, _, _ = candidates[index]
            places = (direct.owner == index).nonzero()[:, 0]
            columns, factor = direct.column[places], direct.factor[places]
            if index < len(linear):
                parts.append(Part(self._input(event), columns, places, factor))
                continue
            through.append(event.name)
            behind, missing = self._behind(event, columns, places, linear, claims)
            parts += behind
        tied = bool(direct.tied.any()) or missing.startswith(_DIFFER)
        missing = missing or next(filter(None, map(self._inexact, parts)), "")
        return Source(n_heads, width, tuple(parts), tuple(through), rotated, tied, missing)

    def _pools(self) -> _Pools:
        """Linear outputs, all outputs, and a pool of these, for the present length."""
        if self.length not in self._known:
            linear = list(self._candidates(self.linear))
            candidates = linear + list(self._candidates(self.norms))
            self._known[self.length] = linear, candidates, Pool([c for _, c, _ in candidates])
        return self._known[self.length]

    def _candidates(self, events: Sequence[_Event]) -> Iterator[tuple[_Event, Candidate, Tensor]]:
        """Outputs with one value per token and column, of a Linear its last call's.

        A norm may serve queries and keys in turn (Llama 4), so each of its calls counts.
        """
        last = {event.name: event for event in events if not is_norm(event.module)}
        for event in (e for e in events if last.get(e.name, e) is e):
            values = _by_position(event.y, self.batch, self.length)
            if values is None:
                continue
            weight = None if is_norm(event.module) else matrix(event.module)
            x = _by_position(event.x, self.batch, self.length)
            if not is_norm(event.module) and (
                weight is None or x is None or (x.shape[2], values.shape[2]) != weight.shape
            ):
                continue
            bias, reads = getattr(event.module, "bias", None), None if x is None else x[:, 0]
            bias = bias if weight is not None else None
            yield event, Candidate(event.name, values[:, 0], weight, bias, reads), values

    def _behind(
        self,
        norm: _Event,
        columns: Tensor,
        places: Tensor,
        linear: Sequence[tuple[_Event, Candidate, Tensor]],
        claims: Claims,
    ) -> tuple[list[Part], str]:
        """The Linear outputs that a norm's columns were before it."""
        x = _by_position(norm.x, self.batch, self.length)
        if x is None or norm.x.shape != norm.y.shape:
            return [], f"what {norm.name} reads has another shape than what it gives"
        before = match_columns(x[:, 0][:, columns], Pool([c for _, c, _ in linear]), claims)
        missing = _missing(f"the input of {norm.name}", before)
        if missing:
            return [], missing
        parts = []
        for index in before.owner.unique().tolist():
            here = (before.owner == index).nonzero()[:, 0]
            source = self._input(linear[index][0])
            parts.append(Part(source, before.column[here], places[here], before.factor[here]))
        return parts, ""

    def _input(self, event: _Event) -> Input:
        norm = next((n for n in self.earlier if _equal(n.y, event.x)), None)
        width = event.x.shape[-1]
        if norm is None:
            return Input(event.name, width, None, None)
        d = norm.y.shape[-1]
        form = read_norm(norm.module, norm.x.reshape(-1, d), norm.y.reshape(-1, d))
        return Input(event.name, width, norm.name, form if d == width else None)

    def _inexact(self, part: Part) -> str:
        """What is wrong when a module's output is not x W + b of its own weight."""
        name = part.input.projection
        event = next(e for e in reversed(self.linear) if e.name == name)
        weight, bias = matrix(event.module), getattr(event.module, "bias", None)
        x = _by_position(event.x, self.batch, self.length)
        y = _by_position(event.y, self.batch, self.length)
        if weight is None or x is None or y is None:
            return f"{name} holds no plain weight matrix"
        columns, x = part.columns.to(weight.device), x[:, 0].double()
        chosen = weight[:, columns].double()
        shift = x.new_zeros(1) if bias is None else bias.detach()[columns].double()
        size = x.abs() @ chosen.abs() + shift.abs()
        gap = (x @ chosen + shift - y[:, 0][:, columns].double()).abs()
        if bool((gap <= _summing(y.dtype, x.shape[1]) * size).all()):
            return ""
        return f"{name} does not give x W + b of its own weight (an adapter or a hook changes it)"


_DIFFER = "several"


def _summing(dtype: torch.dtype, terms: int) -> float:
    """How far a sum of products may be off, relative to the sum of their sizes: n eps and rounding.

    Narrow dtypes are summed in float32.
    """
    eps = torch.finfo(dtype).eps
    return 4 * eps + terms * min(eps, torch.finfo(torch.float32).eps)


def _missing(what: str, found: Matches) -> str:
    n = len(found.owner)
    several, none = int((found.owner == -2).sum()), int((found.owner == -1).sum())
    if several:
        return (
            f"{_DIFFER} outputs equal {several} of the {n} columns of {what} on the probe and have "
            "other weights, so which they come from cannot be told"
        )
    if none:
        return (
            f"{none} of the {n} columns of {what} equal no output of a Linear, Conv1D or norm "
            "called before the attention"
        )
    return ""


def _moves(target: Tensor, found: Matches, values: Sequence[Tensor]) -> bool:
    """Whether what was found at position 0 fails at later ones: rotary positions."""
    limit = tolerance(target.dtype)
    for index in found.owner.unique().tolist():
        if index < 0:
            continue
        places = (found.owner == index).nonzero()[:, 0]
        same = values[index][:, 1:][..., found.column[places]].double() * found.factor[places].to(
            target.device
        )
        gap = (target[:, 1:][..., places].double() - same).abs()
        if bool((gap > limit * same.abs()).any()):
            return True
    return False


def _by_position(x: Tensor, batch: int, length: int) -> Tensor | None:
    """As [batch, pos, column], from the layouts that modules are called with; None for others."""
    if x.ndim == 2 and x.shape[0] == batch * length:
        return x.reshape(batch, length, -1)
    if x.ndim < 3 or x.shape[0] != batch:
        return None
    if x.shape[1] == length:
        return x.reshape(batch, length, -1)
    if x.ndim == 4 and x.shape[2] == length:
        return x.transpose(1, 2).reshape(batch, length, -1)
    return None
