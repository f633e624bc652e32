"""The linear maps of a head: W_Q, W_K, W_V, W_O, what they read, whether they are exact."""
# ruff: noqa: N802, N815  (W_Q and b_Q are the field's own names)

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .errors import InputError
from .sites import Site


@dataclass(frozen=True)
class Reading:
    """What a matrix is applied to.

    Args:
        projection: the module whose input it is, always.
        width: how many of the matrix's input rows are its.
        norm: the norm whose output it is; None where it is no norm's output.
        folded: whether the norm's gain, bias and centring are in the matrix, which then applies to
            the norm's input divided by its size (its root mean square, or standard deviation where
            the norm is centred).
    """

    projection: str
    width: int
    norm: str | None = None
    folded: bool = False

    def __str__(self) -> str:
        if self.norm is None:
            return f"the input of {self.projection}"
        if self.folded:
            return f"the input of {self.norm}, divided by its size"
        return f"the output of {self.norm}"


@dataclass(frozen=True, eq=False)
class HeadMap:
    """One of the maps x W + b of every head of a site.

    Attributes:
        weight: [head, d_in, d_out]; None where no linear map was found.
        bias: [head, d_out], of W_O [d_model]; None where there is none.
        reads: what x is made of, side by side: their widths sum to d_in.
        inexact: why x W + b is not all that happens; empty where it is.
        remarks: what else must be known, such as a rotation that follows.
    """

    weight: Float[Tensor, "head d_in d_out"] | None
    bias: Float[Tensor, "*head d_out"] | None
    reads: tuple[Reading, ...]
    inexact: str = ""
    remarks: str = ""

    @property
    def exact(self) -> bool:
        """Whether the head's query, key, value (before RoPE) or output is exactly x W + b."""
        return not self.inexact


@dataclass(frozen=True, eq=False)
class OneHead:
    """The matrices of one query head and of the key-value head that serves it.

    W_QK = W_Q W_Kᵀ and W_OV = W_V W_O have rank at most d_head: `qk` and `ov` keep the factors.
    """

    head: int
    kv_head: int
    W_Q: Float[Tensor, "d_in_q d_head"]
    W_K: Float[Tensor, "d_in_k d_head"]
    W_V: Float[Tensor, "d_in_v d_value"]
    W_O: Float[Tensor, "d_value d_model"]
    b_Q: Float[Tensor, " d_head"] | None
    b_K: Float[Tensor, " d_head"] | None
    b_V: Float[Tensor, " d_value"] | None

    @property
    def qk(self) -> tuple[Tensor, Tensor]:
        """(W_Q, W_Kᵀ), whose product is W_QK [d_in_q, d_in_k]."""
        return self.W_Q, self.W_K.T

    @property
    def ov(self) -> tuple[Tensor, Tensor]:
        """(W_V, W_O), whose product is W_OV [d_in_v, d_model]."""
        return self.W_V, self.W_O


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """The weights of a site's heads; `W_Q`, `b_Q` and so on are those of `q`, `k`, `v` and `o`.

    Attributes:
        site: which attention module.
        q: W_Q [head, d_in, d_head], b_Q [head, d_head].
        k: W_K [kv_head, d_in, d_head], b_K [kv_head, d_head].
        v: W_V [kv_head, d_in, d_value], b_V [kv_head, d_value].
        o: W_O [head, d_value, d_model], b_O [d_model].
    """

    site: Site
    q: HeadMap
    k: HeadMap
    v: HeadMap
    o: HeadMap

    def __repr__(self) -> str:
        return f"HeadWeights({self.site.module}: {self.statement})"

    @property
    def W_Q(self) -> Float[Tensor, "head d_in d_head"]:
        """Residual stream to queries, before RoPE."""
        return self._weight("q")

    @property
    def W_K(self) -> Float[Tensor, "kv_head d_in d_head"]:
        """Residual stream to keys, before RoPE."""
        return self._weight("k")

    @property
    def W_V(self) -> Float[Tensor, "kv_head d_in d_value"]:
        """Residual stream to values."""
        return self._weight("v")

    @property
    def W_O(self) -> Float[Tensor, "head d_value d_model"]:
        """Head outputs z to the output of the attention module."""
        return self._weight("o")

    @property
    def b_Q(self) -> Float[Tensor, "head d_head"] | None:
        """Bias of the queries."""
        return self.q.bias

    @property
    def b_K(self) -> Float[Tensor, "kv_head d_head"] | None:
        """Bias of the keys."""
        return self.k.bias

    @property
    def b_V(self) -> Float[Tensor, "kv_head d_value"] | None:
        """Bias of the values."""
        return self.v.bias

    @property
    def b_O(self) -> Float[Tensor, " d_model"] | None:
        """Bias of the output, shared by the heads."""
        return self.o.bias

    @property
    def exact(self) -> bool:
        """Whether all four maps are exactly linear."""
        return all(part.exact for part in (self.q, self.k, self.v, self.o))

    @property
    def statement(self) -> str:
        """In a sentence each: which maps are not exactly linear and why, and what follows them."""
        said = []
        for name, part in (("W_Q", self.q), ("W_K", self.k), ("W_V", self.v), ("W_O", self.o)):
            said += [f"{name}: {text}." for text in (part.inexact, part.remarks) if text]
        return " ".join(said) or "All maps are exact."

    def head(self, head: int) -> OneHead:
        """The matrices of query head `head`, with its key-value head resolved.

        Raises:
            InputError: the site has no such head, or a map was not found.
        """
        site = self.site
        if not 0 <= head < site.n_heads:
            raise InputError(f"{site.module} has heads 0 to {site.n_heads - 1}; got {head}.")
        kv = head * site.n_kv_heads // site.n_heads
        b_Q, b_K, b_V = (
            None if bias is None else bias[i]
            for bias, i in ((self.b_Q, head), (self.b_K, kv), (self.b_V, kv))
        )
        W_Q, W_K, W_V, W_O = self.W_Q[head], self.W_K[kv], self.W_V[kv], self.W_O[head]
        return OneHead(head, kv, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V)

    def _weight(self, which: str) -> Tensor:
        part: HeadMap = getattr(self, which)
        if part.weight is None:
            raise InputError(f"{self.site.module} has no W_{which.upper()}: {part.inexact}.")
        return part.weight
