"""Tell which columns of some tensors another tensor is made of, by their values alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

Place = tuple[int, int]  # (candidate, column)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A tensor that columns may come from, and what makes two columns the same function.

    Args:
        name: the module it is the output of.
        values: one row per probe sequence.
        weight: the linear map behind it [d_in, columns]; None for anything else, whose columns
            are then never taken for one another.
        bias: that map's bias.
        reads: what the map is applied to.
    """

    name: str
    values: Float[Tensor, "rows columns"]
    weight: Float[Tensor, "d_in columns"] | None = None
    bias: Float[Tensor, " columns"] | None = None
    reads: Float[Tensor, "rows d_in"] | None = None

    def same_map(self, column: int, other: Candidate, other_column: int) -> bool:
        """Whether two columns are the same linear function, not only equal on the probe."""
        if self.weight is None or other.weight is None or self.reads is None or other.reads is None:
            return False
        mine, theirs = self._map(column), other._map(other_column)
        if not bool(mine.any()) and not bool(theirs.any()):
            return True
        return torch.equal(mine, theirs) and torch.equal(self.reads, other.reads)

    def _map(self, column: int) -> Tensor:
        weight, bias = self.weight, self.bias
        if weight is None:
            raise ValueError(f"{self.name} is no linear map.")
        last = weight.new_zeros(1) if bias is None else bias[column, None].to(weight)
        return torch.cat([weight[:, column], last])


@dataclass(frozen=True, eq=False)
class Matches:
    """Where each column of a target comes from.

    Attributes:
        owner: index of the candidate; −1: none found, −2: several that differ.
        column: its column.
        factor: target = factor · column.
        tied: whether several columns with the same map would do.
    """

    owner: Int64[Tensor, " columns"]
    column: Int64[Tensor, " columns"]
    factor: Float64[Tensor, " columns"]
    tied: Bool[Tensor, " columns"]


@dataclass
class Claims:
    """Columns that q, k or v were given already: ties go to columns nobody has."""

    taken: set[tuple[str, int]] = field(default_factory=set)


