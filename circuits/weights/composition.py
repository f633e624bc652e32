"""Composition scores as one value: arrays by kind, tables, and files of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ..arguments import whole_number
from ..table_file import write_table
from .null import false_discovery_q

KINDS = ("Q", "K", "V")
SCHEMA_VERSION = 1
"""Raised when a reader of the old files would misread the new ones."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """One kind of composition, [source, target]; NaN where the source's layer is not earlier.

    Attributes:
        score: the norm of the product over the product of norms, 0 to 1.
        expected: the root of the mean of score² when one map is turned at random.
        z: score² less its mean under that null, over its standard deviation.
        p: how often the null reaches the score; below `null.P_RESOLUTION` extrapolated, good for
            an order alone.
    """

    score: Float[np.ndarray, "source target"]
    expected: Float[np.ndarray, "source target"]
    z: Float[np.ndarray, "source target"]
    p: Float[np.ndarray, "source target"]


@dataclass(frozen=True, eq=False)
class Composition:
    """Composition of all pairs of heads; see `composition`.

    Attributes:
        heads: the heads, in the order of the arrays' axes.
        pairs: kind ("Q", "K", "V") -> arrays.
        delta: how many positions the target's query stands after its key (Q and K).
        caveats: norms that were left out, in sentences.
        kv_heads: the key-value head of each head, within its layer.
    """

    heads: tuple[HeadId, ...]
    pairs: Mapping[str, Pairs]
    delta: int
    caveats: tuple[str, ...]
    kv_heads: tuple[int, ...]

    def __repr__(self) -> str:
        kinds = ", ".join(self.pairs)
        note = f", {len(self.caveats)} norms left out" if self.caveats else ""
        return (
            f"<composition of {len(self.heads)} heads: {self.n_pairs} pairs each of {kinds}, "
            f"delta {self.delta}{note}>"
        )

    def __getitem__(self, kind: str) -> Pairs:
        if kind not in self.pairs:
            raise InputError(f"there is {', '.join(self.pairs)} composition here; got {kind!r}.")
        return self.pairs[kind]

    @property
    def n_pairs(self) -> int:
        """How many pairs were compared, of each kind: the tests that q allows for."""
        return int(np.isfinite(next(iter(self.pairs.values())).expected).sum())

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Every pair of every kind: kind, source, target, score, expected, z, p, q and addresses.

        q is the Benjamini–Hochberg rate over the pairs of its kind, extrapolated where p is. site,
        layer and head are the target's.
        """
        return pd.concat([self._rows(kind) for kind in self.pairs], ignore_index=True)

    def table(
        self,
        *,
        kind: str | None = None,
        source: str | HeadId | None = None,
        target: str | HeadId | None = None,
        top: int | None = 20,
        by: str = "z",
    ) -> pd.DataFrame:
        """The strongest pairs first.

        Args:
            kind: "Q", "K" or "V"; None: all.
            source: only out of this head.
            target: only into this head.
            top: how many; None: all.
            by: "z" or "score".

        Returns:
            Rows of kind, source, target, target_kv_head, score, expected, z, p and q.

        Raises:
            InputError: an unknown head, kind or order.
        """
        if by not in ("z", "score"):
            raise InputError(f"pairs are ordered by 'z' or 'score'; got {by!r}.")
        rows = self.rows
        if kind is not None:
            self[kind]
            rows = rows.loc[rows["kind"] == kind]
        for column, head in (("source", source), ("target", target)):
            if head is not None:
                rows = rows.loc[rows[column] == str(self._known(head))]
        rows = rows.sort_values(by, ascending=False, kind="stable", na_position="last")
        rows = rows if top is None else rows.head(whole_number("top", top, 1))
        columns = ["kind", "source", "target", "target_kv_head", *_NUMBERS]
        return rows.loc[:, columns].reset_index(drop=True)

    def between(self, source: str | HeadId, target: str | HeadId) -> dict[str, dict[str, float]]:
        """Score, expected, z and p of one pair, by kind.

        Raises:
            InputError: an unknown head, or a source whose layer is not earlier.

        Example:
            >>> import headatlas as ha
            >>> from headatlas.circuits.weights.compose import composition
            >>> found = composition(ha.load("tiny")[0], kinds=("Q", "K"))
            >>> list(found.between("L1H1", "L2H2")["K"])
            ['score', 'expected', 'z', 'p']
        """
        one, other = self._known(source), self._known(target)
        if one.layer >= other.layer:
            raise InputError(
                f"{one} writes after {other} has read: a source stands in an earlier layer."
            )
        i, j = self.heads.index(one), self.heads.index(other)
        return {
            kind: {name: float(getattr(found, name)[i, j]) for name in _NUMBERS[:-1]}
            for kind, found in self.pairs.items()
        }

    def of_heads(self, heads: Sequence[str | HeadId]) -> Composition:
        """The pairs into or out of some heads; the others become NaN, and no test of q.

        Raises:
            InputError: an unknown head, or none.
        """
        chosen = [self.heads.index(self._known(head)) for head in heads]
        if not chosen:
            raise InputError("no heads; name at least one.")
        keep = np.zeros((len(self.heads),) * 2, bool)
        keep[chosen], keep[:, chosen] = True, True
        pairs = {
            kind: Pairs(*(np.where(keep, getattr(found, name), np.nan) for name in _NUMBERS[:-1]))
            for kind, found in self.pairs.items()
        }
        return replace(self, pairs=pairs)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `rows`; the suffix picks .json (with delta and caveats), .csv or .parquet.

        Raises:
            InputError: another suffix, or the file cannot be written.
        """
        return write_table(Path(path), self.rows, self._meta(), name="pairs")

    def _meta(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "delta": self.delta,
            "caveats": list(self.caveats),
            "n_pairs": self.n_pairs,
        }

    def _known(self, head: str | HeadId) -> HeadId:
        known = HeadId.parse(head)
        if known not in self.heads:
            raise InputError(
                f"there is no head {known}; heads are {self.heads[0]} to {self.heads[-1]}."
            )
        return known

    def _rows(self, kind: str) -> pd.DataFrame:
        found = self.pairs[kind]
        i, j = np.nonzero(np.isfinite(found.expected))
        of_target = [self.heads[b] for b in j]
        of_source = [self.heads[a] for a in i]
        p = found.p[i, j]
        return pd.DataFrame(
            {
                "site": [head.site for head in of_target],
                "layer": [head.layer for head in of_target],
                "head": [head.head for head in of_target],
                "kind": kind,
                "source": [str(head) for head in of_source],
                "target": [str(head) for head in of_target],
                "source_layer": [head.layer for head in of_source],
                "source_head": [head.head for head in of_source],
                "target_kv_head": [self.kv_heads[b] for b in j],
                **{name: getattr(found, name)[i, j] for name in _NUMBERS[:-1]},
                "q": false_discovery_q(p),
            }
        ).sort_values(["layer", "head", "source_layer", "source_head"], ignore_index=True)


_NUMBERS = ("score", "expected", "z", "p", "q")
