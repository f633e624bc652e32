"""Values of heads from another run, as interventions put them in: which they are, whom they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .errors import InputError
from .sites import Site

Address = tuple[str, int]  # stack, layer


@dataclass(frozen=True, eq=False, repr=False)
class Reference:
    """Values of one target in another run.

    Args:
        tensors: [#batch, head, #column, width] at each site, by stack and layer.
        heads: which query heads axis 1 holds, where it does not hold all heads.
        origin: where they come from, in words.
        by_column: axis 2 holds columns of the sequence; else one value for all.
        donors: sequence b of a batch gets row `donors[b]`; None: row b.
        rotated: whether q and k were taken after RoPE, in a model that has it.
        mask: where its sequences have tokens [#batch, column], in models of one stack; None: not
            known.
        columns: which columns axis 2 holds; None: 0, 1, ….

    Its repr says where the values come from, not what they are.
    """

    tensors: Mapping[Address, Tensor]
    heads: Mapping[Address, tuple[int, ...]]
    origin: str
    by_column: bool = True
    donors: tuple[int, ...] | None = None
    rotated: bool = True
    mask: Tensor | None = None
    columns: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"<values of {len(self.tensors)} layers from {self.origin}>"

    def columns_at(self, site: Site) -> Sequence[int]:
        """The columns that axis 2 holds at a site, in its order."""
        return range(self.at(site).shape[2]) if self.columns is None else self.columns

    def check_columns(self, site: Site, wanted: Sequence[int]) -> None:
        """Refuse columns that axis 2 does not hold at a site.

        Raises:
            InputError: it lacks one.
        """
        self._check_among(self.columns_at(site), wanted)

    def check_rows(self, wanted: Sequence[int]) -> None:
        """Refuse columns that are not among `columns`, where these are told.

        Raises:
            InputError: one is not.
        """
        if self.columns is not None:
            self._check_among(self.columns, wanted)

    def _check_among(self, held: Sequence[int], wanted: Sequence[int]) -> None:
        missing = [column for column in wanted if column not in held]
        if missing:
            has = f"0 to {len(held) - 1}" if isinstance(held, range) else str(sorted(set(held)))
            raise InputError(
                f"{self.origin} has columns {has}, not {missing[0]}. Name positions among them, or "
                "take the values from a run that has it."
            )

    def at(self, site: Site) -> Tensor:
        """The values at a site.

        Raises:
            InputError: there are none.
        """
        values = self.tensors.get((site.stack, site.layer))
        if values is None:
            raise InputError(f"{self.origin} holds nothing for {site.label}, {_address(site)}.")
        return values

    def index(self, site: Site, heads: Sequence[int], n_heads: int) -> list[int]:
        """Where axis 1 holds `heads`, which are indices among `n_heads` query or key-value heads.

        Raises:
            InputError: it does not hold them.
        """
        held = self.heads.get((site.stack, site.layer))
        size = self.at(site).shape[1]
        if held is not None:
            missing = [head for head in heads if head not in held]
            if missing:
                raise InputError(
                    f"{self.origin} holds heads {list(held)} of {_address(site)}, not {missing[0]}."
                )
            return [held.index(head) for head in heads]
        if size == n_heads:
            return list(heads)
        if n_heads == site.n_heads and size == site.n_kv_heads:
            return [head * size // n_heads for head in heads]
        advice = ""
        if size == site.n_heads:
            advice = (
                " It was captured while single query heads had keys or values of their own; name "
                "query heads, or capture under edits of whole key-value heads (L0KV1)."
            )
        raise InputError(
            f"{self.origin} holds {size} heads at {_address(site)}, where {n_heads} are needed."
            f"{advice}"
        )

    def take(
        self, site: Site, index: Sequence[int], columns: Sequence[int] | None, batch: int
    ) -> Tensor:
        """The values [#batch, chosen, #column, width] for some columns of a batch.

        With donors a batch may be a whole multiple of theirs: `generate` repeats each sequence for
        its beams, or for the continuations it returns, one behind the other.

        Raises:
            InputError: it holds another number of sequences.
        """
        values = self.at(site)[:, list(index)]
        if self.by_column and columns is not None:
            held = self.columns_at(site)
            values = values[:, :, [held.index(column) for column in columns]]
        if self.donors is None:
            self.check_batch(len(values), batch)
            return values
        if batch % len(self.donors):
            self.check_batch(len(self.donors), batch)
        copies = batch // len(self.donors)
        return values[[donor for donor in self.donors for _ in range(copies)]]

    def check_batch(self, held: int, batch: int) -> None:
        """Refuse to give `held` sequences to a batch of another size."""
        if held == batch or (held == 1 and self.donors is None):
            return
        shared = "" if self.donors is not None else ", or from one sequence, which serves all"
        raise InputError(
            f"{self.origin} holds {held} sequences; this run has {batch}. Take the values from as "
            f"many sequences as are run{shared}."
        )

    def check_padding(self, mask: Tensor, columns: Sequence[int] | None) -> None:
        """Refuse values of padding for tokens, and sequences that begin at different columns.

        Args:
            mask: where the run has tokens [batch, column].
            columns: the columns that get values; None: all.

        Raises:
            InputError: a token would get what was computed at padding, or at another position.
        """
        if self.mask is None or not self.by_column or self.donors is not None:
            return
        held = self.mask.to(mask.device)
        chosen = slice(None) if columns is None else [c for c in columns if c < held.shape[1]]
        begins = held.int().argmax(1) != mask.int().argmax(1)
        differs = (mask[:, chosen] & ~held[:, chosen]).any(1) | begins
        if bool(differs.any()):
            raise InputError(
                f"{self.origin} has padding where sequence {int(differs.int().argmax())} of this "
                "run has tokens, or its tokens begin at another column. Use texts of equal length "
                "padded on the same side, or positions at which both have tokens."
            )


def fit_keys(values: Tensor, start: int, n_key: int, fill: float, what: str) -> Tensor:
    """The key columns start … start + n_key of the last axis, with `fill` beyond its end.

    Raises:
        InputError: a column that is left out does not hold `fill`.
    """
    outside = torch.cat([values[..., :start], values[..., start + n_key :]], -1)
    if outside.numel() and bool((outside != fill).any()):
        raise InputError(
            f"{what} attends to keys that this run does not have (it has columns {start} to "
            f"{start + n_key - 1}). Use a source that is no longer than the run."
        )
    piece = values[..., start : start + n_key]
    return nn.functional.pad(piece, (0, n_key - piece.shape[-1]), value=fill)


def _address(site: Site) -> str:
    return f"{site.prefix}L{site.layer}"
