"""What queries, keys and values are made of: columns of the outputs of Linear modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from .norms import NormForm


@dataclass(frozen=True)
class Input:
    """What a Linear is applied to.

    Args:
        projection: the Linear or Conv1D.
        width: how many numbers per token.
        norm: the norm whose output it is; None: of no norm.
        form: that norm's formula, where it could be read.
    """

    projection: str
    width: int
    norm: str | None
    form: NormForm | None


@dataclass(frozen=True, eq=False)
class Part:
    """Columns that one Linear or Conv1D contributes.

    Args:
        input: which module, and what it is applied to.
        columns: columns of the module's output.
        places: where each goes, as an index into [head, d_head] laid flat.
        factor: what each is multiplied by on its way into attention.
    """

    input: Input
    columns: Int64[Tensor, " n"]
    places: Int64[Tensor, " n"]
    factor: Float64[Tensor, " n"]


@dataclass(frozen=True, eq=False)
class Source:
    """Where one of q, k, v of a site comes from.

    Attributes:
        n_heads, width: its heads, and numbers per head.
        parts: the Linear outputs it is made of; empty where `missing` says something.
        norms: norms that act on it after these, before attention (QK-norm).
        rotated: whether it differs from these outputs at positions after the first.
        tied: whether equal weights left a choice, which changed weights might not.
        missing: what could not be found; empty when all was.
    """

    n_heads: int
    width: int
    parts: tuple[Part, ...]
    norms: tuple[str, ...]
    rotated: bool
    tied: bool
    missing: str

    def gather(self, outputs: Mapping[str, Tensor], batch: int) -> Float[Tensor, "batch pos h d"]:
        """The tensor before norm and rotation, from the outputs of its modules by name.

        A constant factor is applied unless the tensor is rotated: then it belongs to the rotation.
        """
        flat: Tensor | None = None
        for part in self.parts:
            out = outputs[part.input.projection]
            out = out.reshape(batch, -1, out.shape[-1])
            if flat is None:
                flat = out.new_empty(*out.shape[:2], self.n_heads * self.width)
            values = out[..., part.columns.to(out.device)]
            if not self.rotated and bool((part.factor != 1).any()):
                values = (values * part.factor.to(out.device)).to(out.dtype)
            flat[..., part.places.to(out.device)] = values
        if flat is None:
            raise ValueError(f"a source without parts has no values: {self.missing}")
        return flat.unflatten(-1, (self.n_heads, self.width))


@dataclass(frozen=True, eq=False)
class SiteSources:
    """The sources of a site's q, k and v, its output projection, and what follows that.

    Attributes:
        output: the Linear or Conv1D that reads z, heads side by side; None where none does.
        post_norm: a norm that the projection's output goes through before anything is added.
    """

    q: Source
    k: Source
    v: Source
    output: str | None
    post_norm: str | None


def matrix(module: nn.Module) -> Float[Tensor, "d_in d_out"] | None:
    """W of y = x W + b; None where the module holds no such matrix (a quantised one)."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    return weight.detach().T if isinstance(module, nn.Linear) else weight.detach()
