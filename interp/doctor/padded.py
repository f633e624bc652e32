"""Runs of a padded sequence beside a whole one, and of the same sequence alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attach import attach
from ..attention_call import AttentionCall
from ..closeness import apart
from ..forward import run_base
from ..frames import FULL_ROWS
from ..sites import Site
from ..survey_probe import is_encoder_decoder
from .look import Look, look, worst
from .runs import Runs, decoder_ids

PADDING = 4
TOKENS = 12


def padded_looks(runs: Runs) -> list[Look]:
    """What the calls of two sequences say, one of them padded, on the left and on the right."""
    looks: list[Look] = []
    sides = ("right",) if runs.model in FULL_ROWS else ("left", "right")
    for side in sides if runs.takes_mask else ():
        ids, mask = _padded(runs, side)
        with attach(runs.model, observers=[lambda c, m=mask: looks.append(look(c, _live(c, m)))]):
            runs.model(**runs.inputs(ids), attention_mask=mask.to(ids.dtype))
    return looks


def _padded(runs: Runs, side: str) -> tuple[Tensor, Tensor]:
    """Ids and mask of the text's first tokens, whole and padded."""
    n = max(1, min(TOKENS, runs.text.shape[1] - PADDING))
    whole = runs.text[:, : n + PADDING]
    padding = getattr(runs.model.config.get_text_config(), "pad_token_id", None)
    filler = torch.full_like(whole[:, n:], padding if isinstance(padding, int) else 0)
    empty = torch.zeros_like(filler, dtype=torch.bool)
    real = torch.ones_like(whole[:, :n], dtype=torch.bool)
    parts = ([filler, whole[:, :n]], [empty, real])
    ids, mask = (torch.cat(p if side == "left" else p[::-1], 1) for p in parts)
    return torch.cat([whole, ids]), torch.cat([torch.ones_like(mask), mask])


def padding_gap(runs: Runs, side: str) -> tuple[float, float]:
    """How far a padded sequence's patterns and z are from those alone; at the worst site."""
    ids, mask = _padded(runs, side)
    place = slice(PADDING, None) if side == "left" else slice(0, ids.shape[1] - PADDING)
    alone: dict[Site, tuple[Tensor, Tensor]] = {}
    gaps: list[tuple[float, float]] = []

    def note(call: AttentionCall) -> None:
        alone[call.site] = call.pattern[1], call.z[1]

    def compare(call: AttentionCall) -> None:
        pattern, z = call.pattern[1], call.z[1]
        if call.site.stack in ("", "enc"):
            pattern, z = pattern[:, place], z[:, place]
        if call.site.stack != "dec":
            pattern = pattern[:, :, place]
        one, other = alone[call.site]
        gaps.append((apart(pattern, one), apart(z, other)))

    base: dict[str, Any] = {}
    if is_encoder_decoder(runs.model):
        base["decoder_input_ids"] = decoder_ids(ids[:1]).expand(2, -1)
    bare = ids[1:, place].expand(2, -1)  # two, as some models take a shortcut for one
    with attach(runs.model, observers=[note]):
        run_base(runs.model, bare, **base)
    with attach(runs.model, observers=[compare]):
        run_base(runs.model, ids, mask, **base)
    patterns, z = zip(*gaps, strict=True)
    return worst(patterns), worst(z)


def _live(call: AttentionCall, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Where the queries and keys of a call belong to a token; `mask` is that of the ids."""
    stack, z = call.site.stack, call.z
    queries = mask if stack in ("", "enc") else mask.new_ones(len(mask), z.shape[2])
    keys = mask if stack != "dec" else mask.new_ones(len(mask), z.shape[2])
    return queries, keys
