"""The QK and OV circuit of every head, as pairs of low-rank factors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ...interp.errors import InputError
from ...interp.heads import HeadId, KvHeadId
from ...interp.sites import unbridged
from .reading import Reading, read_model


@dataclass(frozen=True, eq=False)
class HeadCircuit:
    """One head's circuits; norms are folded in, so x is the stream divided by its size.

    Attributes:
        head: the query head.
        kv_head: the key-value head that serves it, which other query heads may share.
        qk: (W_Q R_Δ, W_Kᵀ), [d_model, d_head] and [d_head, d_model]: x_query W_QK x_keyᵀ is the
            score of a key Δ tokens before the query, without scale, biases and constant factors.
        ov: (W_V, W_O), [d_model, d_value] and [d_value, d_model]: x W_OV is what attending to x
            adds to the stream.
    """

    head: HeadId
    kv_head: KvHeadId
    qk: tuple[Float[Tensor, "d_model d_head"], Float[Tensor, "d_head d_model"]]
    ov: tuple[Float[Tensor, "d_model d_value"], Float[Tensor, "d_value d_model"]]


class HeadCircuits(Mapping[HeadId, HeadCircuit]):
    """The circuits of a model's heads: a read-only mapping from heads or addresses, in order.

    Attributes:
        delta: how many positions a query stands after its key.
        caveats: what the circuits leave out, in sentences.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._sites = {(site.stack, site.layer): site for site in reading.weights}
        self.delta, self.caveats = reading.delta, reading.caveats

    def __getitem__(self, key: HeadId | str) -> HeadCircuit:
        head = HeadId.parse(key)
        if head not in self:
            raise InputError(f"the model has no head {head}; its heads are {self._range()}.")
        site = self._sites[head.site, head.layer]
        one = self._reading.weights[site].head(head)
        query = self._reading.queries(site)[head.head].to(one.W_Q.dtype)
        kv_head = KvHeadId(head.site, head.layer, one.kv_head)
        return HeadCircuit(head, kv_head, (query, one.W_K.T), one.ov)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            key = HeadId.parse(key)
        return isinstance(key, HeadId) and key in self._reading.heads

    def __iter__(self) -> Iterator[HeadId]:
        return iter(self._reading.heads)

    def __len__(self) -> int:
        return len(self._reading.heads)

    def __repr__(self) -> str:
        return f"<circuits of {len(self)} heads, {self._range()}, delta {self.delta}>"

    def _range(self) -> str:
        return f"{self._reading.heads[0]} to {self._reading.heads[-1]}"


def head_circuits(model: Any, *, delta: int = 0, up_to_norms: bool = False) -> HeadCircuits:
    """W_QK = W_Q R_Δ W_Kᵀ and W_OV = W_V W_O of every head, as factors.

    Both act on row vectors of the residual stream: the gains of the norms that heads read through
    are folded in, and the mean is taken off where the norm is a LayerNorm. In a rotary model R_Δ is
    the model's own rotation (see `rotations`).

    Args:
        model: a transformers model of one stack.
        delta: Δ, how many positions the query stands after the key.
        up_to_norms: leave out norms that stand between (QK-norm, norms behind attention), which
            `caveats` then names.

    Raises:
        InputError: there is no linear map from the residual stream, and the message says where.

    Example:
        >>> import headatlas as ha
        >>> circuits = head_circuits(ha.load("tiny")[0])
        >>> circuit = circuits["L1H3"]
        >>> circuit.kv_head, [tuple(factor.shape) for factor in circuit.ov]
        (L1KV1, [(128, 16), (16, 128)])

    Reference: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.
    """
    model = unbridged(model)
    return HeadCircuits(read_model(model, ("QK", "OV"), delta=delta, up_to_norms=up_to_norms))
