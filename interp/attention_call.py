"""One attention call: what arrived, what was computed, what observers may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.api import Mask, Match, ProbeOut, Scores, Weights, attention_probe
from .errors import InputError
from .hook_names import read_target
from .pattern import masked_scores, mix_values, softmax_rows
from .placement import Placement
from .sites import Site

_FIELDS = {"scores": "score_matrix", "pattern": "_pattern", "z": "_z"}


class AttentionCall:
    """The attention of one module in one forward pass.

    Attributes:
        site: which module, and where it stands in the model.
        q: queries [batch, head, query, d_head] as they arrive, after RoPE and QK-norm, then edited.
        k: keys [batch, kv_head, key, d_head], likewise, not repeated per query head; [batch, head,
            key, d_head] after an edit that told the query heads of a group apart.
        v: values [batch, kv_head, key, d_value], likewise.
        mask: which keys a query may see, as intervals.
        scores: scale, softcap, bias (which holds a mask that is not intervals) and sinks.
        absorbed: whether keys and values are the latents themselves, which all heads share: only in
            `HookedAttention.decode(absorb=True)`.

    Its tensors are the model's own, those of a KV cache among them: read them, never write them.
    Only what an `Edit` is given is a copy.
    """

    def __init__(
        self,
        site: Site | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        scores: Scores,
        where: Placement | Callable[[], Placement | None] | None = None,
        *,
        absorbed: bool = False,
    ) -> None:
        self._site, self.q, self.k, self.v, self.mask, self.scores = site, q, k, v, mask, scores
        self._where, self.absorbed = where, absorbed
        self._z: Tensor | None = None
        self._lse: Tensor | None = None
        self._pattern: Tensor | None = None
        self._score_matrix: Tensor | None = None
        self._edited = False

    @property
    def site(self) -> Site:
        """Which module, and where it stands in the model."""
        if self._site is None:
            raise InputError("this attention call belongs to no attached model.")
        return self._site

    @property
    def where(self) -> Placement:
        """The columns of the sequence that the first query and the first key stand on.

        Raises:
            InputError: a 4-D mask of the caller's own, which tells no columns, in cached decoding.
        """
        if callable(self._where):
            self._where = self._where()
        if self._where is None:
            raise InputError(
                f"the mask that {self.site.label} received does not tell which columns of the "
                "sequence it is at. Pass the model a 2-D padding mask, or run it without a cache."
            )
        return self._where

    @property
    def edited(self) -> bool:
        """Whether scores or pattern were edited, so that q and k no longer give the pattern."""
        return self._edited

    @property
    def z(self) -> Tensor:
        """Head outputs [batch, head, query, d_value], after edits, before W_O."""
        return self._known(self._z, "z")

    @property
    def lse(self) -> Tensor:
        """Log of the sum of exponentials of each row's scores [batch, head, query].

        After edits of q, k and the scores, before edits of the pattern.
        """
        return self._known(self._lse, "lse")

    @property
    def sink(self) -> Tensor | None:
        """The share of each row that goes to the learned sink [batch, head, query], None without.

        Beside the pattern it is one more column, with which rows sum to 1; after edits of q, k and
        the scores, before edits of the pattern.
        """
        if self.scores.sinks is None:
            return None
        return torch.exp(self.scores.sinks[:, None].to(self.lse.dtype) - self.lse)

    @property
    def score_matrix(self) -> Tensor:
        """Scores before softmax [batch, head, query, key], −inf where masked, after edits.

        In at least float32. Written out anew each time it is asked for, unless it was edited.
        """
        if self._score_matrix is None:
            return masked_scores(self.q, self.k, self.mask, self.scores)
        return self._score_matrix

    @score_matrix.setter
    def score_matrix(self, value: Tensor) -> None:
        self._score_matrix = value

    @property
    def pattern(self) -> Tensor:
        """Attention weights [batch, head, query, key], after edits; written out when asked for.

        In training mode it is the pattern before dropout.
        """
        if self._pattern is None:
            self._pattern = self.weights()
        return self._pattern

    def weights(self, heads: Sequence[int] | None = None) -> Tensor:
        """The pattern of some query heads [batch, chosen, query, key], after edits."""
        if self._pattern is not None:
            return self._pattern if heads is None else self._pattern[:, list(heads)]
        chosen = Weights(heads=None if heads is None else tuple(heads))
        return self._known(self.probe(weights=chosen).weights, "pattern")

    def probe(
        self,
        matches: Sequence[Match] = (),
        weights: Weights | None = None,
        entropy: bool = False,
        top: bool = False,
        received: bool = False,
    ) -> ProbeOut:
        """Statistics of the attention pattern in O(N) memory, from the known lse.

        Args:
            matches: label pairs whose mass to sum.
            weights: which attention weights to write out.
            entropy: whether to return each row's entropy, in nats.
            top: whether to return each row's largest weight and its key.
            received: whether to return the attention that each key receives from all rows.

        Raises:
            InputError: the scores or the pattern were edited, so q and k do not determine it.
        """
        if self._edited:
            raise InputError(
                f"the scores or the pattern of {self.site.label} were edited, so its statistics "
                "do not follow from q and k. Compute them from call.pattern."
            )
        return attention_probe(
            self.q.detach(),
            self.k.detach(),
            None,
            mask=self.mask,
            scores=self.scores,
            matches=tuple(matches),
            weights=weights,
            entropy=entropy,
            top=top,
            received=received,
            lse=self.lse.detach(),
        )

    def at(self, site: Site | None) -> AttentionCall:
        """Rename the call in place: an outer model knows the same module by another name."""
        self._site = site
        return self

    def compute(
        self, edits: Sequence[tuple[Edit, Site | None]] = (), *, dropout: float = 0.0
    ) -> None:
        """Make the edits and find z and lse.

        The pattern is written out only for edits of the scores or of itself, or for dropout.
        Dropout acts on the edited pattern, on its way to z: `pattern` keeps what rows weigh, and
        never exceeds 1 through dropout's rescaling.
        """
        if not edits and dropout == 0.0:
            out = attention_probe(self.q, self.k, self.v, mask=self.mask, scores=self.scores)
            self._z, self._lse = out.out, out.lse
            return
        targets = {edit.target for edit, _ in edits}
        for target in ("q", "k", "v"):
            if target in targets:
                self._change(target, edits)
        if dropout == 0.0 and targets.isdisjoint(("scores", "pattern")):
            k, v = self._same_heads()
            out = attention_probe(self.q, k, v, mask=self.mask, scores=self.scores)
            self._z, self._lse = out.out, out.lse
        else:
            self._write_out(edits, targets, dropout)
        if "z" in targets:
            self._change("z", edits)

    def _write_out(
        self, edits: Sequence[tuple[Edit, Site | None]], targets: set[str], dropout: float
    ) -> None:
        """z by way of the whole pattern."""
        scores = self.score_matrix
        if "scores" in targets:
            self.score_matrix = scores
            self._change("scores", edits)
            scores = self.score_matrix
        weights, self._lse = softmax_rows(scores, self.scores.sinks)
        self._pattern = weights.to(self.q.dtype)
        self._edited = not targets.isdisjoint(("scores", "pattern"))
        if "pattern" in targets:
            self._change("pattern", edits)
        self._z = mix_values(nn.functional.dropout(self.pattern, dropout), self.v)

    def _change(self, target: str, edits: Sequence[tuple[Edit, Site | None]]) -> None:
        """Apply the edits of one target, in order; each sees what the one before it made."""
        field = _FIELDS.get(target, target)
        value = getattr(self, field)
        # An edit may write in place. What arrived is the model's, keys and values its cache's; of
        # what was computed since, autograd keeps some for the backward pass.
        if target in ("q", "k", "v") or value.requires_grad:
            setattr(self, field, value.clone())
        for edit, site in edits:
            if edit.target == target:
                setattr(self, field, edit.apply(self.at(site), getattr(self, field)))

    def _same_heads(self) -> tuple[Tensor, Tensor]:
        """Keys and values with equally many heads: an edit may have told one of them apart."""
        n_heads = max(self.k.shape[1], self.v.shape[1])
        k, v = (
            t if t.shape[1] == n_heads else t.repeat_interleave(n_heads // t.shape[1], 1)
            for t in (self.k, self.v)
        )
        return k, v

    def _known(self, value: Any, name: str) -> Any:
        if value is None:
            raise InputError(
                f"{name} is not known yet: edits of q, k, v, scores and pattern run before it is."
            )
        return value


Observer = Callable[[AttentionCall], Any]


@dataclass(frozen=True)
class Edit:
    """A change to make during attention.

    | target | shape | |
    |---|---|---|
    | q | [batch, head, query, d_head] | after RoPE and QK-norm |
    | k | [batch, kv_head, key, d_head] | likewise; all keys so far under a KV cache |
    | v | [batch, kv_head, key, d_value] | likewise |
    | scores | [batch, head, query, key] | before softmax, −inf where masked; float32 or wider |
    | pattern | [batch, head, query, key] | attention weights |
    | z | [batch, head, query, d_value] | head outputs, before W_O |

    An edit of k or v may also return [batch, head, key, d], one per query head, where the query
    heads of a group shall differ; later edits then see that shape. The model's KV cache is never
    edited.

    Args:
        target: one of the names above.
        change: function of the call and the tensor that returns the new tensor, of the same shape
            and dtype. It may be differentiable; return the tensor itself to leave it alone. The
            tensor it gets is a copy, which it may also change in place and return.
        sites: where to apply it; None: everywhere. Elsewhere nothing is written out for it.

    Raises:
        InputError: another target.

    Example:
        >>> Edit("z", lambda call, z: z * 0).target
        'z'
    """

    target: str
    change: Callable[[AttentionCall, Tensor], Tensor]
    sites: frozenset[Site] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", read_target(self.target, "an edit"))

    def acts_at(self, site: Site | None) -> bool:
        """Whether it applies at `site`."""
        return self.sites is None or site in self.sites

    def apply(self, call: AttentionCall, value: Tensor) -> Tensor:
        """The changed tensor.

        Raises:
            InputError: `change` returned something of another kind, shape or dtype.
        """
        new = self.change(call, value)
        shapes = [value.shape]
        if self.target in ("k", "v") and value.shape[1] != call.q.shape[1]:
            shapes.append(torch.Size((len(value), call.q.shape[1], *value.shape[2:])))
        if not isinstance(new, Tensor) or new.shape not in shapes or new.dtype != value.dtype:
            got = f"{tuple(new.shape)} {new.dtype}" if isinstance(new, Tensor) else repr(new)
            raise InputError(
                f"an edit of {self.target} at {call.site.label} must return a tensor of shape "
                f"{' or '.join(str(tuple(shape)) for shape in shapes)} and {value.dtype}; it "
                f"returned {got}."
            )
        return new
