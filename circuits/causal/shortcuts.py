"""Short cuts through a model, each tried against whole forward passes before it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from ...interp.attach import AttentionCall, Edit, attach
from ...interp.forward import run_base, run_whole
from ...interp.probes import Prompts
from ...interp.resume import Blocks, UnfitBlocksError, is_same, keep_states, resumed
from ...interp.sites import Site
from .decoder import output_head

_PROBE_TOKENS = 8
_RESUMES: WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], bool]] = WeakKeyDictionary()


def resumes(
    model: Any, sites: Sequence[Site], blocks: Blocks, ids: Int[Tensor, "document pos"]
) -> bool:
    """Whether runs that begin at a block give what whole runs give; found once per model.

    Args:
        model: the decoder.
        sites: its attention sites.
        blocks: its blocks.
        ids: documents to try it on, from `probe_ids`.
    """
    known, key = _RESUMES.get(model), tuple(map(id, blocks.modules))
    if known is None or known[0] != key:
        known = key, _try_blocks(model, sites[len(sites) // 2], blocks, ids)
        _RESUMES[model] = known
    return known[1]


def _try_blocks(model: Any, middle: Site, blocks: Blocks, ids: Tensor) -> bool:
    """Begin at every block, and in the middle one with a head removed."""
    try:
        with keep_states(blocks) as states, attach(model):
            whole = run_base(model, ids).last_hidden_state
    except UnfitBlocksError:
        return False
    if len(states.entering) != len(blocks.modules):
        return False

    def silence(_call: AttentionCall, z: Tensor) -> Tensor:
        z[:, 0] = 0
        return z

    edits = [Edit("z", silence, frozenset({middle}))]
    with attach(model, edits=edits):
        changed = run_base(model, ids).last_hidden_state
    try:
        for start in range(len(blocks.modules)):
            with resumed(blocks, start, states.entering[start], states), attach(model):
                if not is_same(run_base(model, ids).last_hidden_state, whole):
                    return False
        start = blocks.of[middle]
        with resumed(blocks, start, states.entering[start], states), attach(model, edits=edits):
            return is_same(run_base(model, ids).last_hidden_state, changed)
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
        return False  # blocks that need more from the ones before them


def head_is_plain(model: Any, ids: Int[Tensor, "document pos"]) -> bool:
    """Whether logits are the output embedding of the last states and nothing else."""
    own = output_head(model)(run_base(model, ids).last_hidden_state)
    return is_same(own, run_whole(model, ids).logits)


def probe_ids(prompts: Prompts, device: torch.device) -> Int[Tensor, "document pos"]:
    """The first tokens of two documents, of equal length and without padding."""
    order = np.argsort(-prompts.mask.sum(1), kind="stable")[:2]
    length = min(_PROBE_TOKENS, int(prompts.mask.sum(1)[order].min()))
    starts = prompts.start[order]
    rows = [prompts.ids[d, s : s + length] for d, s in zip(order, starts, strict=True)]
    return torch.from_numpy(np.stack(rows)).to(device)
