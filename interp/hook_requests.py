"""What a block is asked for, checked before anything is hooked: its observers and its edits."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from .attention_call import Edit, Observer
from .errors import InputError
from .sites import Site


def read_requests(observers: Any, edits: Any) -> tuple[tuple[Observer, ...], tuple[Edit, ...]]:
    """Observers and edits as tuples.

    Args:
        observers: a list of functions of an `AttentionCall`.
        edits: a list of `Edit`.

    Raises:
        InputError: no list, an observer that is no function, or an edit that is no `Edit`.

    Example:
        >>> read_requests([print], [])[0] == (print,)
        True
    """
    watchers, changes = _listed("observers", observers), _listed("edits", edits)
    for observer in watchers:
        if not callable(observer):
            raise InputError(
                f"observers are functions of an AttentionCall; got {type(observer).__name__}."
            )
    for edit in changes:
        if not isinstance(edit, Edit):
            raise InputError(
                f"edits are Edit(target, change); got {type(edit).__name__}. Interventions such as "
                "zero and patch are applied by run(model, tokens, interventions) or inside "
                "intervene(model, interventions)."
            )
    return watchers, changes


def check_sites(
    edits: Iterable[Edit],
    sites: Iterable[Site],
    whose: str = "the model's attention_sites(model)",
) -> None:
    """Refuse edits that would act nowhere, which would read as "no effect".

    Args:
        edits: what was asked for.
        sites: where they could act.
        whose: where the caller finds these sites, for the message.

    Raises:
        InputError: an edit names a site that is not among the model's, or changes q or k where
            they are not seen.
    """
    known = frozenset(sites)
    for edit in edits:
        if edit.target in ("q", "k"):
            for site in known if edit.sites is None else known & frozenset(edit.sites):
                site.check_queries(f"an edit of {edit.target}")
        if edit.sites is None:
            continue
        named = edit.sites if isinstance(edit.sites, Set) else ()
        strange = [site for site in named if site not in known]
        if strange or not named:
            got = strange[0] if strange else edit.sites
            raise InputError(
                f"an edit's sites are a set of some of {whose}, at least one; got {got!r:.80}."
            )


def _listed(name: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, Iterable):
        raise InputError(
            f"{name} must be a list; got {type(given).__name__}. A single one goes in a list, "
            f"{name}=[…]."
        )
    return tuple(given)
