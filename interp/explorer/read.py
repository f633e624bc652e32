"""Run a model once and keep, in a few bytes per head, what its patterns look like."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from ...kernels.api import Weights
from ..attach import AttentionCall, attach
from ..errors import InputError
from ..given_text import read_given
from ..heads import HeadId, Heads
from ..hook_names import choose_heads
from ..sites import Site, attention_sites
from .blocks import NO_KEY, HeadBlocks, cell_size, put_rows
from .window import Window

Progress = Callable[[str, int, int], None]

STATISTICS = ("entropy_nats", "first_position", "previous_token")
"""Means over a head's rows on the text; of the first row there is no previous token."""

_MOST_NUMBERS = 2**22  # of the weights that are written out at a time


@dataclass(frozen=True, eq=False)
class HeadData:
    """One head on the page.

    Args:
        head: its address.
        mask: number of its mask among those of the page.
        blocks: deflated numbers as base64: the cells, the strongest keys and their weights, then
            one block per window.
        windows: which these are.
        statistics: one number per name of `STATISTICS`.
    """

    head: HeadId
    mask: int
    blocks: tuple[str, ...]
    windows: tuple[Window, ...]
    statistics: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Patterns:
    """The patterns of some heads on one text.

    Args:
        tokens: the visible string of each token.
        cell: tokens per cell and axis; 1 where every weight is kept.
        heads: what is kept of each.
        masks: the first key that each query sees, and the one behind the last.
    """

    tokens: tuple[str, ...]
    cell: int
    heads: tuple[HeadData, ...]
    masks: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def read_patterns(
    model: PreTrainedModel,
    tokenizer: Any,
    text_or_ids: Any,
    *,
    heads: Heads | None = None,
    windows: str | Window | Sequence[str | Window] = (),
    prepend_bos: bool | None = None,
    max_bytes: int | None = None,
    progress: Progress | None = None,
) -> Patterns:
    """Read the patterns of heads on one text, O(N · rows) memory at a time.

    Args:
        model: a transformers model of one stack.
        tokenizer: its tokenizer; may be None when ids are passed.
        text_or_ids: one text, or one sequence of token ids [1, pos] without padding.
        heads: which heads; None: all.
        windows: exact parts to keep of a text of more than `EXACT` tokens; a shorter one is exact.
        prepend_bos: whether the text starts with a BOS token.
        max_bytes: of what is kept, as base64; None: no limit.
        progress: called with ("reading", layers done, layers).

    Raises:
        InputError: several sequences or stacks, padding, too many tokens, unknown heads, a window
            outside of the text, or more than `max_bytes`.
    """
    sites = attention_sites(model)
    if any(site.stack for site in sites):
        raise InputError(
            f"{type(model).__name__} has several stacks, and a page shows one. Pass "
            "model.get_encoder() or model.get_decoder()."
        )
    wanted = [head for site in sites for head in site.heads]
    if heads is not None:
        wanted = sorted(set(choose_heads(sites, heads)))
    asked = read_windows(windows)
    inputs, strings = read_given(model, tokenizer, text_or_ids, prepend_bos)
    n_tokens = inputs.ids.shape[1]
    _check_text(inputs.ids, bool(inputs.mask.all()), n_tokens)
    for window in asked:
        window.check(n_tokens, tuple(wanted))
    reader = _Reader(wanted, asked, cell_size(n_tokens), max_bytes)

    def watch(call: AttentionCall) -> None:
        reader.read(call)
        if progress is not None:
            progress("reading", call.site.layer + 1, len(sites))

    with torch.no_grad(), attach(model, observers=[watch]):
        inputs.run(model)
    return Patterns(tuple(strings[0]), reader.cell, tuple(reader.found), tuple(reader.masks))


def read_windows(windows: str | Window | Sequence[str | Window]) -> tuple[Window, ...]:
    """One window or several, each once.

    Raises:
        InputError: what `Window.parse` refuses.
    """
    given = [windows] if isinstance(windows, str | Window) else windows
    return tuple(dict.fromkeys(map(Window.parse, given)))


def _check_text(ids: Tensor, whole: bool, n_tokens: int) -> None:
    if len(ids) != 1:
        raise InputError(f"a page shows one text; got {len(ids)}. Make a page of each.")
    if not whole:
        raise InputError("the sequence has padding; pass its own tokens alone.")
    if n_tokens >= NO_KEY:
        raise InputError(
            f"the text has {n_tokens:,} tokens, and a page holds at most {NO_KEY - 1:,}; pass a "
            "part of it."
        )


