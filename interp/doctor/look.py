"""What one attention call says about itself: its shape, its rows, its hidden keys, its z."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from ..attention_call import AttentionCall
from ..pattern import mix_values
from ..sites import Site
from ..survey_calls import is_causal


@dataclass(frozen=True)
class Look:
    """What was measured of one attention call.

    Attributes:
        site: whose call it was.
        shape: its query heads, key-value heads, width of a key, width of a value.
        causal: whether no query saw a later key.
        rows: how far the sum of a token's row, and the sink's mass, is from 1.
        hidden: the largest weight on a key that the row may not see.
        least: the smallest weight.
        z: how far z is from pattern @ v, relative to the head's largest value; the worst head.
        head: the worst head.
    """

    site: Site
    shape: tuple[int, int, int, int]
    causal: bool
    rows: float
    hidden: float
    least: float
    z: float
    head: int

    @property
    def as_surveyed(self) -> bool:
        """Whether its shape is that of its site, and no later key is seen where the site is causal.

        A module that computes attention itself shows no keys, so their width is not looked at.
        """
        site = self.site
        wanted = (site.n_heads, site.n_kv_heads, site.d_head, site.d_value)
        at = slice(0, 2) if site.inline else slice(None)
        same = self.shape[at] == wanted[at] and self.shape[3] == site.d_value
        return same and self.causal == site.causal


def look(
    call: AttentionCall,
    tokens: tuple[Bool[Tensor, "batch query"], Bool[Tensor, "batch key"]] | None = None,
) -> Look:
    """Measure one call in at least float32.

    A key is hidden where the call's own mask says so, where it comes later at a causal site, and
    where it is padding.

    Args:
        call: the call, of a run without a cache.
        tokens: where the queries, and the keys, belong to a token; None: all do.
    """
    site, wide = call.site, torch.promote_types(call.pattern.dtype, torch.float32)
    pattern, v = call.pattern.to(wide), call.v.to(wide)
    n_query, n_key = pattern.shape[2:]
    hidden = call.score_matrix == float("-inf")
    if site.causal and n_query == n_key:
        hidden = hidden | torch.ones_like(hidden).triu(1)
    live = torch.ones_like(pattern[:, 0, :, 0], dtype=torch.bool)
    if tokens is not None:
        live, present = tokens
        hidden = hidden | ~present[:, None, None, :]
    total = pattern.sum(-1)
    if call.scores.sinks is not None:
        total = total + torch.exp(call.scores.sinks.to(wide)[:, None] - call.lse.to(wide))
    rows = live[:, None, :].expand_as(total)
    gap = (call.z.to(wide) - mix_values(pattern, v)).abs()
    gap = torch.where(rows[..., None], gap, 0.0).amax((0, 2, 3))
    size = v.abs().amax((0, 2, 3)).repeat_interleave(pattern.shape[1] // v.shape[1])
    keys = v if site.inline else call.k
    off = gap / size.clamp(min=torch.finfo(wide).tiny)
    return Look(
        site,
        (call.q.shape[1], keys.shape[1], call.q.shape[3], v.shape[3]),
        is_causal(call),
        rows=(total - 1).abs()[rows].max().item(),
        hidden=torch.where(hidden, pattern.abs(), 0.0)[rows].max().item(),
        least=pattern[rows].min().item(),
        z=off.max().item(),
        head=int(off.argmax()),
    )


def worst(values: Sequence[float]) -> float:
    """The largest of some figures, NaN where one of them is.

    Example:
        >>> worst([1.0, float("nan"), 2.0])
        nan
    """
    return torch.tensor(values, dtype=torch.float64).max().item()
