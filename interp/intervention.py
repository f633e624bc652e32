"""One intervention: which heads, in which target, at which columns, and what is put there."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .attention_call import AttentionCall, Edit
from .errors import InputError, shown
from .heads import HeadId, KvHeadId, one_or_more, parse_head
from .hook_names import is_rotary, read_target
from .inputs import Inputs
from .intervention_values import check_values
from .named_heads import Named, locate
from .reference import Reference, fit_keys
from .sites import Site, attention_sites

_SHOWN = 4  # of a list of heads or positions in a repr; of more only the first ones


@dataclass(frozen=True, eq=False, repr=False)
class Intervention:
    """A change to what some heads compute: a value, made by `zero`, `gate`, `add`, `patch`, ….

    It does nothing by itself: `run` and `intervene` apply it. The same value may be used any
    number of times, in several models of the same shape, and in several threads.

    Args:
        action: `"zero"`, `"gate"`, `"add"`, or, to put in values of another run, `"patch"`,
            `"mean"`, `"resample"` or `"freeze"`.
        target: where in the attention: `"q"`, `"k"`, `"v"`, `"scores"`, `"pattern"` or `"z"`, or
            TransformerLens's name of the same, such as `"hook_attn_scores"`.
        heads: which heads, as `HeadId`, `KvHeadId` or their texts; None: every head.
        positions: columns of the sequence, padding included, counted from 0; None: all. They are
            the queries' columns, for k and v the keys'.
        values: the factor of gate or vector of add, as given; a `Reference` to another run; None
            for zero.

    Raises:
        InputError: an unknown action or target, values that are not the action's, no head, a text
            that is no head's address, or a position that is no column.
    """

    action: str
    target: str
    heads: tuple[HeadId | KvHeadId, ...] | None
    positions: tuple[int, ...] | None = None
    values: Tensor | Reference | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", read_target(self.target, "an intervention"))
        object.__setattr__(self, "heads", as_heads(self.heads))
        object.__setattr__(self, "positions", as_positions(self.positions))
        n_heads = None if self.heads is None else len(self.heads)
        n_columns = None if self.positions is None else len(self.positions)
        check_values(self.action, self.target, self.values, n_heads, n_columns)

    def __repr__(self) -> str:
        heads = "all heads" if self.heads is None else _some(self.heads, "heads")
        where = "" if self.positions is None else f" at [{_some(self.positions, 'positions')}]"
        if isinstance(self.values, Reference):
            what = f" from {self.values.origin}"
        elif self.values is not None and self.values.ndim == 0:
            what = f" by {self.values.item():g}"
        else:
            what = "" if self.values is None else f" with {tuple(self.values.shape)} values"
        return f"<{self.action} {self.target} of {heads}{where}{what}>"

    def edit(self, sites: Sequence[Site], rotary: bool, inputs: Inputs | None = None) -> Edit:
        """The edit that makes this change, after every check that can be made before.

        Args:
            sites: those of the model.
            rotary: whether it rotates queries and keys.
            inputs: what it will be run on, where that is known.

        Raises:
            InputError: as `edits_for`.
        """
        places = locate(self.heads, sites)
        for site, named in places.items():
            self._check_site(site, named, rotary)
            if inputs is not None:
                self._check_inputs(site, inputs)
        return Edit(self.target, partial(self._change, places), frozenset(places))

    def _check_site(self, site: Site, named: Named, rotary: bool) -> None:
        width = {"q": site.d_head, "k": site.d_head, "v": site.d_value, "z": site.d_value}
        wanted = width.get(self.target)
        values = self.values
        if isinstance(values, Reference):
            if self.target in ("q", "k") and rotary and not values.rotated:
                raise InputError(
                    f"{values.origin} holds {self.target} before RoPE, but attention receives it "
                    f"after. Capture rot_{self.target}."
                )
            shared = self.target in ("k", "v") and named.kv is not None
            heads = named.kv if shared and named.kv is not None else named.query
            values.index(site, heads, site.n_kv_heads if shared else site.n_heads)
            values = values.at(site)
        elif self.action != "add":
            return
        if wanted is not None and values is not None and values.shape[-1] != wanted:
            raise InputError(
                f"{self.action} needs values of width {wanted} for {self.target} of {site.label}; "
                f"got {values.shape[-1]}."
            )

    def _check_inputs(self, site: Site, inputs: Inputs) -> None:
        keys = self.target in ("k", "v")
        length, n_key = (inputs.live(site, keys=k).shape[1] for k in (keys, True))
        if self.positions is not None and max(self.positions) >= length:
            raise InputError(
                f"position {shown(max(self.positions))} is out of range: {site.label} has {length} "
                f"columns, 0 to {length - 1}."
            )
        values = self.values.at(site) if isinstance(self.values, Reference) else self.values
        if isinstance(self.values, Reference) and values is not None:
            self.values.check_batch(len(values), len(inputs))
            if inputs.decoder_ids is None and (
                self.positions is not None or values.shape[2] == length
            ):
                self.values.check_padding(inputs.mask, self.positions)
            if self.values.by_column and self.positions is not None:
                self.values.check_columns(site, self.positions)
            if self.values.by_column and self.positions is None and values.shape[2] != length:
                raise InputError(
                    f"{self.values.origin} has {values.shape[2]} columns of {self.target} at "
                    f"{site.label}; this run has {length}. Use texts of equal length, or name "
                    "positions."
                )
        if self.target not in ("scores", "pattern") or values is None or self.action == "gate":
            return
        given = values.shape[-1]
        if given > n_key or (isinstance(self.values, Reference) and given != n_key):
            raise InputError(
                f"{self.action} of {self.target} has {given} keys at {site.label}; this run has "
                f"{n_key}."
            )

    def _change(self, places: Mapping[Site, Named], call: AttentionCall, value: Tensor) -> Tensor:
        named = places[call.site]
        rows = self._rows(call, value.shape[2])
        if rows is not None and not rows:
            return value
        heads, slots = named.query, named.places
        if value.shape[1] != call.site.n_heads:  # k or v of grouped heads
            if named.kv is not None:
                heads, slots = named.kv, named.kv_places
            else:
                value = value.repeat_interleave(call.site.n_heads // value.shape[1], 1)
        old = value[:, list(heads)]
        old = old if rows is None else old[:, :, list(rows)]
        columns = None if rows is None else tuple(rows.values())
        new = self._new(call, old, heads, slots, columns, value.shape[1])
        new = new.to(old).expand_as(old)
        changed = value.clone()
        if rows is None:
            changed[:, list(heads)] = new
        else:
            changed[:, torch.tensor(heads)[:, None], torch.tensor(list(rows))] = new
        return changed

    def _rows(self, call: AttentionCall, n: int) -> dict[int, int] | None:
        """The rows of this call to change, and their columns; None: all, whichever they are."""
        reference = self.values if isinstance(self.values, Reference) else None
        held: Sequence[int] = ()
        if reference is not None and reference.by_column:
            held = reference.columns_at(call.site)
            if self.positions is not None:
                reference.check_columns(call.site, self.positions)
        elif self.positions is None:
            return None
        first = call.where.key if self.target in ("k", "v") else call.where.query
        wanted = held if self.positions is None else self.positions
        return {column - first: column for column in wanted if first <= column < first + n}

    def _new(
        self,
        call: AttentionCall,
        old: Tensor,
        heads: Sequence[int],
        slots: Sequence[int],
        columns: tuple[int, ...] | None,
        n_heads: int,
    ) -> Tensor:
        """The new values of what was picked, `old` [batch, named head, row, width]."""
        if isinstance(self.values, Reference):
            index = self.values.index(call.site, heads, n_heads)
            new = self.values.take(call.site, index, columns, len(old))
            if self.target not in ("scores", "pattern"):
                return new
            fill = 0.0 if self.target == "pattern" else float("-inf")
            what = f"{self.values.origin}, at {call.site.label},"
            return fit_keys(new, call.where.key, old.shape[-1], fill, what)
        if self.target != "scores":
            return self._arithmetic(old, slots, columns, self.values)
        values = self.values
        if self.action == "add" and values is not None and values.shape[-1] != 1:
            values = _from_column(values, call.where.key, old.shape[-1])
        # what is masked stays so; 0 · −inf would be NaN, in the gradient too
        hidden = old == float("-inf")
        new = self._arithmetic(old.masked_fill(hidden, 0.0), slots, columns, values)
        return new.masked_fill(hidden, float("-inf"))

    def _arithmetic(
        self,
        old: Tensor,
        slots: Sequence[int],
        columns: tuple[int, ...] | None,
        values: Tensor | None,
    ) -> Tensor:
        if values is None:
            return torch.zeros_like(old)
        values = values.to(old.device, old.dtype)
        if self.action == "gate":
            return old * (values if values.ndim == 0 else values[list(slots)][:, None, None])
        if values.ndim == 2:
            values = values[list(slots)][:, None]
        elif values.ndim == 3:
            order = [(self.positions or ()).index(column) for column in columns or ()]
            values = values[list(slots)][:, order]
        return old + values


def edits_for(
    model: PreTrainedModel, interventions: Iterable[Intervention], inputs: Inputs | None = None
) -> list[Edit]:
    """The edits that make these changes in `model`, after every check that can be made before.

    Args:
        model: a transformers model.
        interventions: in the order in which they apply.
        inputs: what it will be run on, where that is known.

    Raises:
        InputError: a head the model does not have; values of another width; values that a source
            does not hold; for known inputs a position, a length or a batch that does not fit.
    """
    sites, rotary = attention_sites(model), is_rotary(model)
    return [intervention.edit(sites, rotary, inputs) for intervention in interventions]


def as_heads(heads: Any) -> tuple[HeadId | KvHeadId, ...] | None:
    """Heads as given, one or several, parsed.

    Raises:
        InputError: none, or what is no head's address.
    """
    if heads is None:
        return None
    heads = one_or_more(heads)
    if not isinstance(heads, Iterable):
        raise InputError(f"heads are addresses such as L3H2; got {shown(heads)}.")
    parsed = tuple(parse_head(head) for head in heads)
    if not parsed:
        raise InputError("heads is empty. Name at least one head.")
    return parsed


def as_positions(positions: Any) -> tuple[int, ...] | None:
    """Columns as given, one or several, checked.

    Raises:
        InputError: none, what is no integer, a negative or a repeated one.
    """
    if positions is None:
        return None
    try:
        listed = list(positions) if hasattr(positions, "__iter__") else [positions]
        columns = tuple(operator.index(column) for column in listed)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"positions are integers; got {shown(positions)}.") from None
    if columns and min(columns) < 0:
        raise InputError(
            f"position {shown(min(columns))} is negative: what it counts from differs between "
            "runs, and moves while a sequence is decoded. positions are columns counted from 0, "
            "padding included; the last of N is N - 1."
        )
    if not columns or len(set(columns)) != len(columns):
        raise InputError(
            "positions are columns of the sequence counted from 0, each named once; got "
            f"{shown(positions)}."
        )
    return columns


def _some(items: Sequence[Any], kind: str) -> str:
    """All of a few items, or how many there are and which come first."""
    if len(items) <= _SHOWN:
        return ", ".join(map(str, items))
    return f"{len(items)} {kind}: {items[0]}, {items[1]}, …"


def _from_column(values: Tensor, start: int, n: int) -> Tensor:
    """Values per key column, cut to the keys of a call; keys beyond their end get 0."""
    piece = values[..., start : start + n]
    return torch.nn.functional.pad(piece, (0, n - piece.shape[-1]))
