"""TransformerLens's hook names: which exist at a model's sites, and which a caller asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from .errors import InputError
from .heads import HeadId
from .sites import Site

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


def choose_heads(sites: Sequence[Site], heads: Sequence[str | HeadId]) -> tuple[HeadId, ...]:
    """The heads asked for, checked against those the model has."""
    known = {head for site in sites for head in site.heads}
    chosen = tuple(HeadId.parse(head) for head in ([heads] if isinstance(heads, str) else heads))
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
    layers: Collection[int] | None = None,
) -> list[Wanted]:
    """What to keep, in the order of the sites.

    Raises:
        InputError: the filter names something that does not exist, or selects nothing, or the
            model lacks a layer.
    """
    kinds = tuple(kind for kind in KINDS if rotary or not kind.startswith("rot_"))
    accept = _predicate(names_filter, kinds, sites)
    _check_layers(sites, layers)
    wanted = []
    for site in sites:
        if layers is not None and site.layer not in layers:
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
    asked = [names_filter] if isinstance(names_filter, str) else list(names_filter)
    full = {_name(site, kind) for site in sites for kind in kinds}
    accepted: set[str] = set()
    for entry in asked:
        kind = str(entry).removeprefix("hook_")
        if entry in full:
            accepted.add(entry)
        elif kind in kinds:
            accepted |= {_name(site, kind) for site in sites}
        else:
            raise InputError(f"there is no {entry!r}. {what_exists(full, str(entry))}")
    return accepted.__contains__


def _check_layers(sites: Sequence[Site], layers: Collection[int] | None) -> None:
    known = {site.layer for site in sites}
    for layer in layers or ():
        if layer not in known:
            raise InputError(
                f"the model has no attention layer {layer!r}; it has {min(known)} to {max(known)}."
            )


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
