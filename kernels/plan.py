"""How the label-match masses of one set of matches are summed: the values of a plan."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """Visible matching pairs of all listed matches, ordered by row.

    Args:
        row: sequence * n_query + query.
        key: sequence * n_key + key.
        cell: (sequence * n_slot + match) * n_query + query: where the weight is added.

    Example:
        >>> import torch
        >>> nothing = torch.zeros(0, dtype=torch.int64)
        >>> len(Pairs(nothing, nothing, nothing))
        0
    """

    row: Int64[Tensor, " pair"]
    key: Int64[Tensor, " pair"]
    cell: Int64[Tensor, " pair"]

    def __len__(self) -> int:
        return self.row.numel()


@dataclass(frozen=True)
class Columns:
    """Key-only matches.

    Args:
        match: Index of each among the matches.
        keys: 1 where the key carries the label.
        rows: 1 on rows that look for it.
        own: 1 on rows whose own key must be taken out again (strict matches); None without any.

    Example:
        >>> Columns.__dataclass_fields__["own"].default is None
        True
    """

    match: tuple[int, ...]
    keys: Float[Tensor, "batch key column"]
    rows: Float[Tensor, "batch query column"]
    own: Float[Tensor, "batch query column"] | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """How the masses of one set of matches are computed under one mask.

    Args:
        pairs: The listed pairs.
        columns: The key-only matches, if any.
        compared: The matches that are compared label by label.
        dense: Whether the listed pairs are dense enough to want tiles.
        shape: (sequences, slots, queries, keys); one slot per match, and one more for the weight
            of the own key where strict columns need it.

    Example:
        >>> Plan.__dataclass_fields__["dense"].type
        'bool'
    """

    pairs: Pairs
    columns: Columns | None
    compared: tuple[int, ...]
    dense: bool
    shape: tuple[int, int, int, int]

    @property
    def needs_tiles(self) -> bool:
        """Whether the tiles of A have to be computed for these masses."""
        return self.dense or self.columns is not None or bool(self.compared)

    @cached_property
    def memory(self) -> dict[Hashable, object]:
        """What backends derive from the plan and want to keep with it."""
        return {}
