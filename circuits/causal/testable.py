"""Which labels can be tested by removal, on which documents, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.probes import TEXT_SETS, Prompts
from ..asked import check_names
from ..atlas import HeadAtlas
from ..behaviour import AnyBehaviour, Downstream, behaviour_of
from ..kind import Kind
from ..kinds import KINDS, choose_kinds, listed
from ..words.kind import WordKind
from ..words.kinds import WORD_KINDS, choose_word_kinds, is_of_words
from ..words.syntax import SYNTACTIC
from .word_documents import WordDocuments, word_behaviour

SomeKind = Kind | WordKind


@dataclass(frozen=True, eq=False)
class Candidate:
    """A kind with labelled heads, and what removing these should harm.

    Args:
        kind: the kind.
        behaviour: what is measured.
        words: the parsed documents that it is measured on, if that is so.
    """

    kind: SomeKind
    behaviour: AnyBehaviour
    words: WordDocuments | None = None


def chosen_kinds(kinds: Any, atlas: HeadAtlas) -> tuple[SomeKind, ...]:
    """The kinds to test, by what was asked for and what the atlas scored.

    Args:
        kinds: names and values; None: all that the atlas scored. `syntactic` names all relations
            that it scored, `syntactic.nsubj` one in both directions.
        atlas: the labels.

    Raises:
        InputError: a kind that was not scored, a name that no registry has, or a kind of one's own
            under the name of another.
    """
    if kinds is None:
        missing = [name for name in atlas.kinds if not _is_known(name)]
        if missing:
            raise InputError(
                f"the atlas scored {', '.join(missing)}, which the registry does not have; name "
                "the kinds to test, as values where they are not registered."
            )
        asked = [*atlas.kinds]
    else:
        asked = [
            kind for one in listed(kinds, (Kind, WordKind)) for kind in _scored_of_group(one, atlas)
        ]
    check_names(asked)
    between = [kind for kind in asked if is_of_words(kind)]
    others = [kind for kind in asked if not is_of_words(kind)]
    tokens = choose_kinds(others) if others or not between else ()
    words = choose_word_kinds(between, ()) if between else ()
    for kind in (*tokens, *words):
        atlas.heads(kind.name)  # refuses a kind that was not scored
    return (*tokens, *words)


def _is_known(name: str) -> bool:
    return name in KINDS or is_of_words(name)


def _scored_of_group(kind: Any, atlas: HeadAtlas) -> list[Any]:
    """The kinds that a name such as `syntactic.nsubj` stands for, as far as they were scored."""
    group = isinstance(kind, str) and kind.split(".")[0] == SYNTACTIC and kind.count(".") < 2
    scored = [name for name in atlas.kinds if name.startswith(f"{kind}.")] if group else []
    return scored or [kind]


def reads_parsed(kind: SomeKind) -> bool:
    """Whether a kind's behaviour is measured on parsed documents."""
    return isinstance(kind, WordKind) and kind.behaviour is None


def with_behaviours(
    kinds: Sequence[SomeKind],
    atlas: HeadAtlas,
    tokenizer: Any,
    words: WordDocuments | None,
    *,
    must: bool,
) -> tuple[list[Candidate], dict[str, str]]:
    """Kinds with labelled heads and their behaviours, and why others cannot be tested.

    Args:
        kinds: the chosen ones.
        atlas: the labels.
        tokenizer: the model's, if there is one.
        words: parsed documents, where some kind reads them and there is a tokenizer.
        must: refuse what cannot be tested.

    Raises:
        InputError: a kind that must be tested cannot be.
    """
    found, untested = [], dict[str, str]()
    for kind in kinds:
        if not atlas.heads(kind.name):
            continue
        one = _testable(kind, atlas, tokenizer, words)
        if isinstance(one, Candidate):
            found.append(one)
        elif must:
            raise InputError(f"kind {kind.name} cannot be tested: {one}.")
        else:
            untested[kind.name] = one
    return found, untested


def _testable(
    kind: SomeKind, atlas: HeadAtlas, tokenizer: Any, words: WordDocuments | None
) -> Candidate | str:
    if len({*atlas.heads(kind.name), *feeding(kind.name, atlas)}) == len(atlas):
        return "every head has the label or feeds such heads, so none is left to compare with"
    missing = [name for name in _feeders(kind.name) if name not in atlas.kinds]
    if missing:  # as a reference they would outdo every head that they feed
        return (
            f"heads of kind {missing[0]} feed it and so are no reference for it, and the atlas did "
            f"not score them; classify with kinds='{missing[0]},{kind.name}'"
        )
    if reads_parsed(kind) and isinstance(kind, WordKind):
        if words is None:
            return "its behaviour is measured on parsed documents, which need a tokenizer"
        behaviour = word_behaviour(kind, words)
        return behaviour if isinstance(behaviour, str) else Candidate(kind, behaviour, words)
    behaviour = behaviour_of(kind)
    if isinstance(behaviour, Downstream) and not labelled([behaviour], atlas):
        return f"its behaviour is measured in {behaviour.kind} heads, and none is labelled"
    if behaviour.prompts in TEXT_SETS and tokenizer is None:
        return "its behaviour is measured on text, which needs a tokenizer"
    return Candidate(kind, behaviour)


def labelled(behaviours: Sequence[AnyBehaviour], atlas: HeadAtlas) -> dict[str, list[HeadId]]:
    """The heads in which `Downstream` behaviours are measured, where the atlas has some."""
    asked = {b.kind for b in behaviours if isinstance(b, Downstream)} & {*atlas.kinds}
    return {kind: atlas.heads(kind) for kind in sorted(asked) if atlas.heads(kind)}


def feeding(kind: str, atlas: HeadAtlas) -> frozenset[HeadId]:
    """Heads with the label of a kind whose behaviour is measured in heads of this one."""
    scored = [name for name in _feeders(kind) if name in atlas.kinds]
    return frozenset(head for name in scored for head in atlas.heads(name))


def _feeders(kind: str) -> list[str]:
    """Registered kinds whose behaviour is measured in heads of this one."""
    known: dict[str, SomeKind] = {**KINDS, **WORD_KINDS}
    return [name for name, one in known.items() if getattr(one.behaviour, "kind", None) == kind]


def by_documents(chosen: Sequence[Candidate]) -> dict[str, tuple[str | Prompts, list[Candidate]]]:
    """Kinds whose behaviours are measured on the same documents, by a name for these."""
    groups: dict[str, tuple[str | Prompts, list[Candidate]]] = {}
    for one in chosen:
        own, name = one.behaviour.prompts, one.behaviour.set_name
        count = 1
        while name in groups and groups[name][0] is not own and groups[name][0] != own:
            count += 1
            name = f"{one.behaviour.set_name}{count}"
        groups.setdefault(name, (own, []))[1].append(one)
    return groups
