"""OV scores as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ..arguments import whole_number


@dataclass(frozen=True, eq=False)
class OVScores:
    """OV scores of every head; see `ov_scores`.

    Attributes:
        rows: one row per head.
        sequences: form -> tokens of the ordinal sequences that were used.
        rotations: how many random rotations the null of copying has.
        effective: whether suppression and succession read the effective embedding.
        caveats: norms that were left out, in sentences.
    """

    rows: pd.DataFrame
    sequences: Mapping[str, tuple[int, ...]]
    rotations: int
    effective: bool
    caveats: tuple[str, ...]

    def __repr__(self) -> str:
        best = self.rows.loc[self.rows["copying_z"].idxmax()]
        return (
            f"<OV scores of {len(self.rows)} heads, {self.rotations} rotations: most copying "
            f"L{best['layer']}H{best['head']} ({best['copying']:.2f})>"
        )

    def __getitem__(self, head: str | HeadId) -> dict[str, Any]:
        """One head's scores by name.

        Raises:
            InputError: no such head.
        """
        known = HeadId.parse(head)
        rows = self.rows
        own = rows[
            (rows.site == known.site) & (rows.layer == known.layer) & (rows["head"] == known.head)
        ]
        if own.empty:
            raise InputError(f"there are no OV scores of a head {known}.")
        return own.iloc[0].to_dict()

    def table(self, *, by: str = "copying_z", top: int = 20) -> pd.DataFrame:
        """The heads with the largest `by` first; by="-copying_z" gives the smallest."""
        name = by.removeprefix("-")
        if name not in self.rows.columns:
            raise InputError(f"there is no column {name!r}; there are {', '.join(self.rows)}.")
        ordered = self.rows.sort_values(name, ascending=by.startswith("-"), kind="stable")
        return ordered.head(whole_number("top", top, 1)).reset_index(drop=True)
