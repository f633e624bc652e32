"""An attention call of a module that computes attention itself, from what its softmax received."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..kernels.api import Mask, Scores
from .attention_call import AttentionCall, Edit
from .pattern import softmax_rows
from .placement import Placement, note_decoder, placement
from .sites import Site

# Classes hide keys by adding the lowest number of the dtype, -65,500 or -10,000 to their scores.
_FAR = -5e3


class InlineCall(AttentionCall):
    """The attention of a module that shows its scores, pattern, values and z; see `inline`.

    Its q and k stand empty, of width 1 and all zeros, and `scores.bias` holds the scores, so that
    whatever follows from q, k and the bias elsewhere (statistics, lse, `score_matrix`) follows from
    the scores here. Edits and observers cannot tell the difference; what shows q and k themselves
    asks `site.check_queries` first.

    Args:
        site: which module.
        scores: what its softmax received.
        pattern: what its softmax returned.
        sink: the logit of each query that joined the softmax and has no key, None without. Scores
            are counted from it, so that it becomes 0: the pattern is the same.
    """

    def __init__(
        self,
        site: Site,
        scores: Float[Tensor, "batch head query key"],
        pattern: Float[Tensor, "batch head query key"],
        sink: Float[Tensor, "batch head query 1"] | None = None,
    ) -> None:
        batch, n_heads, n_query, n_key = scores.shape
        hidden = _hidden(scores.detach(), pattern.detach())
        mask = _as_mask(~hidden)
        # the columns that hold its queries, from what the last of them sees
        where = _placed(site, mask, batch, n_query, n_key, scores.device)
        counted = scores if sink is None else scores - sink
        bias = counted.masked_fill(hidden, float("-inf"))
        sinks = None if sink is None else sink.new_zeros(n_heads)
        empty = scores.new_zeros(batch, n_heads, 1, 1)
        super().__init__(
            site,
            empty.expand(-1, -1, n_query, -1),
            empty.expand(-1, -1, n_key, -1),
            empty.expand(-1, -1, n_key, -1),
            mask,
            Scores(scale=1.0, bias=bias, sinks=sinks),
            where,
        )
        self._v: Tensor | None = None  # known only after the pattern
        # a query without keys gets a uniform row from such classes; nothing of it counts anywhere
        dead = hidden.all(-1, keepdim=True)
        self._pattern = pattern.masked_fill(dead, 0.0) if bool(dead.any()) else pattern

    @property
    def v(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Values [batch, kv_head, key, d_value], after edits."""
        return self._known(self._v, "v")

    @v.setter
    def v(self, value: Tensor) -> None:
        self._v = value

    @property
    def lse(self) -> Tensor:
        """Log of the sum of exponentials of each row's scores [batch, head, query]."""
        if self._lse is None:
            self._lse = torch.logsumexp(self.score_matrix.detach(), -1)
            if self.scores.sinks is not None:
                self._lse = torch.logaddexp(self._lse, torch.zeros_like(self._lse))
        return self._lse

    def weigh(self, edits: Sequence[tuple[Edit, Site | None]]) -> bool:
        """Make the edits of the scores and of the pattern; whether there were any."""
        targets = {edit.target for edit, _ in edits} & {"scores", "pattern"}
        own = self.pattern.dtype
        if "scores" in targets:
            self.score_matrix = self.score_matrix
            self._change("scores", edits)
            weights, self._lse = softmax_rows(self.score_matrix, self.scores.sinks)
            self._pattern = weights.to(own)
        if "pattern" in targets:
            self._change("pattern", edits)
        self._edited = bool(targets)
        return self._edited

    def take_values(self, v: Tensor, edits: Sequence[tuple[Edit, Site | None]]) -> bool:
        """Note the values [batch, kv_head, key, d_value] and edit them; whether edits did."""
        self.v = v
        edited = any(edit.target == "v" for edit, _ in edits)
        if edited:
            self._change("v", edits)
        return edited

    def take_z(self, z: Tensor, edits: Sequence[tuple[Edit, Site | None]]) -> bool:
        """Note z [batch, head, query, d_value] and edit it; whether edits did."""
        self._z = z
        edited = any(edit.target == "z" for edit, _ in edits)
        if edited:
            self._change("z", edits)
        return edited


def _hidden(scores: Tensor, pattern: Tensor) -> Bool[Tensor, "batch head query key"]:
    """Which keys a query may not see, by the numbers that classes write for "forbidden"."""
    lowest = scores <= torch.finfo(scores.dtype).min / 2
    return lowest | ((pattern == 0) & (scores <= _FAR))


def _as_mask(visible: Bool[Tensor, "batch head query key"]) -> Mask:
    """From the first to the last key that any head of a row sees; the bias hides those between."""
    seen = visible.any(1)
    whole = seen.to(torch.uint8)
    lo, hi = whole.argmax(-1), whole.shape[-1] - whole.flip(-1).argmax(-1)
    rows = torch.stack([lo, torch.where(seen.any(-1), hi, lo)], -1)
    return Mask(causal=False, k_range=rows)


def _placed(
    site: Site, mask: Mask, batch: int, n_query: int, n_key: int, device: torch.device
) -> Placement | None:
    if site.stack == "cross":
        return placement(None, n_query, n_key, "cross")
    first = 0
    if n_query != n_key:  # a step of cached decoding: its last query stands on the last key it sees
        _, stop = mask.intervals(batch, n_query, n_key, device)
        first = max(0, int(stop[:, -1].max()) - n_query)
    if site.stack == "dec":
        note_decoder(first)
    return Placement(first, 0)
