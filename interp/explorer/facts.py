"""What a page says of heads beside their patterns: maps of a number per head, and cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..heads import HeadId


@dataclass(frozen=True, eq=False)
class HeadMap:
    """A number, or a word, for each of some heads: one choice of what colours the map of heads.

    Args:
        name: short and unique on the page, such as `induction`; a link names it.
        title: what the reader sees.
        values: by head; a head without one stays blank. Numbers, or words all through.
        signed: whether numbers lie on both sides of zero: diverging colours, centred there.
        top: the number with the strongest colour; None: the largest that occurs.
        grades: words shown with a head's value, such as its grade.
    """

    name: str
    title: str
    values: Mapping[HeadId, float | str]
    signed: bool = False
    top: float | None = None
    grades: Mapping[HeadId, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Card:
    """What is known of one head.

    Args:
        labels: what it is called, such as `induction (strong)`.
        paragraph: every label with its numbers, in sentences.
        rows: cells of a table, as text.
    """

    labels: tuple[str, ...]
    paragraph: str
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Facts:
    """All that a page says beside patterns.

    Args:
        title: of the page.
        lines: said of the model and of how the numbers came about, a line each.
        maps: what can colour the map of heads, the first at the start.
        cards: by head.
        columns: headings of the cards' rows.
    """

    title: str
    lines: tuple[str, ...] = ()
    maps: tuple[HeadMap, ...] = ()
    cards: Mapping[HeadId, Card] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
