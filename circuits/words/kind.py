"""What a kind of head between words is: a name, a definition, and the links it is to find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...interp.errors import InputError
from ...interp.parsed import Parsed
from ..atlas_check import is_kind_name
from ..behaviour import AnyBehaviour, Behaviour, Downstream

Links = Iterable[tuple[int, Iterable[int]]]
"""Query words, each with the words that it is linked to."""

Guess = Callable[[Parsed, bool], Mapping[int, int]]
"""For a document and whether queries see earlier words only: a word to guess for each query."""


@dataclass(frozen=True)
class WordKind:
    """A kind of head that attends from words to the words they are linked to.

    Args:
        name: what tables and files call it: lower-case identifiers, joined by dots.
        definition: one sentence that says what the score measures.
        links: the linked words of a document, by index. Links that cannot be seen (in a decoder,
            to later words) are left out by whoever scores.
        guesses: rules that a head has to beat beside the best fixed offset, by name.
        groups: a class for each query word, by which the accuracy is broken down.
        legacy_margin: the field's own verdict is yes where the accuracy exceeds the baseline by
            this much; None where the field has none.
        behaviour: what removing such a head should harm, for `causal_effects`; None: the loss at
            the linked query words of parsed documents.

    Raises:
        InputError: one of them is not of the sort described.

    Example:
        >>> def objects(parsed):
        ...     for word, relation in enumerate(parsed.relations):
        ...         if relation == "obj":
        ...             yield word, [parsed.heads[word]]
        >>> kind = WordKind("verb_of_object", "The object's verb.", objects)
        >>> parsed = Parsed("It ate cake", ((0, 2), (3, 6), (7, 11)), (0, 0, 0), (1, -1, 1),
        ...     ("nsubj", "root", "obj"))
        >>> [*kind.linked(parsed)]
        [(2, (1,))]
    """

    name: str
    definition: str
    links: Callable[[Parsed], Links]
    guesses: Mapping[str, Guess] = field(default_factory=dict)
    groups: Callable[[Parsed], Mapping[int, str]] | None = None
    legacy_margin: float | None = None
    behaviour: AnyBehaviour | None = None

    def __post_init__(self) -> None:
        if not is_kind_name(self.name):
            raise InputError(
                f"a kind's name is lower-case identifiers joined by dots; got {self.name!r}."
            )
        named = isinstance(self.guesses, Mapping) and all(
            isinstance(name, str) and name.isidentifier() and callable(guess)
            for name, guess in self.guesses.items()
        )
        checks = (
            (isinstance(self.definition, str), "definition is a sentence", self.definition),
            (callable(self.links), "links is a function of a parsed document", self.links),
            (named, "guesses are functions by name", self.guesses),
            (self.groups is None or callable(self.groups), "groups is a function", self.groups),
            (
                self.behaviour is None or isinstance(self.behaviour, Behaviour | Downstream),
                "behaviour is a Behaviour, a Downstream or None",
                self.behaviour,
            ),
        )
        for holds, what, value in checks:
            if not holds:
                raise InputError(f"kind {self.name}: {what}; got {value!r}.")

    def linked(self, document: Parsed) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The links of a document, checked; each linked word once, in order.

        Raises:
            InputError: `links` gives something else than words of the document.
        """
        n = len(document.spans)
        for entry in self.links(document):
            try:
                query, keys = entry
                words = tuple(sorted(set(keys)))
            except (TypeError, ValueError) as error:
                raise self._no_link(entry, document) from error
            if not all(_is_word(word, n) for word in (query, *words)):
                raise self._no_link(entry, document)
            yield query, words

    def _no_link(self, entry: Any, document: Parsed) -> InputError:
        return InputError(
            f"kind {self.name}: links gives pairs of a word and a list of words, counted from 0 to "
            f"{len(document.spans) - 1} in {document.name}; got {entry!r}."
        )

    def guessed(self, name: str, document: Parsed, *, causal: bool) -> Mapping[int, int]:
        """What one of the rules guesses for each query."""
        return self.guesses[name](document, causal)

    def group_of(self, document: Parsed) -> Mapping[int, str]:
        """The class of each query word; empty without classes.

        Raises:
            InputError: `groups` gives a class whose name is no identifier.
        """
        found = {} if self.groups is None else self.groups(document)
        for name in found.values():
            if not isinstance(name, str) or not name.isidentifier():
                raise InputError(f"kind {self.name}: groups gives names; got {name!r}.")
        return found


def _is_word(value: Any, n: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < n