class _Reader:
    """Reads layer after layer; what is kept grows in `found`."""

    def __init__(
        self,
        wanted: Sequence[HeadId],
        windows: tuple[Window, ...],
        cell: int,
        max_bytes: int | None,
    ) -> None:
        self.wanted, self.windows, self.cell, self.max_bytes = wanted, windows, cell, max_bytes
        self.found: list[HeadData] = []
        self.masks: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._n_bytes = 0

    def read(self, call: AttentionCall) -> None:
        """Keep what the page needs of the wanted heads of one layer, some heads at a time."""
        own = [head for head in self.wanted if head.layer == call.site.layer]
        if not own:
            return
        mask = self._mask(call)
        at_once = max(1, _MOST_NUMBERS // (call.q.shape[2] * self.cell))
        for first in range(0, len(own), at_once):
            self._read_heads(call, own[first : first + at_once], mask)

    def _read_heads(self, call: AttentionCall, own: list[HeadId], mask: int) -> None:
        blocks = [HeadBlocks(self._windows(head)) for head in own]
        sums = np.zeros((len(own), len(STATISTICS)))
        n_tokens = call.q.shape[2]
        for start, stop in _spans(n_tokens, len(own) * n_tokens, self.cell):
            weights = _rows(call, [head.head for head in own], start, stop)
            if call.site.causal and not call.edited:
                weights = weights[:, :, :stop]
            put_rows(blocks, weights, start, cell=self.cell, n_tokens=n_tokens)
            sums += _statistics(weights, start, sinks=call.scores.sinks is not None)
            self._check(sum(head.size for head in blocks), call.site)
        rows = np.array([n_tokens, n_tokens, max(n_tokens - 1, 1)])
        for head, kept, total in zip(own, blocks, sums / rows, strict=True):
            texts = tuple(base64.b64encode(block.finish()).decode() for block in kept.blocks)
            self._n_bytes += sum(map(len, texts))
            statistics = tuple(map(float, total))
            self.found.append(HeadData(head, mask, texts, kept.windows, statistics))
        self._check(0, call.site)

    def _mask(self, call: AttentionCall) -> int:
        """Its number; an edited pattern may have weight anywhere."""
        n_tokens = call.q.shape[2]
        if call.edited:
            ends = ((0,) * n_tokens, (n_tokens,) * n_tokens)
        else:
            low, high = call.mask.intervals(1, n_tokens, n_tokens, call.q.device)
            ends = (tuple(low[0].tolist()), tuple(high[0].tolist()))
        if ends not in self.masks:
            self.masks.append(ends)
        return self.masks.index(ends)

    def _windows(self, head: HeadId) -> tuple[Window, ...]:
        mine = (w for w in self.windows if w.heads is None or head in w.heads)
        return tuple(mine) if self.cell > 1 else ()

    def _check(self, deflated: int, site: Site) -> None:
        total = self._n_bytes + deflated * 4 // 3
        if self.max_bytes is not None and total > self.max_bytes:
            raise InputError(
                f"the page is over its limit of {self.max_bytes / 2**20:g} MiB after layer "
                f"{site.layer}. Name fewer heads, ask for fewer windows, shorten the text, or "
                "raise max_mib."
            )


def _spans(n_rows: int, numbers_per_row: int, cell: int) -> list[tuple[int, int]]:
    """Ranges of rows, whole cells of them but for the last, that are written out at a time."""
    step = max(1, _MOST_NUMBERS // numbers_per_row // cell) * cell
    return [(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def _rows(
    call: AttentionCall, heads: list[int], start: int, stop: int
) -> Float[Tensor, "head row key"]:
    """The weights of some rows, after the edits of blocks around this one."""
    if call.edited:
        return call.weights(heads)[0, :, start:stop].float()
    rows = torch.arange(start, stop, device=call.q.device)[None]
    asked = Weights(heads=tuple(heads), rows=rows, dtype=torch.float32)
    written = call.probe(weights=asked).weights
    assert written is not None  # it was asked for
    return written[0]


def _statistics(
    weights: Float[Tensor, "head row seen_key"], start: int, *, sinks: bool
) -> np.ndarray:
    """Sums over the rows of what `STATISTICS` names, [head, name].

    A learned sink counts as an outcome of the softmax, as in `head_statistics`.
    """
    # in place, and without the branch of xlogy: a fifth of its time
    entropy = -weights.clamp_min(1e-30).log_().mul_(weights).sum(dim=(1, 2))
    if sinks:
        left = (1 - weights.sum(dim=2)).clamp_min(0)
        entropy -= torch.special.xlogy(left, left).sum(dim=1)
    first = weights[:, :, 0].sum(dim=1)
    before = max(start - 1, 0)
    previous = torch.diagonal(weights[:, 1 if start == 0 else 0 :, before:], dim1=1, dim2=2)
    return torch.stack([entropy, first, previous.sum(dim=1)], dim=1).double().cpu().numpy()
