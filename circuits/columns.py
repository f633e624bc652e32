"""Which columns of a table fit a terminal: numbers, addresses and grades are never cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MISSING = "–"
"""A cell without a value."""


def fitting(
    columns: Mapping[str, Sequence[str]],
    width: int,
    *,
    spare: Sequence[str],
    wraps: str,
    gap: int = 1,
) -> dict[str, list[str]]:
    """The columns to print at a width, with the cells of one of them wrapped if they must be.

    Columns of `spare` without any value go; then, one after the other, those that leave the table
    too wide; then names in the column `wraps` are broken behind their dots and blanks. What is
    still too wide is left to whoever prints it.

    Args:
        columns: cells by column, in order.
        width: characters of a line.
        spare: columns that may go, the least first.
        wraps: the column whose cells may be broken.
        gap: blanks behind each column.

    Example:
        >>> cells = {"head": ["L1H2"], "kind": ["a.to_head"], "more": ["x"], "none": ["–"]}
        >>> fitting(cells, 14, spare=["none", "more"], wraps="kind")
        {'head': ['L1H2'], 'kind': ['a.\\nto_head']}
    """
    kept = {name: [*cells] for name, cells in columns.items()}
    for name in spare:
        empty = all(cell == MISSING for cell in kept[name])
        if empty or _total(kept, gap) > width:
            del kept[name]
    over = _total(kept, gap) - width
    if over > 0:
        room = max(1, _widest(wraps, kept[wraps]) - over)
        kept[wraps] = [broken(cell, room) for cell in kept[wraps]]
    return kept


def broken(name: str, width: int) -> str:
    """A name on several lines, broken behind dots and at blanks, as few as the width allows.

    Example:
        >>> broken("syntactic.nsubj.to_dependent", 17)
        'syntactic.nsubj.\\nto_dependent'
    """
    lines = [""]
    for part in _parts(name):
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _parts(name: str) -> list[str]:
    """A name cut behind each dot and blank; joined they are the name."""
    parts = [""]
    for sign in name:
        parts[-1] += sign
        if sign in ". ":
            parts.append("")
    return [part for part in parts if part]


def _total(columns: Mapping[str, Sequence[str]], gap: int) -> int:
    return sum(_widest(name, cells) + gap for name, cells in columns.items())


def _widest(name: str, cells: Sequence[str]) -> int:
    return max(map(len, (name, *cells)))
