"""The linear maps of a head: W_Q, W_K, W_V, W_O, what they read, whether they are exact."""
# ruff: noqa: N802, N815  (W_Q and b_Q are the field's own names)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from jaxtyping import Float
from torch import Tensor

from .brief import Brief
from .errors import InputError, shown
from .heads import HeadId, KvHeadId, parse_head
from .plain_numbers import as_index
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

    @property
    def described(self) -> str:
        """What it is, and whether a norm is folded into the matrix."""
        if self.norm is None:
            return str(self)
        return f"{self} (norm {'' if self.folded else 'not '}folded in)"


@dataclass(frozen=True, eq=False, repr=False)
class HeadMap(Brief):
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


@dataclass(frozen=True, eq=False, repr=False)
class OneHead(Brief):
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
        """In sentences: what each map reads, which are not exactly linear and why, what follows."""
        maps = {"W_Q": self.q, "W_K": self.k, "W_V": self.v}
        readers: dict[str, list[str]] = {}
        for name, part in maps.items():
            if part.reads:
                reads = " and, below it, ".join(reading.described for reading in part.reads)
                readers.setdefault(reads, []).append(name)
        said = [f"{_listed(names)} {_reads(names)} {reads}." for reads, names in readers.items()]
        if self.o.reads:
            said.append(f"W_O reads z, {self.o.reads[0]}.")
        for name, part in (*maps.items(), ("W_O", self.o)):
            said += [f"{name}: {text}." for text in (part.inexact, part.remarks) if text]
        return " ".join([*said, *(["All maps are exact."] if self.exact else [])])

    def head(self, head: SupportsIndex | str | HeadId) -> OneHead:
        """The matrices of one query head, with its key-value head resolved.

        Args:
            head: its number, or its address, such as `"L10H3"`, which must be of this layer.

        Raises:
            InputError: the site has no such head, or a map was not found.
        """
        index = self._index(head)
        site = self.site
        kv = index * site.n_kv_heads // site.n_heads
        b_Q, b_K, b_V = (
            None if bias is None else bias[i]
            for bias, i in ((self.b_Q, index), (self.b_K, kv), (self.b_V, kv))
        )
        W_Q, W_K, W_V, W_O = self.W_Q[index], self.W_K[kv], self.W_V[kv], self.W_O[index]
        return OneHead(index, kv, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V)

    def _index(self, head: Any) -> int:
        """The number of a head that is named by number or by address."""
        site, index = self.site, head
        if isinstance(head, str | HeadId | KvHeadId):
            named = parse_head(head)
            if (named.site, named.layer) != (site.stack, site.layer):
                raise InputError(
                    f"{site.module} is {site.prefix}L{site.layer}, which has no head {named}. Take "
                    "the weights of that layer."
                )
            if isinstance(named, KvHeadId):
                raise InputError(
                    f"{named} is a key-value head, which several query heads may share: name one "
                    f"of them, such as {site.heads[-1]}; its own matrices are W_K[{named.kv_head}] "
                    f"and W_V[{named.kv_head}]."
                )
            index = named.head
        number = as_index(index)
        if number is None:
            raise InputError(
                f"a head of {site.module} is a number, 0 to {site.n_heads - 1}, or an address such "
                f"as {site.heads[-1]}; got {shown(head)}."
            )
        if not 0 <= number < site.n_heads:
            raise InputError(f"{site.module} has heads 0 to {site.n_heads - 1}; got {shown(head)}.")
        return number

    def _weight(self, which: str) -> Tensor:
        part: HeadMap = getattr(self, which)
        if part.weight is None:
            raise InputError(f"{self.site.module} has no W_{which.upper()}: {part.inexact}.")
        return part.weight


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _reads(names: Sequence[str]) -> str:
    return "reads" if len(names) == 1 else "read"
