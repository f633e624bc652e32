"""Which keys a query may see, as one half-open interval of key indices per query row."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int, Int32
from torch import Tensor

_KEPT = 8  # remembered results per mask; a model sees one or two shapes at a time


def version(tensor: Tensor | None) -> int:
    """How often the tensor was written in place, so that a remembered result can be refused.

    Writing through a shared numpy array is not counted, and inference tensors carry no counter:
    the value objects hold copies (`own`).

    Args:
        tensor: Any tensor, or None.

    Returns:
        torch's version counter; 0 where there is none.

    Example:
        >>> labels = torch.zeros(3, dtype=torch.int64)
        >>> before = version(labels)
        >>> _ = labels.add_(1)
        >>> version(labels) - before
        1
    """
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def own(tensor: Tensor | None) -> Tensor | None:
    """A private copy: writing to the original, even through numpy, cannot reach it.

    Args:
        tensor: Any tensor, or None. What is no tensor passes through, to be refused by the call.

    Returns:
        A clone that counts its versions, also when built in inference mode.

    Example:
        >>> labels = torch.zeros(2)
        >>> mine = own(labels)
        >>> labels.numpy()[0] = 5
        >>> mine.tolist()
        [0.0, 0.0]
    """
    if not isinstance(tensor, Tensor):
        return tensor
    with torch.inference_mode(False):
        return tensor.detach().clone()


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys a query may see: the intersection of all conditions, an interval per row.

    Row i of sequence b sees key j when

        lo[b, i] <= j < hi[b, i],
        lo = max(0, k_range[..., 0], q_pos - window + 1),
        hi = min(n_key, k_range[..., 1], q_pos + 1),

    where the terms in `q_pos` apply under `causal` (hi) and with a `window` (lo). A row that sees
    nothing is *dead*: out 0, every statistic 0, lse minus infinity (with sinks the sink's logit,
    and `sink_mass` 1).

    A range per sequence hides keys, not queries. Under left padding the padded queries see nothing
    and are dead; under right padding they see the real keys before them, and count in whatever
    sums over rows (`received`, pooled weights). To leave them out, give a range per row that is
    empty on padding.

    Results derived from a mask are remembered on it, so pass one object to all layers of a model.
    The tensors are copied when the mask is built.

    Args:
        causal: Key index at most the query's position.
        window: Key index above `q_pos - window`; at least 1.
        k_range: Half-open range of key indices, per sequence [batch, 2] or per row
            [batch, query, 2]. Bounds outside the keys are clipped.
        q_pos: Key index that each query stands on, [batch, query]; default `n_key - n_query + i`.
            It may lie outside the keys: then the query has no own key.

    Example:
        >>> lo, hi = Mask(window=2).intervals(1, 4, 4, torch.device("cpu"))
        >>> lo.tolist(), hi.tolist()
        ([[0, 0, 1, 2]], [[1, 2, 3, 4]])
        >>> left_padded = Mask(k_range=torch.tensor([[2, 4]]))
        >>> lo, hi = left_padded.intervals(1, 4, 4, torch.device("cpu"))
        >>> (hi - lo).tolist()
        [[0, 0, 1, 2]]
        >>> real = torch.tensor([[True, True, False]])  # right padding, its queries left out
        >>> ends = torch.where(real, real.sum(-1, keepdim=True), 0)
        >>> padded = Mask(k_range=torch.stack([torch.zeros_like(ends), ends], -1))
        >>> padded.intervals(1, 3, 3, torch.device("cpu"))[1].tolist()
        [[1, 2, 0]]
    """

    causal: bool = True
    window: int | None = None
    k_range: Int[Tensor, "batch 2"] | Int[Tensor, "batch query 2"] | None = None
    q_pos: Int[Tensor, "batch query"] | None = None
    _memory: dict[tuple[Hashable, ...], Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "k_range", own(self.k_range))
        object.__setattr__(self, "q_pos", own(self.q_pos))

    def remember(self, key: tuple[Hashable, ...], build: Callable[[], Any]) -> Any:
        """The value of `build()`, computed once per key as long as the mask's tensors stay as is.

        Args:
            key: What the value depends on besides the mask: a name first, then sizes and device.
            build: Computes the value.

        Returns:
            The remembered or new value.

        Example:
            >>> mask = Mask()
            >>> mask.remember(("answer", 1), lambda: 42), mask.remember(("answer", 1), lambda: 0)
            (42, 42)
        """
        if torch.compiler.is_compiling():  # a traced tensor must not outlive its trace
            return build()
        full = (*key, version(self.k_range), version(self.q_pos))
        memory = self._memory
        if full in memory:
            return memory[full]
        value = build()
        while len([k for k in memory if k[0] == key[0]]) >= _KEPT:
            memory.pop(next(k for k in memory if k[0] == key[0]), None)
        memory[full] = value
        return value

    def drop(self, name: str, unwanted: Callable[[tuple[Hashable, ...]], bool]) -> None:
        """Forget the remembered values of one name whose key is unwanted.

        Args:
            name: First element of their keys.
            unwanted: Tells by the whole key.

        Example:
            >>> mask = Mask()
            >>> mask.remember(("answer", 1), lambda: 42)
            42
            >>> mask.drop("answer", lambda key: 1 in key)
            >>> mask.remember(("answer", 1), lambda: 0)
            0
        """
        for key in [k for k in list(self._memory) if k[0] == name and unwanted(k)]:
            self._memory.pop(key, None)

    def positions(
        self, batch: int, n_query: int, n_key: int, device: torch.device
    ) -> Int[Tensor, "batch query"]:
        """The key index that each query stands on.

        Args:
            batch: Number of sequences.
            n_query: Queries per sequence.
            n_key: Keys per sequence.
            device: Where the result lives.

        Returns:
            Int64 [batch, query].

        Example:
            >>> Mask().positions(1, 2, 5, torch.device("cpu")).tolist()
            [[3, 4]]
        """
        if self.q_pos is not None:
            return self.q_pos.to(device, torch.int64)
        return torch.arange(n_key - n_query, n_key, device=device).expand(batch, n_query)

    def intervals(
        self, batch: int, n_query: int, n_key: int, device: torch.device
    ) -> tuple[Int32[Tensor, "batch query"], Int32[Tensor, "batch query"]]:
        """Every condition folded into the half-open range of keys that each row sees.

        Args:
            batch: Number of sequences.
            n_query: Queries per sequence.
            n_key: Keys per sequence.
            device: Where the result lives.

        Returns:
            lo and hi, Int32 [batch, query]; a dead row has lo == hi == 0. Treat as read-only.

        Example:
            >>> lo, hi = Mask(causal=False).intervals(1, 2, 3, torch.device("cpu"))
            >>> lo.tolist(), hi.tolist()
            ([[0, 0]], [[3, 3]])
        """
        key = ("intervals", batch, n_query, n_key, device)
        return self.remember(key, lambda: self._fold(batch, n_query, n_key, device))

    def _fold(
        self, batch: int, n_query: int, n_key: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        q_pos = self.positions(batch, n_query, n_key, device)
        lo, hi = torch.zeros_like(q_pos), torch.full_like(q_pos, n_key)
        if self.k_range is not None:
            bounds = self.k_range.to(device, torch.int64)
            bounds = bounds[:, None] if bounds.ndim == 2 else bounds
            lo, hi = lo.maximum(bounds[..., 0]), hi.minimum(bounds[..., 1])
        if self.causal:
            hi = hi.minimum(q_pos + 1)
        if self.window is not None:
            lo = lo.maximum(q_pos - self.window + 1)
        live = hi > lo
        return (lo * live).int(), (hi * live).int()
