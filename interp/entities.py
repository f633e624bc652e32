"""Coreference in CoNLL-U's `Entity=` notation: brackets around mentions, an identity in each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import InputError
from .grammar import Mention

_PIECE = re.compile(r"\(([^()]*)(\)?)|([^()]+)\)")
_PART = re.compile(r"(.*)\[(\d{1,4})/(\d{1,4})\]", re.ASCII)
_NUMBER = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_FIELDS = "eid-etype-head-other"  # CorefUD's, where the file does not say


@dataclass
class Entities:
    """Mentions collected while the words of a document go by.

    Example:
        >>> entities = Entities()
        >>> for word, note in enumerate(["(e1-person-1)", "", "(e1)", ""]):
        ...     entities.read(note, 0, word, "line")
        >>> [[(m.start, m.end) for m in c] for c in entities.clusters((1, -1, 1, 1), (0,) * 4)]
        [[(0, 1), (2, 3)]]
    """

    _open: list[tuple[str, int, int]] = field(default_factory=list)  # identity, start, head
    _found: dict[str, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    _fields: list[str] = field(default_factory=lambda: [*_FIELDS.split("-")])

    def layout(self, fields: str) -> None:
        """The fields of an opening bracket, as `# global.Entity` gives them."""
        if fields:
            self._fields = fields.split("-")

    def read(self, note: str, sentence: int, word: int, where: str) -> None:
        """The brackets at one word.

        Raises:
            InputError: the note is no series of brackets, or closes what is not open.
        """
        at = 0
        while at < len(note):
            piece = _PIECE.match(note, at)
            if piece is None:
                raise InputError(f"{where}: Entity={note[:60]!r} is no series of brackets.")
            at = piece.end()
            opened, closed_at_once, closed = piece.groups()
            if opened is not None:
                self._start(opened, word, where)
                closed = opened.split("-")[self._index("eid")] if closed_at_once else None
            if closed is not None:
                self._end(closed.split("-")[0], sentence, word, where)

    def _index(self, name: str) -> int:
        names = {"eid": ("eid", "GRP", "entity"), "head": ("head", "minspan")}[name]
        return next(
            (i for i, f in enumerate(self._fields) if f in names), 0 if name == "eid" else -1
        )

    def _start(self, note: str, word: int, where: str) -> None:
        cells = note.split("-")
        if not cells[0]:
            raise InputError(f"{where}: an Entity bracket without an identity.")
        at = self._index("head")
        head = cells[at].split(",")[0] if 0 <= at < len(cells) else ""
        offset = int(head) - 1 if _NUMBER.fullmatch(head) else -1
        identity = cells[self._index("eid")] if self._index("eid") < len(cells) else cells[0]
        self._open.append((identity, word, offset))

    def _end(self, identity: str, sentence: int, word: int, where: str) -> None:
        for place in range(len(self._open) - 1, -1, -1):
            opened, start, offset = self._open[place]
            if opened == identity:
                break
        else:
            raise InputError(f"{where}: the Entity bracket {identity!r} closes but was not opened.")
        del self._open[place]
        name, part = self._part(identity)
        if part == 1:  # later parts of a discontinuous mention add nothing of their own
            self._found.setdefault(name, []).append((sentence, start, word + 1, offset))

    @staticmethod
    def _part(identity: str) -> tuple[str, int]:
        match = _PART.fullmatch(identity)
        return (match[1], int(match[2])) if match else (identity, 1)

    def end_sentence(self, sentence: int, n_words: int) -> None:
        """Mentions end with their sentence: what is still open is closed at its last word."""
        for identity, start, offset in self._open:
            name, part = self._part(identity)
            if part == 1:
                self._found.setdefault(name, []).append((sentence, start, n_words, offset))
        self._open.clear()

    def clusters(
        self, heads: Sequence[int], sentences: Sequence[int]
    ) -> tuple[tuple[Mention, ...], ...]:
        """Clusters of two mentions or more, in text order, each mention with its head word.

        Where the notation names no head, it is the first word of the mention whose own head
        stands outside it.
        """
        first_of: dict[int, int] = {}
        for word, sentence in enumerate(sentences):
            first_of.setdefault(sentence, word)
        clusters = []
        for found in self._found.values():
            mentions = []
            for sentence, start, end, offset in sorted(found):
                base = first_of[sentence]
                inside = range(base + start, base + end)
                top = next((w for w in inside if heads[w] not in inside), inside[0]) - base
                head = start + offset if 0 <= offset < end - start else top
                mentions.append(Mention(sentence, start, end, head))
            if len(mentions) > 1:
                clusters.append(tuple(mentions))
        return tuple(sorted(clusters))
