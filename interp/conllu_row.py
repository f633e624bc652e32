"""Lines of a sentence in CoNLL-U, checked: each by itself, and all of them as a tree."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import InputError
from .parsed import find_circle

_COLUMNS = 10
_TEMPLATE_COLUMNS = 4
_SHOWN = 8  # words of a circle in a message
_ID = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_RANGE = re.compile(r"([1-9][0-9]{0,5})-([1-9][0-9]{0,5})", re.ASCII)
_EMPTY_NODE = re.compile(r"([0-9]{1,6})\.[1-9][0-9]{0,5}", re.ASCII)
_HEAD = re.compile(r"[0-9]{1,6}", re.ASCII)


@dataclass(frozen=True)
class Row:
    """One line of a sentence, checked: a word, a range of words or an empty node."""

    line: int
    first: int
    last: int
    form: str
    upos: str
    head: int
    relation: str
    space: bool
    entity: str
    is_empty: bool = False

    @property
    def is_range(self) -> bool:
        """Whether this is a multiword token."""
        return self.last > self.first

    @property
    def is_word(self) -> bool:
        """Whether this is a word of the tree."""
        return not self.is_range and not self.is_empty


def read_row(line: str, number: int, where: str) -> Row:
    """A line of a sentence.

    Raises:
        InputError: it is no word, range or empty node.
    """
    cells = _cells(line, where)
    place, form, upos, head, relation, misc = (cells[i] for i in (0, 1, 3, 6, 7, 9))
    upos = "" if upos == "_" else upos
    pairs = (part.partition("=") for part in misc.split("|"))
    attributes = {key: value for key, _, value in pairs}
    space, entity = attributes.get("SpaceAfter") != "No", attributes.get("Entity", "")
    node, span = _EMPTY_NODE.fullmatch(place), _RANGE.fullmatch(place)
    if node is not None:
        before = int(node[1])
        return Row(number, before, before, form, upos, -1, "", space, entity, is_empty=True)
    if not form.strip():
        raise InputError(f"{where}: the word form is empty.")
    for what, cell in (("word form", form), ("part of speech", upos), ("relation", relation)):
        if cell != cell.strip():
            raise InputError(
                f"{where}: the {what} {cell[:40]!r} begins or ends with a blank; leave it out."
            )
    if span is not None:
        first, last = int(span[1]), int(span[2])
        if last <= first:
            raise InputError(f"{where}: {place!r} is no range of words.")
        return Row(number, first, last, form, "", -1, "", space, entity)
    if _ID.fullmatch(place) is None:
        raise InputError(f"{where}: {place!r} is no word number (1), range (1-2) or node (1.1).")
    if _HEAD.fullmatch(head) is None or not relation:
        raise InputError(
            f"{where}: word {place} needs a head (a number) and a relation; got {head!r} and "
            f"{relation!r}. Is the treebank parsed?"
        )
    return Row(number, int(place), int(place), form, upos, int(head), relation, space, entity)


def _cells(line: str, where: str) -> list[str]:
    if not line.strip():
        raise InputError(
            f"{where}: the line holds nothing but blanks; a sentence ends with an empty line."
        )
    cells = line.split("\t")
    if len(cells) != _COLUMNS:
        other = " Templates of four columns are read with read_winogender."
        raise InputError(
            f"{where}: expected {_COLUMNS} columns separated by tabs; got {len(cells)}: "
            f"{line[:60]!r}.{other if len(cells) == _TEMPLATE_COLUMNS else ''}"
        )
    return cells


def check_numbers(rows: list[Row], n_words: int, name: str) -> None:
    """Words are numbered from 1; ranges stand before their first word and do not overlap."""
    expected, covered = 1, 0
    for row in rows:
        where = f"{name}, line {row.line}"
        if row.first != expected:
            which = f"range {row.first}-{row.last}" if row.is_range else f"word {row.first}"
            raise InputError(
                f"{where}: {which} stands where word {expected} should; words are numbered from 1, "
                "and a range comes before its first word."
            )
        if not row.is_range:
            expected += 1
            continue
        if row.last > n_words:
            raise InputError(
                f"{where}: the range {row.first}-{row.last} goes beyond the {n_words} words of its "
                "sentence."
            )
        if row.first <= covered:
            raise InputError(
                f"{where}: the range {row.first}-{row.last} overlaps one before it, which ends at "
                f"word {covered}."
            )
        covered = row.last


def check_tree(words: list[Row], name: str) -> None:
    """One word is the root, and every other hangs on it, if through others."""
    roots = [row for row in words if not row.head]
    for row in words:
        if row.head > len(words):
            raise InputError(
                f"{name}, line {row.line}: word {row.first} has the head {row.head} in a sentence "
                f"of {len(words)} words."
            )
    if len(roots) > 1:
        raise InputError(
            f"{name}, line {roots[1].line}: word {roots[1].first} is a second root beside word "
            f"{roots[0].first}; a sentence has one word with the head 0."
        )
    circle = find_circle([row.head - 1 for row in words])
    if circle:
        numbers = [str(place + 1) for place in circle]
        path = [*numbers[:_SHOWN], *["…"][: len(numbers) > _SHOWN], numbers[0]]
        raise InputError(
            f"{name}, line {words[circle[0]].line}: the heads from word {numbers[0]} on lead back "
            f"to it ({' → '.join(path)}); heads must form a tree."
        )
