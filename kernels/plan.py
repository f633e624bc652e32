"""How the label-match masses of one set of matches are summed: the values of a plan."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """Visible matching pairs of all listed matches, ordered by row; Int32 where that suffices.

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

    row: Int[Tensor, " pair"]
    key: Int[Tensor, " pair"]
    cell: Int[Tensor, " pair"]

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
        >>> import torch
        >>> from .masks import Mask
        >>> from .planning import plan_matches
        >>> from .values import Match, Request, Scores
        >>> x, label = torch.zeros(1, 1, 9, 2), torch.arange(9)[None] % 2
        >>> call = Request(q=x, k=x, v=x, scores=Scores(), matches=(Match(0 * label, label),))
        >>> plan_matches(call, Mask(causal=False)).columns.keys[0, :, 0].tolist()
        [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
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
        >>> import torch
        >>> none = torch.zeros(0, dtype=torch.int32)
        >>> Plan(Pairs(none, none, none), None, (), dense=False, shape=(1, 1, 2, 2)).needs_tiles
        False
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
