"""Which kinds were asked for: those scored on tokens, and those between words."""

from __future__ import annotations

from collections.abc import Sequence

from ..interp.parsed import Parsed
from .kind import Kind
from .kinds import choose_kinds, listed
from .words.kind import WordKind
from .words.kinds import WORD_KINDS, choose_word_kinds
from .words.syntax import SYNTACTIC

AnyKind = str | Kind | WordKind

_VALUES = (Kind, WordKind)


def asks_for_words(kinds: AnyKind | Sequence[AnyKind] | None) -> bool:
    """Whether a kind between words is named, which takes parsed documents."""
    return kinds is not None and any(map(_is_of_words, listed(kinds, _VALUES)))


def names_a_group(kinds: AnyKind | Sequence[AnyKind]) -> bool:
    """Whether a name stands for several relations or directions, some of which may be mute.

    Example:
        >>> names_a_group("syntactic.obj"), names_a_group("syntactic.obj.to_head")
        (True, False)
    """
    names = [kind for kind in listed(kinds, _VALUES) if isinstance(kind, str)]
    return any(
        _is_of_words(name) and name.count(".") < 2 and name not in WORD_KINDS for name in names
    )


def choose_any_kinds(
    kinds: AnyKind | Sequence[AnyKind] | None, documents: Sequence[Parsed] | None
) -> tuple[tuple[Kind, ...], tuple[WordKind, ...]]:
    """The kinds on tokens and the kinds between words that were asked for.

    Args:
        kinds: names in one text, separated by commas; a `Kind` or `WordKind`; or a sequence of
            these. `syntactic` names every relation of the documents in both directions,
            `syntactic.nsubj` one relation in both. None names all kinds on tokens, and where there
            are parsed documents all kinds between words.
        documents: parsed documents, where there are some.

    Raises:
        InputError: an unknown name, none at all, or two kinds of one name.

    Example:
        >>> tokens, words = choose_any_kinds("induction, syntactic.obj", [])
        >>> [kind.name for kind in (*tokens, *words)]
        ['induction', 'syntactic.obj.to_head', 'syntactic.obj.to_dependent']
    """
    if kinds is None:
        words = () if documents is None else choose_word_kinds(None, documents)
        return choose_kinds(None), words
    every = listed(kinds, _VALUES)
    of_words = [kind for kind in every if _is_of_words(kind)]
    others = [kind for kind in every if not _is_of_words(kind)]
    return (
        choose_kinds(others) if others or not of_words else (),
        choose_word_kinds(of_words, documents or ()) if of_words else (),
    )


def _is_of_words(kind: AnyKind) -> bool:
    if isinstance(kind, str):
        return kind in WORD_KINDS or kind.split(".")[0] == SYNTACTIC
    return isinstance(kind, WordKind)
