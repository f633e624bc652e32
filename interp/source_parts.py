"""What queries, keys and values are made of: columns of the outputs of Linear modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.nn import functional

from .norms import NormForm

_MOST_ROWS = 128


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
        output: the Linear or Conv1D that maps z, heads side by side, to what leaves the attention.
        post_norm: a norm that the projection's output goes through before anything is added.
        no_output: why there is no such module; empty where there is.
    """

    q: Source
    k: Source
    v: Source
    output: str | None
    post_norm: str | None
    no_output: str = ""

    @property
    def tied(self) -> bool:
        """Whether equal weights left a choice for any of q, k, v."""
        return any(source.tied for source in (self.q, self.k, self.v))


def matrix(module: nn.Module) -> Float[Tensor, "d_in d_out"] | None:
    """W of y = x W + b; None where the module holds no such matrix (a quantised one)."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    return weight.detach().T if isinstance(module, nn.Linear) else weight.detach()


def some_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same rows of matrices, 128 or fewer, evenly spread: as many as tell what a map is."""
    step = -(-len(tensors[0]) // _MOST_ROWS)
    return tuple(tensor[:: max(1, step)] for tensor in tensors)


def not_linear(
    name: str, module: nn.Module, x: Tensor, y: Tensor, columns: Tensor | None = None
) -> str:
    """What is wrong where `columns` of y [rows, d_out] are not x W + b; empty where they are."""
    weight, bias = matrix(module), getattr(module, "bias", None)
    if weight is None or (x.shape[-1], y.shape[-1]) != weight.shape:
        return f"{name} holds no plain weight matrix"
    if _gives_it_again(x, y, weight, bias):
        return ""
    chosen, wanted = weight.double(), y.double()
    shift = wanted.new_zeros(1) if bias is None else bias.detach().double()
    if columns is not None:
        columns = columns.to(weight.device)
        chosen, wanted = chosen[:, columns], wanted[:, columns]
        shift = shift if bias is None else shift[columns]
    x = x.double()
    size = x.abs() @ chosen.abs() + shift.abs()
    gap = (x @ chosen + shift - wanted).abs()
    if bool((gap <= _summing(y.dtype, x.shape[1]) * size).all()):
        return ""
    return f"{name} does not give x W + b of its own weight (an adapter or a hook changes it)"


def _gives_it_again(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the plain product has the very bits of y: mostly, and cheaper than in float64."""
    used = (weight, x, y) if bias is None else (weight, x, y, bias)
    if len({tensor.dtype for tensor in used}) > 1:
        return False
    return torch.equal(functional.linear(x, weight.T, bias), y)


def _summing(dtype: torch.dtype, terms: int) -> float:
    """How far a sum of products may be off, relative to the sum of their sizes: n eps and rounding.

    Narrow dtypes are summed in float32.
    """
    eps = torch.finfo(dtype).eps
    return 4 * eps + terms * min(eps, torch.finfo(torch.float32).eps)
