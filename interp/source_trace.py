"""Watch one forward pass and work out what each attention call's q, k and v came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

from .attach import AttentionCall
from .columns import Claims
from .norms import is_norm
from .sites import Site
from .source_parts import SiteSources, Source, not_linear, some_rows
from .source_segment import Event, Segment, equal


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
        place: the token by which columns are compared: one that differs in every sequence.
    """

    def __init__(
        self, names: Mapping[int, str], known: Mapping[Site, SiteSources], place: int
    ) -> None:
        self.names, self.place = names, place
        self.known = known
        self.events: list[Event] = []
        self.norms: dict[tuple[int, ...], Event] = {}  # the last of each shape: the encoder's
        self.found: dict[Site, SiteSources] = {}
        self.open: tuple[AttentionCall, tuple[Source, Source, Source]] | None = None
        self.frames: list[_Frame] = []

    def see(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """A watched module ran."""
        self.events.append(Event(self.names[id(module)], module, x, y))

    def attend(self, call: AttentionCall) -> None:
        """An attention module got its q, k and v: trace them."""
        self.close()
        segment = Segment(self.events, list(self.norms.values()), call, self.place)
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
        self, segment: Segment, known: SiteSources | None
    ) -> tuple[Source, Source, Source]:
        site = segment.call.site
        if known is not None and not known.tied:
            q, k, v = known.q, known.k, known.v
            seen = segment.holds("v", v)
            if seen and (site.inline or (segment.holds("q", q) and segment.holds("k", k))):
                return q, k, v
        claims = Claims()
        if site.inline:
            q, k = (_unseen(n, site.d_head) for n in (site.n_heads, site.n_kv_heads))
            return q, k, segment.source("v", claims)
        q, k, v = (segment.source(kind, claims) for kind in ("q", "k", "v"))
        return q, k, v

    def _forget(self) -> None:
        for event in self.events:
            if is_norm(event.module):
                self.norms[tuple(event.y.shape)] = event
        self.events, self.frames = [], []


def _unseen(n_heads: int, width: int) -> Source:
    """The source of queries or keys that a class uses in its own code."""
    why = "its class computes attention in its own code, where q and k are not seen"
    return Source(n_heads, width, (), (), rotated=False, tied=False, missing=why)


def _follow(
    call: AttentionCall, events: Sequence[Event], frames: Sequence[_Frame]
) -> tuple[str | None, str | None, str]:
    """The Linear whose z W + b leaves the attention, a norm that reads that, or why none does."""
    z = call.z.transpose(1, 2).flatten(2)
    norms = [event for event in events if is_norm(event.module)]
    readers = [e for e in events if not is_norm(e.module) and equal(e.x, z)]
    if not readers:
        return None, None, "no plain linear map takes z, heads side by side"
    around = [f for f in frames if f.x is None or equal(f.x, z)]
    around = [f for f in around if f.x is not None or not equal(f.y, z)]  # BERT's gives z itself
    reasons = []
    for event in readers:
        holding = [f for f in around if f.x is None or event.name.startswith(f"{f.name}.")]
        reason = _not_output(event, holding, norms)
        if not reason and not holding and len({e.name for e in readers}) > 1:
            names = " and ".join(sorted({e.name for e in readers}))
            reason = f"{names} all take z, and which of them leaves the attention was not seen"
        if not reason:
            norm = next((e for e in norms if equal(e.x, event.y)), None)
            return event.name, None if norm is None else norm.name, ""
        reasons.append((event.y.shape[-1], reason))
    return None, None, max(reasons, key=itemgetter(0))[1]


def _not_output(event: Event, frames: Sequence[_Frame], norms: Sequence[Event]) -> str:
    """Why what leaves the attention is not this module's x W + b."""
    x, y = event.x, event.y
    flat = some_rows(x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]))
    if reason := not_linear(event.name, event.module, *flat):
        return reason
    for frame in frames:
        # some add the residual stream, or add it and norm the sum, before they return (BERT)
        others = [r for r in frame.others if r.numel() == y.numel() and r.is_floating_point()]
        sums = [y, *(y + r.reshape(y.shape) for r in others)]
        sums += [norm.y for norm in norms if any(equal(norm.x, given) for given in sums)]
        if not any(equal(frame.y, given) for given in sums):
            return (
                f"what leaves {frame.name} is not what {event.name} makes of z (an adapter or a "
                "hook changes it)"
            )
    return ""
