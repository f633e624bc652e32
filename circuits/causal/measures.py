"""Behaviours on a set of documents: which rows, which heads, which way is harm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.probes import Prompts
from ..behaviour import AnyBehaviour, Behaviour
from ..kinds import KINDS
from ..label_vectors import Labels

Labelled = Mapping[str, Iterable[str | HeadId]]
"""The heads that are labelled with each kind, by the kind's name."""


@dataclass(frozen=True, eq=False)
class RowMeasure:
    """The mean over chosen positions of a quantity of the next-token prediction.

    Args:
        name: what tables call it.
        rows: positions t whose prediction of token t + 1 is measured, [document, pos].
        quantity: `loss` in nats; `logit`, less the mean logit over the vocabulary; or `kl`,
            KL(reference ‖ model) in nats, where the reference is that of the `Trials`.
    """

    name: str
    rows: Bool[np.ndarray, "document pos"]
    quantity: str = "loss"

    @property
    def n(self) -> Int[np.ndarray, " document"]:
        """Measured positions per document."""
        return self.rows.sum(1)

    @property
    def harm(self) -> int:
        """+1 where harm makes it rise, −1 where it makes it fall."""
        return -1 if self.quantity == "logit" else 1


@dataclass(frozen=True, eq=False)
class MassMeasure:
    """The mean label mass over scored rows and chosen heads.

    Args:
        name: what tables call it.
        heads: the heads.
        labels: pairs of label vectors.
    """

    name: str
    heads: tuple[HeadId, ...]
    labels: tuple[Labels, ...]

    @property
    def n(self) -> Int[np.ndarray, " document"]:
        """Scored rows per document."""
        return (self.labels[0].q >= 0).sum(1)

    @property
    def harm(self) -> int:
        """−1: harm makes it fall."""
        return -1


Measure = RowMeasure | MassMeasure


def measure_of(behaviour: AnyBehaviour, prompts: Prompts, labelled: Labelled) -> Measure:
    """A behaviour on a set of documents.

    Args:
        behaviour: what is to be measured.
        prompts: the documents.
        labelled: for a `Downstream`, the heads of its kind.

    Raises:
        InputError: it measures no row there, its kind is not registered, or no head has its label.
    """
    if isinstance(behaviour, Behaviour):
        return RowMeasure(behaviour.name, behaviour.marked(prompts))
    kind = KINDS.get(behaviour.kind)
    if kind is None:
        raise InputError(
            f"behaviour {behaviour.name}: kind {behaviour.kind!r} is not registered; known: "
            f"{', '.join(KINDS)}."
        )
    if kind.candidates:
        raise InputError(
            f"behaviour {behaviour.name}: the variants of {kind.name} compete, so heads of that "
            "kind have no common label mass."
        )
    heads = tuple(sorted(HeadId.parse(head) for head in labelled.get(kind.name, ())))
    if not heads:
        raise InputError(
            f"behaviour {behaviour.name} is measured in heads labelled {kind.name}, and no head "
            f"is. Label them (score the kind {kind.name}), or name them."
        )
    labels = kind.variants(prompts)[""]
    if not (labels[0].q >= 0).any():
        raise InputError(
            f"behaviour {behaviour.name}: {kind.name} scores no row of the {prompts.name} prompts. "
            "Lengthen the documents."
        )
    return MassMeasure(behaviour.name, heads, labels)
