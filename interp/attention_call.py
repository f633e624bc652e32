"""One attention call: what arrived, what was computed, what observers may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..kernels.api import Mask, Match, ProbeOut, Scores, Weights, attention_probe
from .errors import InputError
from .pattern import masked_scores, mix_values, softmax_rows
from .sites import Site

TARGETS = ("z", "pattern")


class AttentionCall:
    """The attention of one module in one forward pass.

    Attributes:
        site: which module, and where it stands in the model.
        q: queries [batch, head, query, d_head] as they arrive: after RoPE and QK-norm.
        k: keys [batch, kv_head, key, d_head], likewise, not repeated per query head.
        v: values [batch, kv_head, key, d_value].
        mask: which keys a query may see, as intervals.
        scores: scale, softcap, bias (which holds a mask that is not intervals) and sinks.
    """

    def __init__(
        self, site: Site | None, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scores: Scores
    ) -> None:
        self._site, self.q, self.k, self.v, self.mask, self.scores = site, q, k, v, mask, scores
        self._z: Tensor | None = None
        self._lse: Tensor | None = None
        self._pattern: Tensor | None = None
        self._edited = False

    @property
    def site(self) -> Site:
        """Which module, and where it stands in the model."""
        if self._site is None:
            raise InputError("this attention call belongs to no attached model.")
        return self._site

    @property
    def z(self) -> Tensor:
        """Head outputs [batch, head, query, d_value], after edits, before W_O."""
        return self._known(self._z, "z")

    @property
    def lse(self) -> Tensor:
        """Log of the sum of exponentials of each row's scores [batch, head, query], unedited."""
        return self._known(self._lse, "lse")

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
    ) -> ProbeOut:
        """Statistics of the attention pattern in O(N) memory, from the known lse.

        Args:
            matches: label pairs whose mass to sum.
            weights: which attention weights to write out.
            entropy: whether to return each row's entropy, in nats.
            top: whether to return each row's largest weight and its key.

        Raises:
            InputError: the pattern was edited, so q and k no longer determine it.
        """
        if self._edited:
            raise InputError(
                f"the pattern of {self.site.module} was edited, so its statistics "
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
            lse=self.lse.detach(),
        )

    def at(self, site: Site | None) -> AttentionCall:
        """Rename the call in place: an outer model knows the same module by another name."""
        self._site = site
        return self

    def compute(
        self, edits: Sequence[tuple[Edit, Site | None]] = (), *, dropout: float = 0.0
    ) -> None:
        """Find z and lse; the pattern is written out only for `edits` of it or for dropout.

        Dropout acts on the edited pattern, on its way to z: `pattern` keeps what rows weigh, and
        never exceeds 1 through dropout's rescaling.
        """
        if not edits and dropout == 0.0:
            out = attention_probe(self.q, self.k, self.v, mask=self.mask, scores=self.scores)
            self._z, self._lse = out.out, out.lse
            return
        weights, lse = softmax_rows(
            masked_scores(self.q, self.k, self.mask, self.scores), self.scores.sinks
        )
        pattern = weights.to(self.q.dtype)
        self._edited, self._lse = bool(edits), lse
        for edit, site in edits:
            self._pattern = pattern
            pattern = edit.apply(self.at(site), pattern)
        self._pattern = pattern
        self._z = mix_values(nn.functional.dropout(pattern, dropout), self.v)

    def change_z(self, edits: Sequence[tuple[Edit, Site | None]]) -> None:
        """Apply edits of z, in order."""
        for edit, site in edits:
            self._z = edit.apply(self.at(site), self.z)

    def _known(self, value: Any, name: str) -> Any:
        if value is None:
            raise InputError(
                f"{name} is not known yet: an edit of the pattern runs before z is computed."
            )
        return value


Observer = Callable[[AttentionCall], Any]


@dataclass(frozen=True)
class Edit:
    """A change to make during attention.

    Args:
        target: `"pattern"` (attention weights [batch, head, query, key]) or `"z"` (head outputs
            [batch, head, query, d_value], before W_O).
        change: function of the call and the tensor that returns the new tensor, of the same shape
            and dtype. It may be differentiable; return the tensor itself to leave it alone.

    Raises:
        InputError: another target.

    Example:
        >>> Edit("z", lambda call, z: z * 0).target
        'z'
    """

    target: str
    change: Callable[[AttentionCall, Tensor], Tensor]

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise InputError(f"an edit's target is 'z' or 'pattern'; got {self.target!r}.")

    def apply(self, call: AttentionCall, value: Tensor) -> Tensor:
        """The changed tensor.

        Raises:
            InputError: `change` returned something of another kind, shape or dtype.
        """
        new = self.change(call, value)
        if not isinstance(new, Tensor) or new.shape != value.shape or new.dtype != value.dtype:
            got = f"{tuple(new.shape)} {new.dtype}" if isinstance(new, Tensor) else repr(new)
            raise InputError(
                f"an edit of {self.target} at {call.site.module} must return a tensor of shape "
                f"{tuple(value.shape)} and {value.dtype}; it returned {got}."
            )
        return new
