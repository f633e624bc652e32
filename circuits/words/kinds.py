"""The kinds of head between words: built in, found in a treebank, or registered by the user."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...interp.errors import InputError
from ...interp.parsed import Parsed
from ..kinds import listed
from .coreference import COREFERENCE
from .kind import WordKind
from .syntax import DIRECTIONS, SYNTACTIC, base_relation, syntactic_kind, syntactic_kinds

WORD_KINDS: dict[str, WordKind] = {COREFERENCE.name: COREFERENCE}
"""The registry, beside the syntactic kinds, of which there is one per relation and direction."""


def register_words(kind: WordKind) -> WordKind:
    """Add a kind of your own to the registry.

    Raises:
        InputError: no `WordKind`, or another kind has that name already.
    """
    if not isinstance(kind, WordKind):
        raise InputError(f"a kind between words is a WordKind; got {type(kind).__name__}.")
    if kind.name in WORD_KINDS or kind.name.split(".")[0] == SYNTACTIC:
        raise InputError(f"a kind named {kind.name!r} exists; choose another name.")
    WORD_KINDS[kind.name] = kind
    return kind


def is_of_words(kind: Any) -> bool:
    """Whether a kind, or a name of one or several, is of links between words.

    Example:
        >>> is_of_words("syntactic.obj"), is_of_words("coreference"), is_of_words("induction")
        (True, True, False)
    """
    if isinstance(kind, str):
        return kind in WORD_KINDS or kind.split(".")[0] == SYNTACTIC
    return isinstance(kind, WordKind)


def choose_word_kinds(
    kinds: str | WordKind | Sequence[str | WordKind] | None, documents: Iterable[Parsed]
) -> tuple[WordKind, ...]:
    """Kinds by name or value; None means the syntactic ones of the documents and the registry.

    Args:
        kinds: names in one text, separated by commas; a `WordKind`; or a sequence of both.
        documents: whose relations make the syntactic kinds. A name must be of a relation that
            stands in them, unless there are none.

    Raises:
        InputError: an unknown name, none at all, two kinds of one name, or a relation under which
            no two words of the documents are linked.

    Example:
        >>> [kind.name for kind in choose_word_kinds("syntactic.obj.to_head, coreference", [])]
        ['syntactic.obj.to_head', 'coreference']
    """
    if kinds is None:
        return (*syntactic_kinds(documents), *WORD_KINDS.values())
    known = tuple(documents)
    chosen = tuple(one for kind in listed(kinds, (WordKind,)) for one in _named(kind, known))
    names = [kind.name for kind in chosen]
    if not names:
        raise InputError(f"no kind is named; known: {known_word_kinds()}.")
    if len(set(names)) < len(names):
        raise InputError(f"two kinds have the same name among {', '.join(names)}; rename one.")
    return chosen


def _named(kind: Any, documents: Sequence[Parsed]) -> tuple[WordKind, ...]:
    """The kinds of one name: a relation alone names both directions, `syntactic` alone all."""
    if isinstance(kind, WordKind):
        return (kind,)
    if isinstance(kind, str) and kind in WORD_KINDS:
        return (WORD_KINDS[kind],)
    parts = kind.split(".") if isinstance(kind, str) else []
    if not 1 <= len(parts) <= 3 or parts[0] != SYNTACTIC:
        raise InputError(f"unknown kind {kind!r}; known: {known_word_kinds()}.")
    there = syntactic_kinds(documents)
    if documents and not there:
        raise InputError(
            f"{kind} names links of dependency trees, which these documents do not have; give a "
            "parsed treebank."
        )
    if len(parts) == 1:
        return there
    made = tuple(syntactic_kind(parts[1], way) for way in parts[2:] or DIRECTIONS)
    if documents and made[0].name not in {other.name for other in there}:
        relations = dict.fromkeys(other.name.split(".")[1] for other in there)
        raise InputError(
            f"no two words of these documents are linked under {base_relation(parts[1])!r}, so "
            f"{kind} has nothing to score; their relations are {', '.join(relations)}."
        )
    return made


def known_word_kinds() -> str:
    """The names that `choose_word_kinds` takes, for messages."""
    return f"{', '.join(WORD_KINDS)}, and {SYNTACTIC}[.RELATION[.to_head or .to_dependent]]"
