"""The maps of every head between points of the residual stream, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...interp.errors import InputError
from ...interp.forward import embedding_weight, run_base
from ...interp.head_maps import HeadMap, HeadWeights
from ...interp.heads import HeadId
from ...interp.sites import Site
from ...interp.watch import watch_calls
from ...interp.weights import head_weights
from .rotary import Rotation, rotations

MAPS = {"Q": ("q", "k"), "K": ("q", "k"), "V": ("v", "o"), "OV": ("v", "o"), "QK": ("q", "k")}


@dataclass(frozen=True, eq=False)
class Reading:
    """A model's head weights, each from and to the residual stream, norms folded in.

    Attributes:
        weights: site -> weights.
        rotation: site -> RoPE of its queries, or None.
        delta: how many positions a query stands after its key.
        caveats: what the maps leave out, in sentences; only after `up_to_norms`.
        d_model: width of the residual stream.
        centred: whether all norms that heads read through take the mean off (LayerNorm).
    """

    weights: Mapping[Site, HeadWeights]
    rotation: Mapping[Site, Rotation | None]
    delta: int
    caveats: tuple[str, ...]
    d_model: int
    centred: bool

    @cached_property
    def heads(self) -> tuple[HeadId, ...]:
        """All query heads, by layer and head."""
        return tuple(head for site in self.weights for head in site.heads)

    def queries(self, site: Site) -> Tensor:
        """W_Q R_Δ [head, d_model, d_head] in float64."""
        turned = self.weights[site].W_Q.double()
        rotation = self.rotation.get(site)
        return turned if rotation is None or not self.delta else rotation.turn(turned, self.delta)

    def output(self, site: Site) -> Tensor:
        """W_O [head, d_value, d_model] in float64, without the mean that no LayerNorm lets by."""
        out = self.weights[site].W_O.double()
        return out - out.mean(2, keepdim=True) if self.centred else out


def read_model(
    model: Any, maps: Sequence[str], *, delta: int = 0, up_to_norms: bool = False
) -> Reading:
    """The weights of a model's heads, checked for what `maps` needs of them.

    Args:
        model: a transformers model.
        maps: names of `MAPS`: what will be asked.
        delta: how many positions a query stands after its key.
        up_to_norms: go on where a norm stands between (QK-norm, a norm behind attention), leaving
            it out.

    Raises:
        InputError: several stacks, no linear map from the residual stream, or a delta where
            nothing turns.
    """
    weights = head_weights(model, fold_norm=True)
    _one_stack(tuple(weights))
    needed = sorted({part for name in maps for part in MAPS[name]} | {"v", "o"})
    d_model = _width(weights)
    _check_reads(weights, needed, d_model)
    caveats = _caveats(model, weights, needed)
    if caveats and not up_to_norms:
        qk_only = "q" in needed and not _caveats(model, weights, ["v", "o"])
        raise InputError(
            f"there is no exact linear map between heads: {caveats[0]}"
            + (f" (and {len(caveats) - 1} more of its kind)" if len(caveats) > 1 else "")
            + ". Pass up_to_norms=True to leave such norms out"
            + (", or kinds=('V',), which none of them concerns." if qk_only else ".")
        )
    rotation = rotations(model) if delta else {}
    if delta and not any(rotation.values()):
        raise InputError(
            f"delta={delta}, but no queries of {type(model).__name__} are rotated: its heads match "
            "tokens alike at every distance. Leave delta at 0."
        )
    return Reading(weights, rotation, delta, caveats, d_model, _all_centred(weights))


def _one_stack(sites: Sequence[Site]) -> None:
    stacks = list(dict.fromkeys(site.stack for site in sites))
    if stacks != [""]:
        raise InputError(
            f"this model has several stacks ({', '.join(stacks)}), which read different streams; "
            "pass one of them, such as model.get_encoder()."
        )


def _width(weights: Mapping[Site, HeadWeights]) -> int:
    missing = [
        f"{site.module}: {one.o.inexact}" for site, one in weights.items() if not one.o.reads
    ]
    if missing:
        raise InputError(f"heads have no W_O ({missing[0]}), so none of these maps exist.")
    return int(next(iter(weights.values())).W_O.shape[2])


def _check_reads(weights: Mapping[Site, HeadWeights], needed: Sequence[str], d_model: int) -> None:
    for site, one in weights.items():
        norms = {part.reads[0].norm for part in (one.q, one.k, one.v) if part.reads}
        for name in needed:
            part: HeadMap = getattr(one, name)
            if part.weight is None:
                raise InputError(f"{site.module} has no W_{name.upper()}: {part.inexact}.")
            if name == "o":
                continue
            whole = len(part.reads) == 1 and part.reads[0].width == d_model and len(norms) == 1
            if not whole:
                reads = " and ".join(map(str, part.reads))
                raise InputError(
                    f"W_{name.upper()} of {site.module} reads {reads}, not the residual stream "
                    f"of {d_model} numbers (latent attention does so). What lies between is not "
                    "linear, so these circuits do not exist."
                )


def _caveats(
    model: Any, weights: Mapping[Site, HeadWeights], needed: Sequence[str]
) -> tuple[str, ...]:
    found: dict[str, list[str]] = {}
    for site, one in weights.items():
        for name in needed:
            part: HeadMap = getattr(one, name)
            if part.inexact:
                found.setdefault(f"W_{name.upper()} of {site.module} is {part.inexact}", [])
            elif part.reads and part.reads[0].norm and not part.reads[0].folded and name != "o":
                norm = part.reads[0].norm
                found.setdefault(f"the formula of {norm} could not be read, nor folded in", [])
    return (*found, *_skips_a_norm(model, weights))


def _skips_a_norm(model: Any, weights: Mapping[Site, HeadWeights]) -> tuple[str, ...]:
    """Norms that the residual stream itself goes through (BERT): those that read x + attention."""
    modules = dict(model.named_modules())
    outputs = {modules[one.o.reads[0].projection]: site for site, one in weights.items()}
    reads = {site: one.v.reads[0] for site, one in weights.items() if one.v.reads}
    through = {modules[read.norm]: site for site, read in reads.items() if read.norm}
    norms = [m for m in modules.values() if "norm" in type(m).__name__.lower()]
    normed: dict[Site, Tensor] = {}
    sums: dict[Site, Tensor] = {}
    found: list[str] = []
    names = {id(module): name for name, module in modules.items()}

    def see(module: Any, x: Tensor, y: Tensor) -> None:
        for site, total in sums.items():
            if module in norms and x.shape == total.shape and _same(x, total):
                found.append(
                    f"the residual stream goes through the norm {names[id(module)]} after "
                    f"{site.module} has been added to it"
                )
        if module in through:
            normed[through[module]] = y
        if module in outputs and outputs[module] in normed:
            site = outputs[module]
            sums[site] = normed[site] + y.reshape(normed[site].shape)

    watched = {*norms, *outputs}
    with watch_calls(watched, see):
        ids = torch.arange(3, device=model.device)[None] % embedding_weight(model).shape[0]
        run_base(model, ids)
    return tuple(dict.fromkeys(found))


def _same(x: Tensor, y: Tensor) -> bool:
    return bool((x - y).abs().amax() <= 16 * torch.finfo(x.dtype).eps * y.abs().amax())


def _all_centred(weights: Mapping[Site, HeadWeights]) -> bool:
    """Whether no matrix lets the mean through, as after folding in a LayerNorm."""
    for one in weights.values():
        for part in (one.q, one.k, one.v):
            if part.weight is None or not (part.reads and part.reads[0].folded):
                return False
            wide = part.weight.double()
            if bool((wide.sum(1).abs() > 1e-2 * wide.abs().sum(1)).any()):
                return False
    return True
