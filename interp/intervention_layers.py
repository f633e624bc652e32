"""Interventions on the package's own layers: the edits that `attach_layers` takes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention_call import AttentionCall, Edit
from .errors import InputError
from .inputs import Inputs
from .intervention import Intervention
from .layers.attention import HookedAttention
from .layers.hooks import attach_layers
from .sites import Site

LAYERS_TAKE = (
    " A HookedAttention takes zero, gate and add, and patch or freeze from the capture of a "
    "transformers model; its own values are in trace(x) and attach_layers(layer, observers=…)."
)


def holds_layers(model: Any) -> bool:
    """Whether `model` is a `HookedAttention`, or a module of some that is none of transformers.

    Raises:
        InputError: a module of both, where a head's address would mean two.
    """
    if not isinstance(model, nn.Module) or isinstance(model, PreTrainedModel):
        return False
    parts = list(model.modules())
    holds = any(isinstance(part, HookedAttention) for part in parts)
    both = [part for part in parts if isinstance(part, PreTrainedModel)]
    if holds and both:
        raise InputError(
            f"{type(model).__name__} holds both a transformers model ({type(both[0]).__name__}) "
            "and HookedAttention, so L0H0 would name two heads. Use attach_layers for the "
            "HookedAttention, and attach or intervene for the transformers model inside."
        )
    return holds


def layer_edits(
    model: nn.Module, interventions: Iterable[Intervention], inputs: Inputs | None = None
) -> list[Edit]:
    """The edits that make these changes in the `HookedAttention`s of `model`.

    Args:
        model: as `holds_layers` has it.
        interventions: in the order in which they apply.
        inputs: what it will be run on, where that is known.

    Raises:
        InputError: as `intervention.edits_for`.
    """
    layers = [part for part in model.modules() if isinstance(part, HookedAttention)]
    with attach_layers(model) as sites:
        pass
    rotary = any(layer.config.rope is not None for layer in layers)
    absorbed = {
        layer.absorbed_site(site): site
        for site, layer in zip(sites, layers, strict=True)
        if layer.config.latent is not None
    }
    return [_absorbable(one, one.edit(sites, rotary, inputs), absorbed) for one in interventions]


def shape_of(x: Any) -> Inputs:
    """What checks of positions and batches need of a layer's input [batch, pos, …].

    Raises:
        InputError: no tensor with these axes.
    """
    if not isinstance(x, Tensor) or x.ndim < 2:
        got = f"{tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"a layer reads states [batch, pos, d_model]; got {got}.")
    ids = torch.zeros(x.shape[:2], dtype=torch.int64)
    return Inputs(ids, torch.ones_like(ids, dtype=torch.bool), None, None)


def _absorbable(made: Intervention, edit: Edit, absorbed: Mapping[Site, Site]) -> Edit:
    """The edit, also at calls with absorbed latents; there z, z W_UV, scales as z does."""

    def change(call: AttentionCall, value: Tensor) -> Tensor:
        if not call.absorbed:
            return edit.change(call, value)
        own = absorbed[call.site]
        scales = made.action in ("zero", "gate")
        if edit.target in ("q", "k", "v") or (edit.target == "z" and not scales):
            raise InputError(
                f"{made.action} of {edit.target} at layer {own.layer} has no meaning with "
                "absorb=True, where heads share one key and value, the latent. Decode without it."
            )
        return edit.change(copy.copy(call).at(own), value)

    return Edit(edit.target, change, edit.sites)
