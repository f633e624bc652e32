"""Which kinds were asked for: those scored on tokens, and those between words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..interp.errors import InputError
from ..interp.parsed import Parsed
from .battery import Battery
from .kind import Kind
from .kinds import KINDS, choose_kinds, listed
from .words.kind import WordKind
from .words.kinds import WORD_KINDS, choose_word_kinds, is_of_words, known_word_kinds
from .words.syntax import DIRECTIONS, SYNTACTIC, syntactic_kind

AnyKind = str | Kind | WordKind

_VALUES = (Kind, WordKind)


@dataclass(frozen=True)
class Asked:
    """What is to be scored.

    Args:
        kinds: kinds on tokens.
        words: kinds between words.
        named: whether a user named them.
        each_named: whether, besides, no name stands for several relations or directions, some of
            which may have no link in the documents.
    """

    kinds: tuple[Kind, ...]
    words: tuple[WordKind, ...]
    named: bool
    each_named: bool


def ask(kinds: AnyKind | Sequence[AnyKind] | None, battery: Battery) -> Asked:
    """The kinds that were asked for, checked against what there is to score them on.

    Args:
        kinds: names in one text, separated by commas; a `Kind` or `WordKind`; or a sequence of
            these. `syntactic` names every relation of the documents in both directions,
            `syntactic.nsubj` one relation in both. None names all kinds on tokens, and with a
            treebank all kinds between words.
        battery: what they are to be scored on.

    Raises:
        InputError: an unknown name, a relation that does not stand in the documents, no name at
            all, two kinds of one name, a kind of your own under a name that another has, or a text,
            treebank, null draws or growing number of documents that no kind would use.

    Example:
        >>> asked = ask("induction, syntactic.obj", Battery())
        >>> [kind.name for kind in (*asked.kinds, *asked.words)]
        ['induction', 'syntactic.obj.to_head', 'syntactic.obj.to_dependent']
    """
    every = None if kinds is None else listed(kinds, _VALUES)
    if every is not None:
        _check_known(every)
        check_names(every)
    of_words = [kind for kind in every or () if is_of_words(kind)]
    documents = battery.documents if of_words or battery.treebank is not None else ()
    asked = Asked(
        _on_tokens(every, bool(of_words)),
        _between_words(every, of_words, documents),
        every is not None,
        every is not None and not any(map(_is_group, of_words)),
    )
    if battery.treebank is not None and not asked.words:
        raise InputError(
            "no kind between words is named, so the treebank would go unread; leave it out, or "
            f"name {SYNTACTIC} or coreference among the kinds."
        )
    signals = [kind.name for kind in asked.kinds if kind.of_signals]
    if signals:
        raise InputError(
            f"{', '.join(signals)}: such kinds are about images or sounds, and text is scored."
        )
    battery.check(asked.kinds, words=bool(asked.words))
    return asked


def _check_known(every: list[AnyKind]) -> None:
    """Refuse unknown names here, where kinds of both sorts can be listed."""
    unknown = [
        str(kind)
        for kind in every
        if not (isinstance(kind, str) and kind in KINDS)
        and not isinstance(kind, Kind)
        and not is_of_words(kind)
    ]
    if unknown or not every:
        wrong = f"unknown kind {', '.join(unknown)}" if unknown else "no kind is named"
        raise InputError(f"{wrong}; known: {', '.join(KINDS)}, {known_word_kinds()}.")


def check_names(kinds: Sequence[AnyKind]) -> None:
    """Refuse a kind of one's own under the name of another, which would later be taken for it.

    A copy of a registered kind that keeps its labels keeps its name.

    Raises:
        InputError: the name is registered for another kind, or is that of a relation.

    Example:
        >>> check_names(["induction", KINDS["offset"]])
    """
    for kind in kinds:
        if isinstance(kind, _VALUES) and not _owns_its_name(kind):
            raise InputError(
                f"the name {kind.name!r} belongs to another kind, for which this one would be "
                f"taken; give it a name of its own, such as 'my_{kind.name.replace('.', '_')}'."
            )


def _owns_its_name(kind: Kind | WordKind) -> bool:
    registered: Kind | WordKind | None = KINDS.get(kind.name) or WORD_KINDS.get(kind.name)
    if isinstance(kind, Kind) and isinstance(registered, Kind):
        return kind.labels is registered.labels  # also a copy that reads other prompts
    if registered is not None:
        return kind is registered
    first, *rest = kind.name.split(".")
    if first != SYNTACTIC:
        return True
    if not isinstance(kind, WordKind) or len(rest) != 2 or rest[1] not in DIRECTIONS:
        return False
    made = syntactic_kind(*rest)  # made anew for each call, so that no two are the same object
    links, own = made.links, kind.links
    return (
        isinstance(links, partial)
        and isinstance(own, partial)
        and (links.func, links.args) == (own.func, own.args)
    )


def _on_tokens(every: list[AnyKind] | None, with_words: bool) -> tuple[Kind, ...]:
    others = None if every is None else [kind for kind in every if not is_of_words(kind)]
    return () if with_words and not others else choose_kinds(others)  # type: ignore[arg-type]


def _between_words(
    every: list[AnyKind] | None, of_words: list[AnyKind], documents: Sequence[Parsed]
) -> tuple[WordKind, ...]:
    if every is None:
        return choose_word_kinds(None, documents) if documents else ()
    return choose_word_kinds(of_words, documents) if of_words else ()  # type: ignore[arg-type]


def _is_group(kind: AnyKind) -> bool:
    return isinstance(kind, str) and kind not in WORD_KINDS and kind.count(".") < 2
