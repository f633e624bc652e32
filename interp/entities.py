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


@dataclass(frozen=True)
class _Opened:
    """A bracket that is not closed yet."""

    identity: str
    node: int  # among the nodes of the sentence
    offset: int  # of the head within the mention, empty nodes counted; -1: not said


@dataclass
class Entities:
    """Mentions collected while the words and empty nodes of a document go by.

    An empty node is no place in the text: a mention is cut to the words that stand in it, and one
    that holds no word is left out.

    Example:
        >>> entities = Entities()
        >>> for word, note in enumerate(["(e1-person-1)", "", "(e1)", ""]):
        ...     entities.read(note, 0, word, "line")
        >>> [[(m.start, m.end) for m in c] for c in entities.clusters((1, -1, 1, 1), (0,) * 4)]
        [[(0, 1), (2, 3)]]
    """

    _open: list[_Opened] = field(default_factory=list)
    _nodes: list[int | None] = field(default_factory=list)  # of the sentence; None: empty
    _wordless: set[str] = field(default_factory=set)  # first parts left out in the sentence
    _found: dict[str, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    _fields: list[str] = field(default_factory=lambda: [*_FIELDS.split("-")])

    def layout(self, fields: str) -> None:
        """The fields of an opening bracket, as `# global.Entity` gives them."""
        if fields:
            self._fields = fields.split("-")

    def read(self, note: str, sentence: int, word: int | None, where: str) -> None:
        """The brackets at the next node of a sentence.

        Args:
            note: the brackets, or "".
            sentence: its number.
            word: the node's place among the words of the sentence; None: an empty node.
            where: how messages call it.

        Raises:
            InputError: the note is no series of brackets, or closes what is not open.
        """
        self._nodes.append(word)
        at = 0
        while at < len(note):
            piece = _PIECE.match(note, at)
            if piece is None:
                raise InputError(f"{where}: Entity={note[:60]!r} is no series of brackets.")
            at = piece.end()
            opened, closed_at_once, closed = piece.groups()
            if opened is not None:
                self._start(opened, where)
                closed = opened.split("-")[self._index("eid")] if closed_at_once else None
            if closed is not None:
                self._end(closed.split("-")[0], sentence, where)

    def _index(self, name: str) -> int:
        names = {"eid": ("eid", "GRP", "entity"), "head": ("head", "minspan")}[name]
        return next(
            (i for i, f in enumerate(self._fields) if f in names), 0 if name == "eid" else -1
        )

    def _start(self, note: str, where: str) -> None:
        cells = note.split("-")
        if not cells[0]:
            raise InputError(f"{where}: an Entity bracket without an identity.")
        at = self._index("head")
        head = cells[at].split(",")[0] if 0 <= at < len(cells) else ""
        offset = int(head) - 1 if _NUMBER.fullmatch(head) else -1
        identity = cells[self._index("eid")] if self._index("eid") < len(cells) else cells[0]
        self._open.append(_Opened(identity, len(self._nodes) - 1, offset))

    def _end(self, identity: str, sentence: int, where: str) -> None:
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place].identity == identity:
                self._keep(self._open.pop(place), sentence)
                return
        raise InputError(f"{where}: the Entity bracket {identity!r} closes but was not opened.")

    def _keep(self, mention: _Opened, sentence: int) -> None:
        """Note a mention that ends at the last node read."""
        match = _PART.fullmatch(mention.identity)
        name, part = (match[1], int(match[2])) if match else (mention.identity, 1)
        if part > 1 and name not in self._wordless:
            return  # later parts of a discontinuous mention add nothing of their own
        nodes = self._nodes[mention.node :]
        words = [word for word in nodes if word is not None]
        if not words:
            if match:
                self._wordless.add(name)
            return
        self._wordless.discard(name)
        known = part == 1 and 0 <= mention.offset < len(nodes)  # counted from the first part on
        head = nodes[mention.offset] if known else None
        offset = -1 if head is None else head - words[0]
        self._found.setdefault(name, []).append((sentence, words[0], words[-1] + 1, offset))

    def end_sentence(self, sentence: int) -> None:
        """Mentions end with their sentence: what is still open is closed at its last word."""
        for mention in self._open:
            self._keep(mention, sentence)
        self._open.clear()
        self._nodes.clear()
        self._wordless.clear()

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
            distinct = {one[:3]: one for one in sorted(found)}  # cut, two may be the same words
            for sentence, start, end, offset in distinct.values():
                base = first_of[sentence]
                inside = range(base + start, base + end)
                top = next((w for w in inside if heads[w] not in inside), inside[0]) - base
                head = start + offset if 0 <= offset < end - start else top
                mentions.append(Mention(sentence, start, end, head))
            if len(mentions) > 1:
                clusters.append(tuple(mentions))
        return tuple(sorted(clusters))
