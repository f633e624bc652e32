"""Heads that somebody named, found at a model's attention sites."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .errors import InputError
from .heads import HeadId, KvHeadId
from .sites import Site


@dataclass(frozen=True)
class Named:
    """The named heads of one site, in the order of the list that names them.

    Args:
        query: query heads; a key-value head stands for all query heads of its group.
        places: where in the list each of them is named.
        kv: the key-value heads, when the list names no query head here; else None.
        kv_places: where in the list each of them is named.
    """

    query: tuple[int, ...]
    places: tuple[int, ...]
    kv: tuple[int, ...] | None
    kv_places: tuple[int, ...]


def locate(heads: Sequence[HeadId | KvHeadId] | None, sites: Iterable[Site]) -> dict[Site, Named]:
    """The sites that hold named heads, and which.

    Args:
        heads: the list; None names every query head.
        sites: the model's attention sites.

    Raises:
        InputError: a head the model does not have, or one that is named twice.

    Example:
        >>> site = Site("attn", "", 0, n_heads=4, n_kv_heads=2, d_head=8, d_value=8, causal=True)
        >>> locate([KvHeadId("", 0, 1)], [site])[site].query
        (2, 3)
    """
    if heads is None:
        return {site: _all_of(site) for site in sites}
    by_address = {(site.stack, site.layer): site for site in sites}
    entries: dict[Site, list[tuple[int, HeadId | KvHeadId]]] = {}
    for place, head in enumerate(heads):
        site = by_address.get((head.site, head.layer))
        if site is None or _index(head) >= _count(head, site):
            raise InputError(f"the model has no head {head}; {_what_exists(head, by_address)}.")
        entries.setdefault(site, []).append((place, head))
    return {site: _named(site, found) for site, found in entries.items()}


def _all_of(site: Site) -> Named:
    every = tuple(range(site.n_heads))
    return Named(every, (0,) * len(every), None, ())


def _named(site: Site, entries: list[tuple[int, HeadId | KvHeadId]]) -> Named:
    group = site.n_heads // site.n_kv_heads
    query: dict[int, tuple[int, HeadId | KvHeadId]] = {}
    for place, head in entries:
        first = _index(head) * (group if isinstance(head, KvHeadId) else 1)
        for index in range(first, first + (group if isinstance(head, KvHeadId) else 1)):
            if index in query:
                raise InputError(
                    f"{HeadId(site.stack, site.layer, index)} is named twice, by {query[index][1]} "
                    f"and by {head}. Name each head once."
                )
            query[index] = (place, head)
    shared = all(isinstance(head, KvHeadId) for _, head in entries)
    return Named(
        tuple(query),
        tuple(place for place, _ in query.values()),
        tuple(_index(head) for _, head in entries) if shared else None,
        tuple(place for place, _ in entries),
    )


def _index(head: HeadId | KvHeadId) -> int:
    return head.head if isinstance(head, HeadId) else head.kv_head


def _count(head: HeadId | KvHeadId, site: Site) -> int:
    return site.n_heads if isinstance(head, HeadId) else site.n_kv_heads


def _is_numbered_so(site: Site) -> bool:
    """Whether its layer is the number in its module's name, as in models of one sort of layer."""
    numbers = [int(part) for part in site.module.split(".") if part.isdecimal()]
    return not numbers or site.layer in numbers


def _what_exists(head: HeadId | KvHeadId, sites: dict[tuple[str, int], Site]) -> str:
    site = sites.get((head.site, head.layer))
    if site is None:
        stacks = sorted({stack for stack, _ in sites})
        ranges = [f"L0 to L{max(n for s, n in sites if s == stack)}" for stack in stacks]
        told = ", ".join(
            f"{stack}.{span.replace(' L', f' {stack}.L')}" if stack else span
            for stack, span in zip(stacks, ranges, strict=True)
        )
        alone = any(not _is_numbered_so(one) for one in sites.values())
        return f"its layers are {told}{' (those without attention do not count)' * alone}"
    kind = "query" if isinstance(head, HeadId) else "key-value"
    return f"{site.label} has {_count(head, site)} {kind} heads"
