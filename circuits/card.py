"""One head's card: its labels, numbers and evidence, for people."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..interp.errors import InputError
from ..interp.heads import HeadId
from ..interp.probes import PROMPT_SETS
from .card_text import number, paragraph, plain_line
from .grade import UNLABELLED

_SHOWN = 6  # rows of a further table that a card lists


@dataclass(frozen=True, eq=False)
class HeadCard:
    """One head: its labels, numbers and evidence, for people; `print` gives a paragraph.

    Args:
        head: the head's address.
        rows: its rows of the atlas, one per kind.
        tables: its rows of the atlas's further tables, by name.
    """

    head: HeadId
    rows: pd.DataFrame
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """Kinds with a grade other than *none* and *insufficient*."""
        given = self.rows[~self.rows["grade"].isin(UNLABELLED)]
        return dict(zip(given["kind"], given["grade"], strict=True))

    def __getitem__(self, kind: str) -> dict[str, Any]:
        own = self.rows[self.rows["kind"] == kind]
        if own.empty:
            raise InputError(
                f"kind {kind!r} was not scored; scored: {', '.join(self.rows['kind'])}."
            )
        return own.iloc[0].to_dict()

    def __str__(self) -> str:
        """One paragraph with the numbers of every label and table."""
        return paragraph(self.head, self.rows, self.tables)

    def __repr__(self) -> str:
        labels = ", ".join(f"{kind} ({grade})" for kind, grade in self.labels.items())
        lines = [f"{self.head}: {labels or 'no label'}"]
        lines += map(_card_line, self.rows.to_dict("records"))
        for name, table in self.tables.items():
            first = table.head(_SHOWN).to_dict("records")
            lines += [f"  {name}: {plain_line(row)}" for row in first]
            if len(table) > _SHOWN:
                lines.append(f"  {name}: … {len(table) - _SHOWN} more rows")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(str(self))}</p><pre>{html.escape(repr(self))}</pre>"


def _card_line(row: dict[str, Any]) -> str:
    details = row["details"]
    name = f"{row['kind']} {details['variant']}" if "variant" in details else row["kind"]
    line = (
        f"  {name:16} score {number(row['score'])}, expected {number(row['expected'])}, "
        f"{_excess(row)} on {details['prompts']} (n {row['n']})"
    )
    for other in (name for name in PROMPT_SETS if name in details):
        own = details[other]
        line += f"; on {other} {number(own['score'])}, {_excess(own)}, {own['grade']}"
    for companion, value in details.get("companions", {}).items():
        line += f"; {companion} {number(value)}"
    legacy = {True: "yes", False: "no", None: "–"}[row["legacy"]]
    return f"{line}; grade {row['grade']}; legacy {legacy}; evidence {row['evidence']}"


def _excess(numbers: dict[str, Any]) -> str:
    excess, low, high = (number(numbers[name], "+.3f") for name in ("excess", "low", "high"))
    return f"excess {excess} [{low}, {high}]"
