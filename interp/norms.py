"""Read a norm's formula from what it did to a tensor, and fold its gain into a weight after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

_FLOAT32 = torch.finfo(torch.float32).eps
_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps")


@dataclass(frozen=True)
class NormForm:
    """What a norm computes: y = (x − c) / size(x − c) · (offset + weight) + bias.

    Args:
        centred: whether c is the mean of x (LayerNorm); else c = 0 (RMSNorm). size is the root of
            the mean square, plus eps under the root.
        offset: 1 in Gemma's norms, which store the gain minus one.
    """

    centred: bool
    offset: float

    def gain(self, norm: nn.Module) -> Float[Tensor, " d"] | None:
        """offset + weight in float64; None where the norm has no weight."""
        weight = getattr(norm, "weight", None)
        return None if weight is None else weight.detach().double() + self.offset

    def shift(self, norm: nn.Module) -> Float[Tensor, " d"] | None:
        """The bias in float64, where there is one."""
        bias = getattr(norm, "bias", None)
        return None if bias is None else bias.detach().double()

    def fold(
        self,
        norm: nn.Module,
        weight: Float[Tensor, "head d_in d_head"],
        bias: Float[Tensor, "head d_head"] | None,
    ) -> tuple[Float[Tensor, "head d_in d_head"], Float[Tensor, "head d_head"] | None]:
        """The map from x / size(x − c) that equals norm and map: W' = C diag(gain) W, b' = b + βW.

        C = I − 11ᵀ/d takes the mean off where the norm does.
        """
        wide = weight.double()
        shift, gain = self.shift(norm), self.gain(norm)
        total = None if bias is None else bias.double()
        if shift is not None:
            moved = torch.einsum("d,hde->he", shift, wide)
            total = moved if total is None else total + moved
        if gain is not None:
            wide = wide * gain[:, None]
        if self.centred:
            wide = wide - wide.mean(1, keepdim=True)
        return wide.to(weight.dtype), None if total is None else total.to(weight.dtype)


def is_norm(module: nn.Module) -> bool:
    """Whether it is named a norm and has no parts of its own; its values decide what it is."""
    return "norm" in type(module).__name__.lower() and next(module.children(), None) is None


def read_norm(
    norm: nn.Module, x: Float[Tensor, "rows d"], y: Float[Tensor, "rows d"]
) -> NormForm | None:
    """The formula that takes `x` to `y` with the norm's own weights; None if none or several do.

    Equal means to 8 eps of the terms: a norm rounds its result, its gain and their product, and
    many do so in a narrower dtype than they compute in.
    """
    known = {True} if isinstance(norm, nn.LayerNorm) else {False, True}
    forms = [NormForm(centred, offset) for centred in sorted(known) for offset in (0.0, 1.0)]
    if getattr(norm, "weight", None) is None:
        forms = [form for form in forms if form.offset == 0.0]
    fitting = _fitting(forms, norm, x, y)
    if len(fitting) > 1:  # numbers whose mean is near zero do not tell; these do
        random = torch.Generator().manual_seed(0)
        far = (2 + torch.randn(64, x.shape[-1], generator=random)).to(x)
        with torch.no_grad():
            fitting = _fitting(fitting, norm, far, norm.forward(far))
    return fitting[0] if len(fitting) == 1 else None


def _fitting(forms: Sequence[NormForm], norm: nn.Module, x: Tensor, y: Tensor) -> list[NormForm]:
    return [form for form in forms if any(_fits(form, norm, x, y, e) for e in _epsilons(norm))]


def _epsilons(norm: nn.Module) -> list[float]:
    given = [getattr(norm, name, None) for name in _EPS_NAMES]
    return [eps for eps in given if isinstance(eps, float)] or [1e-6, 1e-5, _FLOAT32]


def _fits(form: NormForm, norm: nn.Module, x: Tensor, y: Tensor, eps: float) -> bool:
    gain, shift = form.gain(norm), form.shift(norm)
    if any(term is not None and term.shape != x.shape[-1:] for term in (gain, shift)):
        return False
    wide = x.double()
    wide = wide - wide.mean(-1, keepdim=True) if form.centred else wide
    scaled = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    scaled = scaled if gain is None else scaled * gain
    term = torch.zeros_like(scaled) if shift is None else shift.expand_as(scaled)
    # many norms compute in float32, also in a float64 model
    slack = (
        8
        * max(torch.finfo(y.dtype).eps, _FLOAT32)
        * (scaled.abs() + term.abs() + scaled.abs().amax())
    )
    return bool(((scaled + term - y.double()).abs() <= slack).all())
