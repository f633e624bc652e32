"""Trees that sentences are written from, and how a tree becomes a row of words."""

from __future__ import annotations

from typing import Literal

from .values import Mention, Sentence

Gender = Literal["m", "f", "n", "p"]

PRONOUNS: dict[str, tuple[str, str, str]] = {
    "m": ("he", "him", "his"),
    "f": ("she", "her", "her"),
    "n": ("it", "it", "its"),
    "p": ("they", "them", "their"),
}
_OUTSIDE_MENTION = frozenset({"case", "mark", "punct", "cc", "conj"})


class Entity:
    """Someone or something a document speaks of; equal only to itself.

    Args:
        noun: the noun it is called by, in the right number.
        gender: `m`, `f`, `n` for one, `p` for several; it picks the pronoun.
        person: whether it can act on purpose.
        name: given name and perhaps surname, for a named person.

    `known` tells whether it has been mentioned.
    """

    __slots__ = ("gender", "known", "name", "noun", "person")

    def __init__(self, noun: str, gender: Gender, person: bool, name: tuple[str, ...] = ()) -> None:
        self.noun, self.gender, self.person, self.name = noun, gender, person, name
        self.known = False

    @property
    def plural(self) -> bool:
        """Whether a verb with it as subject takes the plural."""
        return self.gender == "p"


class Node:
    """A word with its dependents to the left and right, in text order.

    Args:
        word: as it is written within a sentence.
        left: dependents before it, each with its relation.

    `entity` is what a noun, name or pronoun mentions.
    """

    __slots__ = ("entity", "left", "right", "word")

    def __init__(self, word: str, left: list[tuple[str, Node]] | None = None) -> None:
        self.word = word
        self.left = left if left is not None else []
        self.right: list[tuple[str, Node]] = []
        self.entity: Entity | None = None

    def before(self, relation: str, child: Node | str) -> Node:
        """Add the leftmost dependent; returns this node."""
        self.left.insert(0, (relation, _node(child)))
        return self

    def after(self, relation: str, child: Node | str) -> Node:
        """Add the rightmost dependent; returns this node."""
        self.right.append((relation, _node(child)))
        return self


def _node(child: Node | str) -> Node:
    return Node(child) if isinstance(child, str) else child


def linearise(root: Node, index: int) -> tuple[Sentence, list[tuple[Entity, Mention]]]:
    """Write a tree as a sentence, with the mentions in it.

    A mention spans its node's words without prepositions, conjunctions, punctuation at its edges
    and coordinated nouns; a possessive `'s` is left out as well.

    Args:
        root: the tree; the first word's first letter is made a capital.
        index: the sentence's index in its document.

    Returns:
        The sentence, and its mentions with their entities in order of their first word.
    """
    row = _Row(index)
    row.place(root, "root")
    first = next(i for i, word in enumerate(row.words) if word != '"')
    row.words[first] = row.words[first][0].upper() + row.words[first][1:]
    row.mentions.sort(key=lambda pair: (pair[1].start, -pair[1].end))
    return Sentence(tuple(row.words), tuple(row.heads), tuple(row.relations)), row.mentions


class _Row:
    """The words written so far, with their heads and relations."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.words: list[str] = []
        self.heads: list[int] = []
        self.relations: list[str] = []
        self.mentions: list[tuple[Entity, Mention]] = []

    def place(self, node: Node, relation: str) -> int:
        """Write a node and all below it; returns the position of its own word."""
        children = [self.place(child, kind) for kind, child in node.left]
        own = len(self.words)
        self.words.append(node.word)
        self.heads.append(-1)
        self.relations.append(relation)
        end, closed = own + 1, False
        for kind, child in node.right:
            children.append(self.place(child, kind))
            closed = closed or kind in _OUTSIDE_MENTION
            end = end if closed else len(self.words)
        for child in children:
            self.heads[child] = own
        if node.entity is not None:
            mention = Mention(self.index, _start(node, own), end, own)
            self.mentions.append((node.entity, mention))
        return own


def _start(node: Node, own: int) -> int:
    """First word of a mention: its left dependents, but for what stands outside."""
    inside = [child for kind, child in node.left if kind not in _OUTSIDE_MENTION]
    return own - sum(_size(child) for child in inside)


def _size(node: Node) -> int:
    return 1 + sum(_size(child) for _, child in (*node.left, *node.right))
