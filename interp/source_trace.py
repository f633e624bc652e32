"""Watch one forward pass and work out what each attention call's q, k and v came from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from .attach import AttentionCall
from .columns import Candidate, Claims, Matches, Pool, match_columns, tolerance
from .norms import is_norm, read_norm
from .sites import Site
from .source_parts import Input, Part, SiteSources, Source, matrix, not_linear


@dataclass(frozen=True, eq=False)
class _Event:
    name: str
    module: nn.Module
    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class _Frame:
    """A module that held others while they ran: what it was given beside x, and what it gave."""

    name: str
    x: Tensor | None
    others: tuple[Tensor, ...]
    y: Tensor


class Trace:
    """What ran between one attention call and the next, and what it says about both.

    Args:
        names: the name of each watched module, by id.
        known: what an earlier trace found: kept where it holds for what is seen now.
    """

    def __init__(self, names: Mapping[int, str], known: Mapping[Site, SiteSources]) -> None:
        self.names = names
        self.known = known
        self.events: list[_Event] = []
        self.norms: dict[tuple[int, ...], _Event] = {}  # the last of each shape: the encoder's
        self.found: dict[Site, SiteSources] = {}
        self.open: tuple[AttentionCall, tuple[Source, Source, Source]] | None = None
        self.frames: list[_Frame] = []

    def see(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """A watched module ran."""
        self.events.append(_Event(self.names[id(module)], module, x, y))

    def attend(self, call: AttentionCall) -> None:
        """An attention module got its q, k and v: trace them."""
        self.close()
        segment = _Segment(self.events, list(self.norms.values()), call)
        self.open = call, self._sources(segment, self.known.get(call.site))
        self._forget()

    def leave(self, module: nn.Module, inputs: Sequence[Any], output: Any) -> None:
        """A module that holds others has run: keep what bears on where the last z went."""
        while isinstance(output, tuple | list) and output:
            output = output[0]
        if self.open is None or not isinstance(output, Tensor):
            return
        name, (call, _) = self.names[id(module)], self.open
        given = tuple(x for x in inputs if isinstance(x, Tensor))
        first = given[0] if given and given[0].numel() == call.z.numel() else None
        if name == call.site.module:
            self.frames.append(_Frame(name, None, given, output))
        elif first is not None:
            self.frames.append(_Frame(name, first, given[1:], output))

    def close(self) -> None:
        """Learn from the events since the last call where its z went."""
        if self.open is None:
            return
        call, (q, k, v) = self.open
        known = self.known.get(call.site)
        new = SiteSources(q, k, v, *_follow(call, self.events, self.frames))
        keep = known is not None and all(
            getattr(known, f.name) == getattr(new, f.name) for f in fields(new)
        )
        self.found[call.site] = known if known is not None and keep else new
        self.open = None

    def _sources(
        self, segment: _Segment, known: SiteSources | None
    ) -> tuple[Source, Source, Source]:
        if known is not None and not known.tied:
            q, k, v = known.q, known.k, known.v
            if segment.holds("q", q) and segment.holds("k", k) and segment.holds("v", v):
                return q, k, v
        claims = Claims()
        q, k, v = (segment.source(kind, claims) for kind in ("q", "k", "v"))
        return q, k, v

    def _forget(self) -> None:
        for event in self.events:
            if is_norm(event.module):
                self.norms[tuple(event.y.shape)] = event
        self.events, self.frames = [], []


_Leave = Callable[[nn.Module, Sequence[Any], Any], None]


@contextmanager
def watch_frames(modules: Iterable[nn.Module], leave: _Leave) -> Iterator[None]:
    """Call `leave(module, inputs, output)` when this thread has run a module, whatever it takes."""
    thread = threading.get_ident()

    def hook(module: nn.Module, args: Sequence[Any], named: Mapping[str, Any], output: Any) -> None:
        if threading.get_ident() == thread:
            leave(module, (*args, *named.values()), output)

    handles = []
    try:
        for module in modules:
            handles.append(module.register_forward_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _follow(
    call: AttentionCall, events: Sequence[_Event], frames: Sequence[_Frame]
) -> tuple[str | None, str | None, str]:
    """The Linear whose z W + b leaves the attention, a norm that reads that, or why none does."""
    z = call.z.transpose(1, 2).flatten(2)
    norms = [event for event in events if is_norm(event.module)]
    readers = [e for e in events if not is_norm(e.module) and _equal(e.x, z)]
    if not readers:
        return None, None, "no plain linear map takes z, heads side by side"
    around = [f for f in frames if f.x is None or _equal(f.x, z)]
    around = [f for f in around if f.x is not None or not _equal(f.y, z)]  # BERT's gives z itself
    reasons = []
    for event in readers:
        holding = [f for f in around if f.x is None or event.name.startswith(f"{f.name}.")]
        reason = _not_output(event, holding, norms)
        if not reason and not holding and len({e.name for e in readers}) > 1:
            names = " and ".join(sorted({e.name for e in readers}))
            reason = f"{names} all take z, and which of them leaves the attention was not seen"
        if not reason:
            norm = next((e for e in norms if _equal(e.x, event.y)), None)
            return event.name, None if norm is None else norm.name, ""
        reasons.append((event.y.shape[-1], reason))
    return None, None, max(reasons, key=itemgetter(0))[1]


def _not_output(event: _Event, frames: Sequence[_Frame], norms: Sequence[_Event]) -> str:
    """Why what leaves the attention is not this module's x W + b."""
    x, y = event.x, event.y
    flat = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    if reason := not_linear(event.name, event.module, *flat):
        return reason
    for frame in frames:
        # some add the residual stream, or add it and norm the sum, before they return (BERT)
        others = [r for r in frame.others if r.numel() == y.numel() and r.is_floating_point()]
        sums = [y, *(y + r.reshape(y.shape) for r in others)]
        sums += [norm.y for norm in norms if any(_equal(norm.x, given) for given in sums)]
        if not any(_equal(frame.y, given) for given in sums):
            return (
                f"what leaves {frame.name} is not what {event.name} makes of z (an adapter or a "
                "hook changes it)"
            )
    return ""


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and torch.equal(a.reshape(b.shape), b.to(a.dtype))


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

    def holds(self, kind: str, known: Source) -> bool:
        """Whether what was found before gives this call's tensor too, by x W + b of its weights."""
        heads = getattr(self.call, kind)
        self.batch, n_heads, self.length, width = heads.shape
        if known.missing or (n_heads, width) != (known.n_heads, known.width):
            return False
        behind = list(self._before(known.norms, heads))
        targets = behind if known.norms else [heads[:, :, 0].flatten(1)]
        last = {event.name: event for event in self.linear}
        for part in known.parts:
            event = last.get(part.input.projection)
            y = None if event is None else _by_position(event.y, self.batch, self.length)
            if event is None or y is None or self._input(event) != part.input:
                return False
            same = y[:, 0][:, part.columns].double() * part.factor.to(y.device)
            limit = tolerance(y.dtype) * same.abs()
            gaps = [(target[:, part.places].double() - same).abs() for target in targets]
            if not any(bool((gap <= limit).all()) for gap in gaps) or self._inexact(part):
                return False
        return bool(known.parts)

    def _before(self, norms: Sequence[str], heads: Tensor) -> Iterator[Tensor]:
        """What the norms read that gave these heads, in the same order."""
        for event in self.norms:
            if event.name not in norms:
                continue
            x = _by_position(event.x, self.batch, self.length)
            y = _by_position(event.y, self.batch, self.length)
            if x is None or y is None or x.shape != y.shape:
                continue
            if _equal(y[:, 0], heads[:, :, 0].flatten(1)):
                yield x[:, 0]

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
        x = _by_position(event.x, self.batch, self.length)
        y = _by_position(event.y, self.batch, self.length)
        if x is None or y is None:
            return f"{name} holds no plain weight matrix"
        return not_linear(name, event.module, x[:, 0], y[:, 0], part.columns)


_DIFFER = "several"


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
