"""What was cut out of a model, kept with the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import nn

from ....interp.errors import InputError
from ....interp.heads import HeadId
from .cut import Cut

_MARK = "headatlas_pruning"


@dataclass(frozen=True)
class Pruning:
    """What `remove_heads` cut out of a model.

    Attributes:
        cuts: per attention module, in call order.
        ordinary: whether the model is an ordinary one of its class, which `from_pretrained` reads;
            else its layers differ from its config, and `load_pruned` reads it.
        drift: how far the logits are from those of the masked model, relative to the largest; None
            for a model that was loaded.
    """

    cuts: tuple[Cut, ...]
    ordinary: bool
    drift: float | None = None

    @property
    def removed(self) -> tuple[HeadId, ...]:
        """The heads that are gone, by their addresses in the whole model."""
        return tuple(
            HeadId(cut.stack, cut.layer, head)
            for cut in self.cuts
            for head in range(cut.n_heads)
            if head not in cut.kept
        )

    @property
    def n_removed(self) -> int:
        """How many heads are gone."""
        return sum(cut.n_heads - len(cut.kept) for cut in self.cuts)

    @property
    def heads_before(self) -> Mapping[HeadId, HeadId]:
        """The address of each head of this model in the whole model.

        Heads are numbered anew in each layer, and layers without heads do not count.
        """
        layers: Counter[str] = Counter()
        found = {}
        for cut in self.cuts:
            if not cut.kept:
                continue
            layer = layers[cut.stack]
            layers[cut.stack] += 1
            for head, before in enumerate(cut.kept):
                found[HeadId(cut.stack, layer, head)] = HeadId(cut.stack, cut.layer, before)
        return found


def pruning_of(model: nn.Module) -> Pruning | None:
    """What was cut out of a model; None: nothing that is known.

    An ordinary model knows no more once it was saved and loaded.

    Example:
        >>> pruning_of(nn.Linear(2, 2)) is None
        True
    """
    found = model.__dict__.get(_MARK)
    return found if isinstance(found, Pruning) else None


def mark(model: nn.Module, pruning: Pruning) -> None:
    """Keep with a model what was cut out of it, and keep it from files that would not reload."""
    model.__dict__[_MARK] = pruning
    if not pruning.ordinary:
        model.__dict__["save_pretrained"] = _refuse_to_save


def _refuse_to_save(*_: Any, **__: Any) -> NoReturn:
    raise InputError(
        "this model's layers have fewer heads than its config can say, so from_pretrained would "
        "not read it again. Save it with save_pruned(model, folder), load it with load_pruned."
    )
