"""Match what an attention call received with what the modules called before it have put out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attach import AttentionCall
from .columns import Candidate, Claims, Matches, Pool, match_columns, tolerance
from .norms import is_norm, read_norm
from .source_parts import Input, Part, Source, matrix, not_linear, some_rows


@dataclass(frozen=True, eq=False)
class Event:
    """A watched module ran: what it was given and what it gave."""

    name: str
    module: nn.Module
    x: Tensor
    y: Tensor


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether both hold the same numbers, in whatever shape."""
    return a.numel() == b.numel() and torch.equal(a.reshape(b.shape), b.to(a.dtype))


_POSITIONS = 8  # that are compared: enough to see a rotation, of images with many more

_Output = tuple[Event, Candidate, Tensor]
_Pools = tuple[list[_Output], list[_Output], Pool]


class Segment:
    """The modules called between two attention calls, beside the attention they led to.

    Args:
        events: what ran between them, in order.
        earlier: norms that ran before.
        call: the attention.
        place: the token that is compared, counted as position 0 here.
    """

    def __init__(
        self, events: Sequence[Event], earlier: Sequence[Event], call: AttentionCall, place: int
    ) -> None:
        self.call, self.place = call, place
        self.linear = [event for event in events if not is_norm(event.module)]
        self.norms = [event for event in events if is_norm(event.module)]
        self.earlier = [*self.norms[::-1], *earlier]
        self._known: dict[int, _Pools] = {}

    def source(self, kind: str, claims: Claims) -> Source:
        """Where the call's "q", "k" or "v" comes from; `claims` keeps what is taken already."""
        heads = self._heads(kind)
        _, n_heads, _, width = heads.shape
        target = heads.transpose(1, 2).flatten(2)
        linear, candidates, pool = self._pools()
        direct = match_columns(target[:, 0], pool, claims)
        pool_values = [values for _, _, values in candidates]
        rotated = _moves(target, direct, pool_values)
        missing = _missing(kind, direct)
        if rotated and not missing and not _turns(target, direct, pool_values, n_heads):
            missing = _mixed(kind)
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
        heads = self._heads(kind)
        _, n_heads, _, width = heads.shape
        if known.missing or (n_heads, width) != (known.n_heads, known.width):
            return False
        behind = list(self._before(known.norms, heads))
        targets = behind if known.norms else [heads[:, :, 0].flatten(1)]
        last = {event.name: event for event in self.linear}
        for part in known.parts:
            event = last.get(part.input.projection)
            y = None if event is None else self._by_position(event.y)
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
            x = self._by_position(event.x)
            y = self._by_position(event.y)
            if x is None or y is None or x.shape != y.shape:
                continue
            if equal(y[:, 0], heads[:, :, 0].flatten(1)):
                yield x[:, 0]

    def _pools(self) -> _Pools:
        """Linear outputs, all outputs, and a pool of these, for the present length."""
        if self.length not in self._known:
            linear = list(self._candidates(self.linear))
            candidates = linear + list(self._candidates(self.norms))
            self._known[self.length] = linear, candidates, Pool([c for _, c, _ in candidates])
        return self._known[self.length]

    def _candidates(self, events: Sequence[Event]) -> Iterator[tuple[Event, Candidate, Tensor]]:
        """Outputs with one value per token and column, of a Linear its last call's.

        A norm may serve queries and keys in turn (Llama 4), so each of its calls counts.
        """
        last = {event.name: event for event in events if not is_norm(event.module)}
        for event in (e for e in events if last.get(e.name, e) is e):
            values = self._by_position(event.y)
            if values is None:
                continue
            weight = None if is_norm(event.module) else matrix(event.module)
            x = self._by_position(event.x)
            if not is_norm(event.module) and (
                weight is None or x is None or (x.shape[2], values.shape[2]) != weight.shape
            ):
                continue
            bias, reads = getattr(event.module, "bias", None), None if x is None else x[:, 0]
            bias = bias if weight is not None else None
            yield event, Candidate(event.name, values[:, 0], weight, bias, reads), values

    def _behind(
        self,
        norm: Event,
        columns: Tensor,
        places: Tensor,
        linear: Sequence[tuple[Event, Candidate, Tensor]],
        claims: Claims,
    ) -> tuple[list[Part], str]:
        """The Linear outputs that a norm's columns were before it."""
        x = self._by_position(norm.x)
        if x is None or norm.x.shape != norm.y.shape:
            return [], f"what {norm.name} reads has another shape than what it gives"
        given, values = x[..., columns], [values for _, _, values in linear]
        before = match_columns(given[:, 0], Pool([c for _, c, _ in linear]), claims)
        missing = _missing(f"the input of {norm.name}", before)
        if missing:
            return [], missing
        if _moves(given, before, values) and not _turns(given, before, values, 1):
            return [], _mixed(f"the input of {norm.name}")
        parts = []
        for index in before.owner.unique().tolist():
            here = (before.owner == index).nonzero()[:, 0]
            source = self._input(linear[index][0])
            parts.append(Part(source, before.column[here], places[here], before.factor[here]))
        return parts, ""

    def _input(self, event: Event) -> Input:
        norm = next((n for n in self.earlier if equal(n.y, event.x)), None)
        width = event.x.shape[-1]
        if norm is None:
            return Input(event.name, width, None, None)
        d = norm.y.shape[-1]
        form = read_norm(norm.module, *some_rows(norm.x.reshape(-1, d), norm.y.reshape(-1, d)))
        return Input(event.name, width, norm.name, form if d == width else None)

    def _heads(self, kind: str) -> Tensor:
        """The call's tensor from the compared token on, and the shape to read others by."""
        heads = getattr(self.call, kind)
        self.batch, _, self.length, _ = heads.shape
        return heads.roll(-self.place, 2)[:, :, :_POSITIONS]

    def _by_position(self, x: Tensor) -> Tensor | None:
        found = _by_position(x, self.batch, self.length)
        return None if found is None else found.roll(-self.place, 1)[:, :_POSITIONS]

    def _inexact(self, part: Part) -> str:
        """What is wrong when a module's output is not x W + b of its own weight."""
        name = part.input.projection
        event = next(e for e in reversed(self.linear) if e.name == name)
        x = self._by_position(event.x)
        y = self._by_position(event.y)
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


def _mixed(what: str) -> str:
    return (
        f"{what} is x W at the first token alone, and later no rotation of it: tokens are mixed on "
        "the way (a convolution), or their sizes change"
    )


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


def _turns(target: Tensor, found: Matches, values: Sequence[Tensor], n_heads: int) -> bool:
    """Whether heads have the sizes at every position that a rotation of what was found gives."""
    unturned = torch.zeros_like(target, dtype=torch.float64)
    for index in found.owner.unique().tolist():
        places = (found.owner == index).nonzero()[:, 0]
        factor = found.factor[places].to(target.device)
        unturned[..., places] = values[index][..., found.column[places]].double() * factor
    size, own = (x.double().unflatten(-1, (n_heads, -1)).norm(dim=-1) for x in (target, unturned))
    # cos and sin, too, are rounded on the way
    return bool(((size - own).abs() <= 4 * tolerance(target.dtype) * own).all())


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
