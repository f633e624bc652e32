"""Read treebanks in CoNLL-U, with coreference in the `Entity=` notation where it is given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .entities import Entities
from .errors import InputError
from .files import read_text
from .parsed import Parsed, find_circle

_COLUMNS = 10
_SHOWN = 8  # words of a circle in a message
_ID = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_RANGE = re.compile(r"([1-9][0-9]{0,5})-([1-9][0-9]{0,5})", re.ASCII)
_EMPTY_NODE = re.compile(r"[0-9]{1,6}\.[1-9][0-9]{0,5}", re.ASCII)
_HEAD = re.compile(r"[0-9]{1,6}", re.ASCII)


def read_conllu(path: str | Path) -> list[Parsed]:
    """The documents of a CoNLL-U file.

    Documents begin at `# newdoc`; a file without such a line is one document. The text is put
    together from the word forms and `SpaceAfter=No`, with a space between sentences and a line
    break where `# newpar` stands. Of a multiword token (2-3) the words keep places of their own
    where their forms spell it (`do` + `n't`), and share its place where they do not. Empty nodes
    and enhanced dependencies are left out. Coreference is read from `Entity=` (the notation of
    CorefUD and GUM); discontinuous mentions count with their first part.

    What the format demands is demanded: each sentence is one tree with one root, ranges stand
    before their first word and do not overlap, and comments stand before the words of a sentence.
    Labels, features and the order of empty nodes are not checked.

    Args:
        path: the file, UTF-8.

    Returns:
        One `Parsed` per document.

    Raises:
        InputError: no such file, a line that is not CoNLL-U, or a sentence that is no tree; the
            message names the line.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".conllu") as file:
        ...     _ = file.write("1\\tIt\\tit\\tPRON\\t_\\t_\\t2\\tnsubj\\t_\\t_\\n")
        ...     _ = file.write("2\\tfell\\tfall\\tVERB\\t_\\t_\\t0\\troot\\t_\\t_\\n\\n")
        ...     file.flush()
        ...     [document] = read_conllu(file.name)
        >>> document.text, document.heads
        ('It fell', (1, -1))

    Reference:
        Universal Dependencies, CoNLL-U format (2020); Nedoluzhko et al. 2022 for `Entity=`.
    """
    documents = list(_documents(read_text(path).split("\n"), Path(path).name))
    if not documents:
        raise InputError(f"{path} holds no sentences; expected a CoNLL-U treebank.")
    return documents


@dataclass
class _Draft:
    """A document as far as it has been read."""

    name: str
    parts: list[str] = field(default_factory=list)
    length: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)
    sentences: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)
    upos: list[str] = field(default_factory=list)
    entities: Entities = field(default_factory=Entities)
    gap: str = ""
    n_sentences: int = 0

    def write(self, form: str, *, space: bool) -> int:
        """Add a surface token; returns where it starts."""
        start = self.length + len(self.gap)
        self.parts += [self.gap, form]
        self.length = start + len(form)
        self.gap = " " if space else ""
        return start

    def finish(self) -> Parsed:
        return Parsed(
            "".join(self.parts), tuple(self.spans), tuple(self.sentences), tuple(self.heads),
            tuple(self.relations), self.entities.clusters(self.heads, self.sentences), self.name,
            tuple(self.upos) if any(self.upos) else (),
        )  # fmt: skip


@dataclass(frozen=True)
class _Row:
    """One line of a sentence, checked."""

    line: int
    first: int
    last: int
    form: str
    upos: str
    head: int
    relation: str
    space: bool
    entity: str

    @property
    def is_range(self) -> bool:
        return self.last > self.first


def _documents(lines: list[str], name: str) -> Iterator[Parsed]:
    draft, rows, layout, inside = _Draft(name), [], "", False
    for number, line in enumerate([*lines, ""], 1):
        where = f"{name}, line {number}"
        if line.startswith("#"):
            if inside:
                raise InputError(
                    f"{where}: the comment {line[:40]!r} stands inside a sentence; comments come "
                    "before its words, and an empty line ends it."
                )
            if line.startswith("# newdoc"):
                if draft.spans:
                    yield draft.finish()
                draft = _Draft(line.partition("=")[2].strip() or f"{name}, document at {number}")
                draft.entities.layout(layout)
            elif line.startswith("# newpar") and draft.gap:
                draft.gap = "\n"
            elif line.startswith("# global.Entity"):
                layout = line.partition("=")[2].strip()
                draft.entities.layout(layout)
        elif inside := bool(line.strip()):
            row = _row(line, number, where)
            if row is not None:
                rows.append(row)
        elif rows:
            _add_sentence(draft, rows, name)
            rows = []
    if draft.spans:
        yield draft.finish()


def _row(line: str, number: int, where: str) -> _Row | None:
    """A checked line; None for an empty node."""
    cells = line.split("\t")
    if len(cells) != _COLUMNS:
        raise InputError(
            f"{where}: expected {_COLUMNS} columns separated by tabs; got {len(cells)}: "
            f"{line[:60]!r}."
        )
    place, form, upos, head, relation, misc = (cells[i] for i in (0, 1, 3, 6, 7, 9))
    upos = "" if upos == "_" else upos
    if _EMPTY_NODE.fullmatch(place):
        return None
    pairs = (part.partition("=") for part in misc.split("|"))
    attributes = {key: value for key, _, value in pairs}
    space, entity = attributes.get("SpaceAfter") != "No", attributes.get("Entity", "")
    span = _RANGE.fullmatch(place)
    if not form.strip():
        raise InputError(f"{where}: the word form is empty.")
    if span is not None:
        first, last = int(span[1]), int(span[2])
        if last <= first:
            raise InputError(f"{where}: {place!r} is no range of words.")
        return _Row(number, first, last, form, "", -1, "", space, entity)
    if _ID.fullmatch(place) is None:
        raise InputError(f"{where}: {place!r} is no word number (1), range (1-2) or node (1.1).")
    if _HEAD.fullmatch(head) is None or not relation.strip():
        raise InputError(
            f"{where}: word {place} needs a head (a number) and a relation; got {head!r} and "
            f"{relation!r}. Is the treebank parsed?"
        )
    return _Row(number, int(place), int(place), form, upos, int(head), relation, space, entity)


def _add_sentence(draft: _Draft, rows: list[_Row], name: str) -> None:
    words = [row for row in rows if not row.is_range]
    _check_numbers(rows, len(words), name)
    _check_tree(words, name)
    first = len(draft.spans)
    spans = _place(draft, rows, len(words))
    draft.spans += spans
    draft.sentences += [draft.n_sentences] * len(words)
    draft.heads += [first + row.head - 1 if row.head else -1 for row in words]
    draft.relations += [row.relation for row in words]
    draft.upos += [row.upos for row in words]
    for index, row in enumerate(words):
        draft.entities.read(row.entity, draft.n_sentences, index, f"{name}, line {row.line}")
    draft.entities.end_sentence(draft.n_sentences, len(words))
    draft.n_sentences += 1
    draft.gap = " "  # sentences never run together


def _check_numbers(rows: list[_Row], n_words: int, name: str) -> None:
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


def _check_tree(words: list[_Row], name: str) -> None:
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


def _place(draft: _Draft, rows: list[_Row], n_words: int) -> list[tuple[int, int]]:
    """Write the sentence into the draft's text; the span of each of its words."""
    spans: list[tuple[int, int]] = []
    by_number = {row.first: row for row in rows if not row.is_range}
    ranges = {row.first: row for row in rows if row.is_range}
    number = 1
    while number <= n_words:
        token = ranges.get(number)
        if token is None:
            row = by_number[number]
            start = draft.write(row.form, space=row.space)
            spans.append((start, start + len(row.form)))
            number += 1
            continue
        start = draft.write(token.form, space=token.space)
        forms = [by_number[n].form for n in range(token.first, token.last + 1)]
        spans += _within(start, token.form, forms)
        number = token.last + 1
    return spans


def _within(start: int, surface: str, forms: list[str]) -> list[tuple[int, int]]:
    """Where the words of a multiword token stand."""
    if "".join(forms).casefold() != surface.casefold() or sum(map(len, forms)) != len(surface):
        return [(start, start + len(surface))] * len(forms)
    spans = []
    for form in forms:
        spans.append((start, start + len(form)))
        start += len(form)
    return spans
