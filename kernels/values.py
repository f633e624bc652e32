"""The values that go into and come out of the attention probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .masks import own


@dataclass(frozen=True, eq=False)
class Scores:
    """How a raw dot product becomes a score.

        s[i, j] = cap(scale * q_i · k_j) + bias[i, j],   cap(x) = softcap * tanh(x / softcap),
        lse[i]  = log(sum_j exp(s[i, j]) + exp(sink)),    A[i, j] = exp(s[i, j] - lse[i]).

    Args:
        scale: Factor on the dot product, finite; default `d_key ** -0.5`.
        softcap: Bound on the scaled score, finite and positive, applied before the bias; None
            applies none.
        bias: Added to the score, broadcast over batch and head; minus infinity hides a key (the
            Triton kernels hide one from −1e30 down). A boolean mask that is no interval per row
            goes in here, as 0 and minus infinity.
        sinks: One logit per query head that joins the denominator and carries no value.

    Example:
        >>> Scores(scale=0.125, softcap=50.0).softcap
        50.0
    """

    scale: float | None = None
    softcap: float | None = None
    bias: Float[Tensor, "#batch #head #query key"] | None = None
    sinks: Float[Tensor, " head"] | None = None


@dataclass(frozen=True, eq=False)
class Match:
    """One detector: the attention mass that goes to keys whose label equals the query's.

        mass[i] = sum_j A[i, j] * [q_label[i] == k_label[j]]        (strict: and j != q_pos[i])

    A value that appears on the other side never matches: use -1 for "no label" among queries and
    -2 among keys. What the probe works out about a match is remembered until the match is
    dropped, so pass the same object to all layers of a model. The labels are copied when the
    match is built: changing the originals later, also through a shared numpy array, does nothing.
    Do not change a match's own labels in place through numpy; torch's in-place operators on them
    are noticed.

    Args:
        q_label: Label of each query, [batch, query].
        k_label: Label of each key, [batch, key].
        strict: Leave out the query's own key (`Mask.q_pos`).

    Example:
        The previous-token detector: query i looks for key i - 1.

        >>> here = torch.arange(4)[None]
        >>> Match(q_label=here - 1, k_label=here).q_label.tolist()
        [[-1, 0, 1, 2]]
    """

    q_label: Int[Tensor, "batch query"]
    k_label: Int[Tensor, "batch key"]
    strict: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "q_label", own(self.q_label))
        object.__setattr__(self, "k_label", own(self.k_label))


@dataclass(frozen=True, eq=False)
class Weights:
    """Which attention weights to write out, in full or pooled into a grid.

    With `pool = (n, m)`, cell (r, c) of the grid stands for rows r n to r n + n - 1 and keys c m
    to c m + m - 1, as far as they exist: the cells at the far edges hold fewer entries and divide
    by what they hold. Hidden entries and dead rows count as 0. The N × N weights behind the grid
    are never written.

        grid[r, c] = mean (or max) of A[i, j] over the entries of the cell

    Args:
        heads: Query heads by index, in the order wanted; None takes all.
        rows: Query rows per sequence, [batch, rows]; -1 marks an unused slot, written as zeros.
            None takes all rows. Not together with `pool`.
        dtype: Type of the weights; None takes that of q.
        pool: Query rows and keys per cell, each at least 1; None writes the weights themselves.
        reduce: What a cell holds of its entries, "mean" or "max".

    Example:
        >>> Weights(heads=(0, 3), rows=torch.tensor([[5, -1]])).heads
        (0, 3)
        >>> Weights(pool=(64, 64), reduce="max").pool
        (64, 64)
    """

    heads: tuple[int, ...] | None = None
    rows: Int[Tensor, "batch rows"] | None = None
    dtype: torch.dtype | None = None
    pool: tuple[int, int] | None = None
    reduce: Literal["mean", "max"] = "mean"


@dataclass(frozen=True, eq=False)
class ProbeOut:
    """Attention and the statistics that were asked for; the others are None.

    Statistics are float32 (float64 for float64 inputs) and carry no gradient. A dead row (no
    visible key) holds out 0, lse minus infinity (with sinks the sink's logit, and `sink_mass` 1),
    every other statistic 0 and `top_key` -1. NaN in a query, or in a key that it sees, makes out,
    lse and every statistic of the row NaN (`top_key` -1). A row whose lse is NaN makes `received`
    NaN at the keys that its mask lets it see, and a pooled cell NaN that holds one of those
    entries; other keys and cells stay as they are. v must be finite at hidden keys as well: their
    weight is exactly 0, but 0 times NaN or infinity is NaN in `out`.

    Args:
        out: A @ v, in v's type; None when lse was given.
        lse: log of the softmax denominator, sink included.
        mass: One label-match mass per match, in the order of the matches.
        entropy: -sum p log p in nats; the sink counts as an outcome.
        top_weight: The largest weight of each row.
        top_key: The key that holds it, the lowest among equals.
        sink_mass: exp(sink - lse), when sinks were given.
        weights: A on the chosen heads and rows [batch, chosen_head, chosen_row, key], or its grid
            [batch, chosen_head, ceil(n_query / rows), ceil(n_key / keys)].
        received: The sum over all rows of the weight on each key; dead rows add 0.

    Example:
        >>> ProbeOut(out=None, lse=torch.zeros(1, 2, 3))
        ProbeOut(lse=float32[1, 2, 3])
    """

    out: Float[Tensor, "batch head query d_value"] | None
    lse: Float[Tensor, "batch head query"]
    mass: Float[Tensor, "batch head query match"] | None = None
    entropy: Float[Tensor, "batch head query"] | None = None
    top_weight: Float[Tensor, "batch head query"] | None = None
    top_key: Int[Tensor, "batch head query"] | None = None
    sink_mass: Float[Tensor, "batch head query"] | None = None
    weights: Float[Tensor, "batch chosen_head weight_row weight_key"] | None = None
    received: Float[Tensor, "batch head key"] | None = None

    def __repr__(self) -> str:
        held = ((name, value) for name, value in vars(self).items() if value is not None)
        told = (f"{name}={str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for name, x in held)
        return f"ProbeOut({', '.join(told)})"


@dataclass(frozen=True, eq=False)
class Request:
    """A call of the probe as one value, to be checked and handed to a backend.

    Args:
        q: Queries [batch, head, query, d_key].
        k: Keys [batch, kv_head, key, d_key].
        v: Values [batch, kv_head, key, d_value]; None only when lse is given.
        scores: How dot products become scores.
        matches: The detectors.
        weights: Which weights to write; None writes none.
        entropy: Whether to compute the row entropy.
        top: Whether to compute the largest weight and its key.
        received: Whether to compute the attention that each key receives.
        lse: A known log-sum-exp [batch, head, query]; then `out` is not computed.

    Example:
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> Request(q=x, k=x[:, :1], v=None, scores=Scores()).group
        2
    """

    q: Tensor
    k: Tensor
    v: Tensor | None
    scores: Scores
    matches: tuple[Match, ...] = ()
    weights: Weights | None = None
    entropy: bool = False
    top: bool = False
    received: bool = False
    lse: Tensor | None = None

    @property
    def value(self) -> Float[Tensor, "batch kv_head key d_value"]:
        """v, where the call must have one."""
        if self.v is None:
            raise ValueError("this call has no v: only statistics can be computed.")
        return self.v

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def scale(self) -> float:
        """The factor on the dot products."""
        given = self.scores.scale
        return self.q.shape[-1] ** -0.5 if given is None else given

    @property
    def stat_dtype(self) -> torch.dtype:
        """The type of the statistics."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Sequences, queries and keys per sequence."""
        return self.q.shape[0], self.q.shape[2], self.k.shape[2]
