"""The attention calls of a model's forward pass, as sites that are yet to be confirmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attach import AttentionCall, Edit, hooked
from .attention_call import Observer
from .errors import InputError
from .frames import WITHIN_TOKENS, Frame
from .inline_survey import find_inline
from .pattern import masked_scores
from .rows import Rows
from .signals import reads_signal
from .site_table import SiteTable
from .sites import Site
from .survey_probe import (
    DECODER_TOKENS,
    PROBE_BATCH,
    PROBE_TOKENS,
    is_encoder_decoder,
    output_of,
)
from .within_tokens import note_within_tokens


class _NotTokensError(InputError):
    """The rows or columns of a call are no tokens."""


def list_calls(model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[list[Site], Tensor]:
    """Every attention call of a forward pass as a site yet without layer, and the output."""
    try:
        return _list_registered(model, inputs)
    except _NotTokensError:
        lengths = PROBE_TOKENS, PROBE_TOKENS - 1
        if reads_signal(model) or is_encoder_decoder(model):
            raise
        if not note_within_tokens(model, lambda n: output_of(model, _first(inputs, n)), lengths):
            raise
    return _list_registered(model, inputs)


def _first(inputs: dict[str, Any], count: int) -> dict[str, Any]:
    """The inputs of a text model cut to their first tokens."""
    return {k: v[:, :count] if isinstance(v, Tensor) else v for k, v in inputs.items()}


def _list_registered(model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[list[Site], Tensor]:
    """The same, where all calls are of tokens or within them."""
    names = {id(module): name for name, module in model.named_modules()}
    calls, tokens = list[Site](), _Tokens(model)

    def site_of(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Site | None:
        if module in WITHIN_TOKENS:
            return None
        name = names.get(id(module))
        if name is None:
            raise InputError(
                f"{type(module).__name__} attends but is not among the model's modules."
            )
        stack = tokens.stack(name, q.shape[0], q.shape[2], k.shape[2])
        return Site(name, stack, -1, q.shape[1], k.shape[1], q.shape[3], v.shape[3], False)

    def record(call: AttentionCall) -> None:
        sink = "" if call.scores.sinks is None else "logit"
        calls.append(replace(call.site, causal=is_causal(call), sink=sink))

    rows = Rows()
    with hooked(model, Frame(site_of, (record,), (), model)), rows.watching(model):
        seen = output_of(model, inputs)
    if reads_signal(model):  # whose number of tokens is known from the calls alone
        for site in calls:
            length = tokens.count if site.stack != "dec" else DECODER_TOKENS
            queries = DECODER_TOKENS if site.stack == "cross" else length
            rows.check(model.get_submodule(site.module), site.label, PROBE_BATCH, queries or 0)
    return calls, seen


def list_inline(model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[list[Site], Tensor]:
    """The same of a model whose classes compute attention in their own code."""
    found = find_inline(model, lambda: output_of(model, inputs), PROBE_BATCH)
    shapes, calls, tokens = list[Site](), list[Site](), _Tokens(model)
    for part in found:
        _, heads, *lengths = part.pattern
        stack, shape = tokens.stack(part.name, PROBE_BATCH, *lengths), (part.d_head, part.v[3])
        shapes.append(
            Site(part.name, stack, -1, heads, part.v[1], *shape, False, inline=True, sink=part.sink)
        )
    table = SiteTable(model, number(shapes))

    def record(call: AttentionCall) -> None:
        calls.append(replace(call.site, causal=is_causal(call)))

    with attached(model, table, (record,)):
        seen = output_of(model, inputs)
    return calls, seen


@contextmanager
def attached(
    model: PreTrainedModel,
    table: SiteTable,
    observers: tuple[Observer, ...],
    edits: tuple[Edit, ...] = (),
) -> Iterator[None]:
    """What `attach` does, for sites that are yet to be confirmed."""
    frame, inline = Frame(table, observers, edits, model), table.inline
    with table.counting(), hooked(model, frame, inline):
        yield


def run_cut(
    model: PreTrainedModel, inputs: dict[str, Any], sites: tuple[Site, ...], target: str
) -> Tensor:
    """The output with one head per module zeroed, another one in each layer."""

    def change(call: AttentionCall, value: Tensor) -> Tensor:
        keep = torch.ones(value.shape[1], dtype=value.dtype, device=value.device)
        keep[call.site.layer % value.shape[1]] = 0
        return value * keep[:, None, None]

    with attached(model, SiteTable(model, sites), (), (Edit(target, change),)):
        return output_of(model, inputs)


class _Tokens:
    """How many tokens the queries and keys of a call are, which tells whose stack it is."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.paired = is_encoder_decoder(model)
        # how many an image has is known from the first call alone
        self.count = None if reads_signal(model) else PROBE_TOKENS

    def stack(self, name: str, batch: int, n_query: int, n_key: int) -> str:
        """The stack that a call is of.

        Raises:
            InputError: its rows and columns are not the tokens (windows, pooled ones, prompts put
                before them).
        """
        count = self.count = n_key if self.count is None else self.count
        stacks = {(count, count): "enc" if self.paired else ""}
        if self.paired:
            stacks |= {(DECODER_TOKENS, DECODER_TOKENS): "dec", (DECODER_TOKENS, count): "cross"}
        if (n_query, n_key) not in stacks or batch != PROBE_BATCH:
            apart = f", in {batch} parts of {PROBE_BATCH} inputs" if batch != PROBE_BATCH else ""
            raise _NotTokensError(
                f"{name} attends from {n_query} places to {n_key}{apart}, of {count} tokens, so "
                "its rows and columns are not tokens. The model is not supported."
            )
        return stacks[n_query, n_key]


def is_causal(call: AttentionCall) -> bool:
    """Whether no query of the first sequence sees a later key."""
    if call.q.shape[2] != call.k.shape[2]:
        return False
    scores = masked_scores(call.q, call.k, call.mask, call.scores)[0]
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return bool((scores[:, later] == float("-inf")).all())


def number(calls: list[Site]) -> tuple[Site, ...]:
    """The same sites with their layer in their stack, and the call of their module."""
    layers, turns = Counter[str](), Counter[str]()
    sites = []
    for site in calls:
        sites.append(replace(site, layer=layers[site.stack], call=turns[site.module]))
        layers[site.stack] += 1
        turns[site.module] += 1
    return tuple(sites)