class Pool:
    """Candidates, with their columns laid out by value for many look-ups.

    Args:
        candidates: where columns may come from, the likelier ones first.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = candidates
        self._groups: dict[bytes, _Group] = {}

    def group(self, key: bytes) -> _Group | None:
        """The columns with these bytes."""
        if key not in self._places:
            return None
        if key not in self._groups:
            self._groups[key] = _Group(self._places[key], self.candidates)
        return self._groups[key]

    @cached_property
    def _places(self) -> dict[bytes, list[Place]]:
        places: dict[bytes, list[Place]] = {}
        for index, candidate in enumerate(self.candidates):
            for column, key in enumerate(_bytes_of(candidate.values)):
                places.setdefault(key, []).append((index, column))
        return places


def match_columns(target: Float[Tensor, "rows columns"], pool: Pool, claims: Claims) -> Matches:
    """Find for each column of `target` the column that equals it, or is proportional to it.

    First bit for bit. What is left over is compared up to a constant factor f, which must hold in
    every row to 4 eps: f and the product are rounded once each, and f is estimated. eps is that of
    float32 in a float64 model too, since some models rotate in float32. Where several columns fit,
    they must be the same linear map; otherwise nothing is chosen.

    Args:
        target: one row per probe sequence.
        pool: where its columns may come from.
        claims: columns given away before; updated.

    Returns:
        The matches.

    Example:
        >>> x = torch.tensor([[1.0, 5.0], [2.0, -3.0]])
        >>> found = match_columns(x.flip(1) * 0.5, Pool([Candidate("a", x)]), Claims())
        >>> found.column.tolist(), found.factor.tolist()
        ([1, 0], [0.5, 0.5])
    """
    n = target.shape[1]
    found = Matches(
        torch.full((n,), -1),
        torch.zeros(n, dtype=torch.int64),
        torch.ones(n, dtype=torch.float64),
        torch.zeros(n, dtype=torch.bool),
    )
    candidates = pool.candidates
    _match_bits(target, pool, claims, found)
    left = (found.owner == -1).nonzero()[:, 0]
    if len(left) and candidates:
        _match_up_to_factor(target, left, candidates, found)
        _share_factors(found, left, tolerance(target.dtype))
    return found


def tolerance(dtype: torch.dtype) -> float:
    """How far, relative to its size, a number may move by being scaled: 4 eps."""
    return 4 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def _match_bits(target: Tensor, pool: Pool, claims: Claims, found: Matches) -> None:
    last: Place | None = None
    for i, key in enumerate(_bytes_of(target)):
        group = pool.group(key)
        if group is None:
            continue
        if not group.agrees:
            found.owner[i] = -2
            continue
        last = group.choose(last, claims)
        found.owner[i], found.column[i] = last
        found.tied[i] = len(group.places) > 1


class _Group:
    """Columns with the same values."""

    def __init__(self, places: list[Place], candidates: Sequence[Candidate]) -> None:
        self.places, self.candidates, self.next = places, candidates, 0

    @cached_property
    def members(self) -> set[Place]:
        return set(self.places)

    @cached_property
    def agrees(self) -> bool:
        """Whether it does not matter which one is taken."""
        index, column = self.places[0]
        first = self.candidates[index]
        return all(
            first.same_map(column, self.candidates[other], other_column)
            for other, other_column in self.places[1:]
        )

    def choose(self, last: Place | None, claims: Claims) -> Place:
        """The column after the last one, else the first that nobody has, else the first."""
        following = None if last is None else (last[0], last[1] + 1)
        if following in self.members:
            place = following
        else:
            while self.next < len(self.places) and self._taken(self.next, claims):
                self.next += 1
            place = self.places[self.next if self.next < len(self.places) else 0]
        claims.taken.add((self.candidates[place[0]].name, place[1]))
        return place

    def _taken(self, number: int, claims: Claims) -> bool:
        index, column = self.places[number]
        return (self.candidates[index].name, column) in claims.taken


def _match_up_to_factor(
    target: Tensor, left: Tensor, candidates: Sequence[Candidate], found: Matches
) -> None:
    limit = tolerance(target.dtype)
    t = target[:, left].double()
    c = torch.cat([candidate.values for candidate in candidates], 1).double()
    sizes = torch.tensor([candidate.values.shape[1] for candidate in candidates])
    owner = torch.arange(len(candidates)).repeat_interleave(sizes)
    column = torch.cat([torch.arange(int(size)) for size in sizes])
    likeness = (_unit(t).T @ _unit(c)).abs()
    best = likeness.topk(min(2, c.shape[1]), dim=1).indices.cpu()
    for i, places in zip(left.tolist(), best.tolist(), strict=True):
        fits = [(place, _factor(target[:, i].double(), c[:, place], limit)) for place in places]
        fits = [(place, factor) for place, factor in fits if factor is not None]
        if not fits:
            continue
        (place, factor), *others = fits
        first = candidates[int(owner[place])]
        if others and not first.same_map(
            int(column[place]), candidates[int(owner[others[0][0]])], int(column[others[0][0]])
        ):
            found.owner[i] = -2
            continue
        found.owner[i], found.column[i] = owner[place], column[place]
        found.factor[i], found.tied[i] = factor, bool(others)


def _factor(t: Tensor, c: Tensor, limit: float) -> float | None:
    """f with t = f c in every row, if there is one."""
    size = (c @ c).item()
    if size == 0 or not bool(t.any()):
        return None
    factor = (t @ c).item() / size
    fits = bool(((t - factor * c).abs() <= limit * (factor * c).abs()).all())
    return factor if fits else None


def _share_factors(found: Matches, left: Tensor, limit: float) -> None:
    """One factor for all columns of a candidate where they agree: less noise in each."""
    for owner in found.owner[left].unique().tolist():
        if owner < 0:
            continue
        columns = left[found.owner[left] == owner]
        factors = found.factor[columns]
        middle = factors.median()
        if bool(((factors - middle).abs() <= limit * middle.abs()).all()):
            # columns that were only rounded on their way have no factor
            found.factor[columns] = 1.0 if abs(middle.item() - 1) <= limit / 4 else middle


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=0).clamp(min=torch.finfo(torch.float64).tiny)


def _bytes_of(values: Tensor) -> list[bytes]:
    """The bytes of each column; a negative zero is a zero."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    columns = (values + 0.0).T.contiguous().view(integer).cpu().numpy()
    return [column.tobytes() for column in columns]
