"""Read treebanks in CoNLL-U, with coreference in the `Entity=` notation where it is given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .conllu_row import Row, check_numbers, check_tree, read_row
from .entities import Entities
from .errors import InputError
from .files import read_text
from .parsed import Parsed
from .plain_text import printable

# as UD's validator has them: a blank after the sign # may be missing, and names are whole words
_DOCUMENT = re.compile(r"#\s*newdoc(?:\s|$)")
_PARAGRAPH = re.compile(r"#\s*newpar(?:\s|$)")
_LAYOUT = re.compile(r"#\s*global\.Entity\s*=")


def read_conllu(path: str | Path) -> list[Parsed]:
    """The documents of a CoNLL-U file.

    Documents begin at `# newdoc`; a file without such a line is one document. The text is put
    together from the word forms and `SpaceAfter=No`, with a space between sentences and a line
    break where `# newpar` stands. Of a multiword token (2-3) the words keep places of their own
    where their forms spell it (`do` + `n't`), and share its place where they do not. Empty nodes
    and enhanced dependencies are left out. Coreference is read from `Entity=` (the notation of
    CorefUD and GUM); discontinuous mentions count with their first part that holds a word, and
    those that begin or end on an empty node are cut to their words.

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
    documents = list(_documents(read_text(path).split("\n"), printable(Path(path).name)))
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
            if _DOCUMENT.match(line):
                if draft.spans:
                    yield draft.finish()
                draft = _Draft(line.partition("=")[2].strip() or f"{name}, document at {number}")
                draft.entities.layout(layout)
            elif _PARAGRAPH.match(line) and draft.gap:
                draft.gap = "\n"
            elif _LAYOUT.match(line):
                layout = line.partition("=")[2].strip()
                draft.entities.layout(layout)
        elif inside := bool(line):
            rows.append(read_row(line, number, where))
        elif rows:
            _add_sentence(draft, rows, name)
            rows = []
    if draft.spans:
        yield draft.finish()


def _add_sentence(draft: _Draft, rows: list[Row], name: str) -> None:
    words = [row for row in rows if row.is_word]
    surface = [row for row in rows if not row.is_empty]
    check_numbers(surface, len(words), name)
    check_tree(words, name)
    _read_entities(draft, rows, name)
    if not words:  # nothing but empty nodes
        return
    first = len(draft.spans)
    spans = _place(draft, surface, len(words))
    draft.spans += spans
    draft.sentences += [draft.n_sentences] * len(words)
    draft.heads += [first + row.head - 1 if row.head else -1 for row in words]
    draft.relations += [row.relation for row in words]
    draft.upos += [row.upos for row in words]
    draft.n_sentences += 1
    draft.gap = " "  # sentences never run together


def _read_entities(draft: _Draft, rows: list[Row], name: str) -> None:
    word = 0
    for row in rows:
        if row.is_range:
            continue
        place = word if row.is_word else None
        draft.entities.read(row.entity, draft.n_sentences, place, f"{name}, line {row.line}")
        word += row.is_word
    draft.entities.end_sentence(draft.n_sentences)


def _place(draft: _Draft, rows: list[Row], n_words: int) -> list[tuple[int, int]]:
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
