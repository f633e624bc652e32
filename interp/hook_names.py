"""TransformerLens's hook names: which exist at a model's sites, and which a caller asks for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from torch import Tensor
from transformers import PreTrainedModel

from .errors import InputError, shown
from .heads import HeadId, KvHeadId, one_or_more, parse_head
from .sites import Site

Integers = Iterable[SupportsIndex] | Tensor
"""Whole numbers in a list, range, array or tensor."""

TARGETS = ("q", "k", "v", "scores", "pattern", "z")
"""What edits and interventions change, in the order in which they take effect."""

# TransformerLens's names of the same; its q and k come before RoPE and are none of them
_CALLED = {
    "attn_scores": "scores", "rot_q": "q", "rot_k": "k", "v": "v", "pattern": "pattern", "z": "z",
}  # fmt: skip

NamesFilter = str | Collection[str] | Callable[[str], bool] | None

KINDS = ("q", "k", "rot_q", "rot_k", "v", "attn_scores", "pattern", "sink", "z", "result")
_QUERIES = ("q", "k", "rot_q", "rot_k")  # not seen where a class attends in its own code
# kinds that exist per query head; keys and values exist per key-value head
PER_HEAD = ("q", "rot_q", "attn_scores", "pattern", "sink", "z", "result")
HEADS_FIRST = ("attn_scores", "pattern", "sink")
"""Kinds whose axes are [batch, head, query, …]; those of others are [batch, pos, head, …]."""


@dataclass(frozen=True)
class Wanted:
    """One tensor to keep: its kind at its site, for some query heads."""

    name: str
    kind: str
    site: Site
    heads: tuple[int, ...] | None


def read_target(target: Any, whose: str) -> str:
    """A target by its own name, or by TransformerLens's of the same thing.

    Args:
        target: such as `"scores"`, `"attn_scores"` or `"hook_attn_scores"`.
        whose: what the message says has targets.

    Raises:
        InputError: it is none. `hook_q` and `hook_k` are none: in a rotary model they are before
            the rotation, where nothing is changed.

    Example:
        >>> read_target("hook_attn_scores", "an edit"), read_target("rot_q", "an edit")
        ('scores', 'q')
    """
    if isinstance(target, str):
        if target in TARGETS:
            return target
        if (own := _CALLED.get(target.removeprefix("hook_"))) is not None:
            return own
    advice = {
        f"hook_{name}": f" In TransformerLens {target} comes before RoPE; {name} here is what "
        f"attention receives, hook_rot_{name} of a rotary model."
        for name in ("q", "k")
    }
    advice["hook_result"] = advice["result"] = " result follows from z."
    raise InputError(
        f"{whose}'s target is one of {', '.join(TARGETS)}, or TransformerLens's name such as "
        f"hook_attn_scores; got {target!r}.{advice.get(str(target), '')}"
    )


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
            f"{name} must be a sequence of whole numbers, such as [0, 2]; got {shown(values)}."
        ) from None


def choose_heads(sites: Sequence[Site], heads: Any) -> tuple[HeadId, ...]:
    """The query heads asked for, checked against those the model has.

    A key-value head stands for the query heads of its group.
    """
    named = one_or_more(heads)
    if not isinstance(named, Iterable):
        raise InputError(f"heads must be a sequence of heads, such as ['L0H1']; got {heads!r}.")
    chosen = [query for head in named for query in _query_heads(sites, parse_head(head))]
    if not chosen:
        raise InputError("heads is empty. Name at least one head, or pass None for all.")
    return tuple(chosen)


def _query_heads(sites: Sequence[Site], head: HeadId | KvHeadId) -> tuple[HeadId, ...]:
    """A query head, or those that read a key-value head."""
    known = {query for site in sites for query in site.heads}
    if isinstance(head, HeadId):
        if head not in known:
            raise InputError(f"the model has no head {head}; it has {min(known)} to {max(known)}.")
        return (head,)
    for site in sites:
        if (site.stack, site.layer) == (head.site, head.layer) and head.kv_head < site.n_kv_heads:
            group = site.n_heads // site.n_kv_heads
            return site.heads[head.kv_head * group : (head.kv_head + 1) * group]
    has = sorted({KvHeadId(s.stack, s.layer, n) for s in sites for n in range(s.n_kv_heads)})
    raise InputError(f"the model has no head {head}; it has {has[0]} to {has[-1]}.")


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
        for kind in _shown(site, kinds):
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
        left_out = {"attn_scores", "sink", "result", *(("q", "k") if "rot_q" in kinds else ())}
        return lambda name: name.rsplit("hook_", 1)[-1] not in left_out
    if callable(names_filter):
        return names_filter
    asked = _listed(names_filter)
    full = {_name(site, kind) for site in sites for kind in _shown(site, kinds)}
    accepted: set[str] = set()
    for entry in asked:
        kind = entry.removeprefix("hook_")
        if entry in full:
            accepted.add(entry)
        elif kind in kinds:
            if kind in _QUERIES:
                for site in sites:
                    site.check_queries(f"hook_{kind}")
            if kind == "sink" and not any(site.sink for site in sites):
                raise InputError(
                    "hook_sink does not exist: no softmax of the model has a learned sink. What "
                    "rests on the first token is in column 0 of the pattern."
                )
            accepted |= {_name(site, kind) for site in sites}
        else:
            raise InputError(f"there is no {entry!r}. {what_exists(full, entry)}")
    return accepted.__contains__


def _shown(site: Site, kinds: Sequence[str]) -> list[str]:
    """Of the kinds those that the site shows."""
    hidden = {*(_QUERIES if site.inline else ()), *(() if site.sink else ("sink",))}
    return [kind for kind in kinds if kind not in hidden]


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
    depths = {sum(other.stack == site.stack for other in sites) for site in sites}
    kept = {layer + max(depths) if layer < 0 else layer for layer in asked}
    if min(asked, default=0) < 0 and len(depths) > 1:
        raise InputError(
            f"layer {shown(min(asked))} counts from the end, but stacks differ in depth."
        )
    for layer in asked:
        if not -len(known) <= layer < len(known):
            raise InputError(
                f"the model has no attention layer {shown(layer)}; it has {min(known)} to "
                f"{max(known)}."
            )
    return frozenset(kept)


def _name(site: Site, kind: str) -> str:
    return f"{site.prefix}blocks.{site.layer}.attn.hook_{kind}"


def full_name(kind: str, layer: int, stack: str = "") -> str:
    """The name behind a short key: `("pattern", 5)` or `("pattern", 5, "enc")`."""
    prefix = "" if stack in ("", "attn") else f"{stack}."
    return f"{prefix}blocks.{layer}.attn.hook_{str(kind).removeprefix('hook_')}"


def last_layer(names: Iterable[str], stack: str = "") -> int:
    """The highest layer among names of a stack; −1 where there are none.

    Example:
        >>> last_layer(["blocks.0.attn.hook_z", "enc.blocks.10.attn.hook_z"], "enc")
        10
    """
    start = full_name("", 0, stack).split("0.attn")[0]
    numbers = (name.removeprefix(start).split(".")[0] for name in names if name.startswith(start))
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


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
