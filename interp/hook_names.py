"""TransformerLens's hook names: which exist at a model's sites, and which a caller asks for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from torch import Tensor
from transformers import PreTrainedModel

from .errors import InputError
from .heads import HeadId
from .sites import Site

Integers = Iterable[SupportsIndex] | Tensor
"""Whole numbers in a list, range, array or tensor."""

NamesFilter = str | Collection[str] | Callable[[str], bool] | None

KINDS = ("q", "k", "rot_q", "rot_k", "v", "attn_scores", "pattern", "z", "result")
# kinds that exist per query head; keys and values exist per key-value head
PER_HEAD = ("q", "rot_q", "attn_scores", "pattern", "z", "result")


@dataclass(frozen=True)
class Wanted:
    """One tensor to keep: its kind at its site, for some query heads."""

    name: str
    kind: str
    site: Site
    heads: tuple[int, ...] | None


def whole_numbers(values: Any, name: str) -> tuple[int, ...]:
    """The integers of a sequence, array or tensor.

    Raises:
        InputError: it holds something else, or is no sequence; the message calls it `name`.

    Example:
        >>> whole_numbers(range(2), "rows")
        (0, 1)
    """
    try:
        listed = list(values)
        if any(isinstance(value, bool) for value in listed):
            raise TypeError
        return tuple(operator.index(value) for value in listed)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{name} must be a sequence of whole numbers, such as [0, 2]; got {values!r}."
        ) from None


def choose_heads(sites: Sequence[Site], heads: Any) -> tuple[HeadId, ...]:
    """The heads asked for, checked against those the model has."""
    known = {head for site in sites for head in site.heads}
    named = [heads] if isinstance(heads, str | HeadId) else heads
    if not isinstance(named, Iterable):
        raise InputError(f"heads must be a sequence of heads, such as ['L0H1']; got {heads!r}.")
    chosen = tuple(HeadId.parse(head) for head in named)
    if not chosen:
        raise InputError("heads is empty. Name at least one head, or pass None for all.")
    for head in chosen:
        if head not in known:
            raise InputError(f"the model has no head {head}; it has {min(known)} to {max(known)}.")
    return chosen


def choose_names(
    sites: Sequence[Site],
    names_filter: NamesFilter,
    chosen: tuple[HeadId, ...] | None,
    *,
    rotary: bool,
    layers: Integers | None = None,
) -> list[Wanted]:
    """What to keep, in the order of the sites.

    Raises:
        InputError: the filter names something that does not exist, or selects nothing, or the
            model lacks a layer.
    """
    kinds = tuple(kind for kind in KINDS if rotary or not kind.startswith("rot_"))
    accept = _predicate(names_filter, kinds, sites)
    kept = None if layers is None else _known_layers(sites, layers)
    wanted = []
    for site in sites:
        if kept is not None and site.layer not in kept:
            continue
        heads = None
        if chosen is not None:
            heads = tuple(h.head for h in chosen if (h.site, h.layer) == (site.stack, site.layer))
            if not heads:
                continue
        for kind in kinds:
            name = _name(site, kind)
            if accept(name):
                wanted.append(Wanted(name, kind, site, heads if kind in PER_HEAD else None))
    if not wanted:
        raise InputError(
            f"names_filter, layers and heads select nothing. Names look like "
            f"{_name(sites[0], 'pattern')!r}; the kinds are {', '.join(kinds)}."
        )
    return wanted


def _predicate(
    names_filter: NamesFilter, kinds: Sequence[str], sites: Sequence[Site]
) -> Callable[[str], bool]:
    if names_filter is None:
        # what attention receives and gives; the rest follows from it, or costs more to find
        left_out = {"attn_scores", "result", *(("q", "k") if "rot_q" in kinds else ())}
        return lambda name: name.rsplit("hook_", 1)[-1] not in left_out
    if callable(names_filter):
        return names_filter
    asked = _listed(names_filter)
    full = {_name(site, kind) for site in sites for kind in kinds}
    accepted: set[str] = set()
    for entry in asked:
        kind = entry.removeprefix("hook_")
        if entry in full:
            accepted.add(entry)
        elif kind in kinds:
            accepted |= {_name(site, kind) for site in sites}
        else:
            raise InputError(f"there is no {entry!r}. {what_exists(full, entry)}")
    return accepted.__contains__


def _listed(names: Any) -> list[str]:
    """The names of a filter that is no predicate."""
    asked = [names] if isinstance(names, str) else names
    if not isinstance(asked, Iterable):
        raise InputError(
            f"names_filter is a name, a kind such as 'pattern', a list of these, or a function of "
            f"a name; got {names!r}."
        )
    asked = list(asked)
    for entry in asked:
        if not isinstance(entry, str):
            raise InputError(f"names_filter holds {entry!r}, which is no name.")
    return asked


def _known_layers(sites: Sequence[Site], layers: Any) -> frozenset[int]:
    known, asked = {site.layer for site in sites}, whole_numbers(layers, "layers")
    for layer in asked:
        if layer not in known:
            raise InputError(
                f"the model has no attention layer {layer}; it has {min(known)} to {max(known)}."
            )
    return frozenset(asked)


def _name(site: Site, kind: str) -> str:
    return f"{site.prefix}blocks.{site.layer}.attn.hook_{kind}"


def full_name(kind: str, layer: int, stack: str = "") -> str:
    """The name behind a short key: `("pattern", 5)` or `("pattern", 5, "enc")`."""
    prefix = "" if stack in ("", "attn") else f"{stack}."
    return f"{prefix}blocks.{layer}.attn.hook_{str(kind).removeprefix('hook_')}"


def what_exists(names: Collection[str], asked: str) -> str:
    """What to ask for in place of a name that does not exist."""
    kind = asked.rsplit("hook_", 1)[-1]
    if kind in ("q", "k") and any(name.endswith(f"hook_rot_{kind}") for name in names):
        return (
            f"Kept was rot_{kind}, after rotary positions: ask for it, or name {kind} in "
            "names_filter."
        )
    if kind in ("rot_q", "rot_k") and any(name.endswith(f"hook_{kind[-1]}") for name in names):
        return f"The model has no rotary positions: ask for {kind[-1]}."
    return f"There are: {', '.join(sorted(names)[:8])}{' …' if len(names) > 8 else ''}."


def is_rotary(model: PreTrainedModel) -> bool:
    """Whether queries are rotated: a rotary module, or a config that speaks of rotation."""
    config = model.config.get_text_config()
    keys = ("rope_parameters", "rope_theta", "rotary_dim", "rotary_pct")
    return any(getattr(config, key, None) is not None for key in keys) or any(
        "rotary" in type(module).__name__.lower() for module in model.modules()
    )
