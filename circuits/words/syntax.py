"""Syntactic kinds: one per dependency relation and direction."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from ...interp.errors import InputError
from ...interp.parsed import Parsed
from .kind import Links, WordKind

SYNTACTIC = "syntactic"
"""What the names of syntactic kinds start with."""

DIRECTIONS = ("to_head", "to_dependent")
"""A word looks for its head under the relation, or for its dependents under it."""

VOITA_MARGIN = 0.10
"""A head is syntactic if its accuracy beats the best offset by 10 points (Voita 2019)."""

UNKNOWN = "_"
"""The relation of words whose tree is not known."""

_SUBTYPE = re.compile("[:@]")


def base_relation(relation: str) -> str:
    """A relation without its subtype, in lower case.

    Example:
        >>> base_relation("nsubj:pass")
        'nsubj'
    """
    return _SUBTYPE.split(relation, maxsplit=1)[0].lower()


def syntactic_kind(relation: str, direction: str) -> WordKind:
    """The kind of a relation and direction, such as `syntactic.nsubj.to_head`.

    To the head, an instance is a dependent and its head. To the dependent, it is a head with all
    its dependents under the relation that it can see: any of them is right.

    Args:
        relation: a base relation; subtypes (`nsubj:pass`) count with it.
        direction: `to_head` or `to_dependent`.

    Raises:
        InputError: another direction, or a relation that is no identifier.

    Example:
        >>> syntactic_kind("nsubj", "to_head").name
        'syntactic.nsubj.to_head'

    Reference:
        Voita et al. 2019, section 5.2.2, for the margin over the best offset; Clark et al. 2019,
        section 4.2, for attention between words. Subtypes are merged, as in the published figures
        for English.
    """
    if direction not in DIRECTIONS:
        raise InputError(f"a direction is one of {', '.join(DIRECTIONS)}; got {direction!r}.")
    name = base_relation(relation)
    if not name.isidentifier():
        raise InputError(f"the relation {relation!r} cannot name a kind; use a treebank's labels.")
    sought = "its head" if direction == "to_head" else "a dependent of it"
    who = f"a word that is {name}" if direction == "to_head" else f"a word with {name} dependents"
    return WordKind(
        f"{SYNTACTIC}.{name}.{direction}",
        f"Share of times that {who} most attends, among the other words, to {sought} under {name}.",
        partial(_to_head if direction == "to_head" else _to_dependent, name),
        legacy_margin=VOITA_MARGIN,
    )


def syntactic_kinds(documents: Iterable[Parsed]) -> tuple[WordKind, ...]:
    """Both kinds of each relation that the documents have, in alphabetic order.

    Example:
        >>> parsed = Parsed("It fell", ((0, 2), (3, 7)), (0, 0), (1, -1), ("nsubj", "root"))
        >>> [kind.name for kind in syntactic_kinds([parsed])]
        ['syntactic.nsubj.to_head', 'syntactic.nsubj.to_dependent']
    """
    found = {
        relation
        for document in documents
        for relation, head in zip(document.relations, document.heads, strict=True)
        if head >= 0
    }
    names = sorted({base_relation(relation) for relation in found} - {UNKNOWN})
    return tuple(syntactic_kind(name, direction) for name in names for direction in DIRECTIONS)


def _to_head(relation: str, document: Parsed) -> Links:
    for word, (head, label) in enumerate(zip(document.heads, document.relations, strict=True)):
        if head >= 0 and base_relation(label) == relation:
            yield word, (head,)


def _to_dependent(relation: str, document: Parsed) -> Links:
    dependents: dict[int, list[int]] = {}
    for word, (head,) in _to_head(relation, document):
        dependents.setdefault(head, []).append(word)
    return dependents.items()
