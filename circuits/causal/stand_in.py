"""What stands in for the output of a removed head: nothing, a mean, another document's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...interp.errors import InputError, shown
from ...interp.heads import HeadId
from ...interp.probes import Prompts
from ...interp.sites import Site

ABLATIONS = ("zero", "mean", "resample")
"""Ways to remove a head, named as in `interventions`."""


def check_ablations(ablations: Any) -> tuple[str, ...]:
    """Ways to remove a head, each once.

    Raises:
        InputError: none, or one that is not known.
    """
    found = tuple(ablations) if isinstance(ablations, list | tuple) else (ablations,)
    known = ", ".join(ABLATIONS)
    for name in found:
        if name not in ABLATIONS:
            raise InputError(f"heads are removed by one of {known}; got {shown(name)}.")
    if not found or len(set(found)) < len(found):
        raise InputError(f"name ways to remove heads, each once, among {known}; got {len(found)}.")
    return found


@dataclass(frozen=True)
class Removal:
    """Some heads removed at once.

    Args:
        ablation: `zero`, `mean` or `resample`.
        heads: which heads; none at all leaves the model alone.
    """

    ablation: str
    heads: tuple[HeadId, ...]


@dataclass(eq=False)
class StandIns:
    """The values that take the place of z, from a whole run of the documents themselves.

    `zero` is 0; `mean` the mean over the other documents of the head's z at the same position of
    the document (with its own among them a position that few documents reach would be hardly
    changed); `resample` its z at the same position of another document.

    Args:
        prompts: the documents.
        seed: of the draw of other documents.
    """

    prompts: Prompts
    seed: int
    z: dict[Site, Tensor] = field(default_factory=dict)  # [document, head, pos, d_value]

    def __post_init__(self) -> None:
        position = self.prompts.position
        self._position = torch.from_numpy(np.maximum(position, 0))

    def donors(self) -> Int[np.ndarray, " document"]:
        """For each document the one whose values it gets, drawn among others no shorter.

        Raises:
            InputError: a single document, or a longest one without its equal in length.
        """
        length = self.prompts.mask.sum(1)
        rng = np.random.default_rng((self.seed, 31))
        drawn = []
        for document, own in enumerate(length):
            others = np.flatnonzero((length >= own) & (np.arange(len(length)) != document))
            if not len(others):
                raise _alone("resample", document, int(own))
            drawn.append(int(rng.choice(others)))
        return np.array(drawn)

    def at(
        self, ablation: str, site: Site, heads: list[int], documents: slice
    ) -> Float[Tensor, "document head pos d_value"]:
        """What replaces z of some heads in some documents."""
        z = self.z[site][:, heads]
        if ablation == "zero":
            return torch.zeros_like(z[documents])
        if ablation == "mean":
            return self._mean(z)[documents]
        return self._other(z, documents)

    def _mean(self, z: Tensor) -> Tensor:
        real = torch.from_numpy(self.prompts.mask).to(z.device)
        place = self._position.to(z.device)
        own = z.double().transpose(1, 2)  # [document, pos, head, d_value]
        flat, size = own[real], int(place.max()) + 1
        total = flat.new_zeros((size, *flat.shape[1:])).index_add_(0, place[real], flat)
        count = torch.bincount(place[real], minlength=size)
        if bool((count == 1).any()):
            length = self.prompts.mask.sum(1)
            raise _alone("mean", int(length.argmax()), int(length.max()))
        others = (total[place] - own) / (count[place] - 1)[..., None, None]
        return others.masked_fill(~real[..., None, None], 0.0).transpose(1, 2).to(z.dtype)

    def _other(self, z: Tensor, documents: slice) -> Tensor:
        donors, start = self.donors()[documents], self.prompts.start
        column = start[donors][:, None] + self._position[documents].numpy()
        index = torch.from_numpy(np.minimum(column, z.shape[2] - 1)).to(z.device)
        taken = z[torch.from_numpy(donors).to(z.device)]
        return taken.gather(
            2, index[:, None, :, None].expand(-1, *taken.shape[1:2], -1, z.shape[3])
        )


def _alone(ablation: str, document: int, length: int) -> InputError:
    return InputError(
        f"{ablation} takes a head's values from other documents that are no shorter; document "
        f"{document} of {length} tokens has none. Give at least two documents of the greatest "
        "length, or remove heads by zero ablation."
    )
