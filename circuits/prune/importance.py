"""How much each head matters, from gradients and from weights."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...interp.attach import attach
from ...interp.errors import InputError
from ...interp.forward import embedding_weight, undisturbed
from ...interp.heads import HeadId
from ...interp.probes import Prompts
from ...interp.sites import attention_sites
from ...interp.weights import head_weights
from ..ablate.evaluate import MOST_LOGITS
from ..behaviour import has_next
from ..causal.decoder import output_head
from .gates import Gates, gate_edit
from .text_loss import Batch, predicting
from .working_copy import frozen_copy

BATCH_TOKENS = 2048
"""Tokens of a forward and backward pass."""


class GateGradients:
    """Derivatives of each document's loss by a gate ξ on each head's z, at ξ = 1 (0: removed).

        g[x, h] = ∂L(x)/∂ξ_h = Σ_t z_h(t)ᵀ ∂L(x)/∂z_h(t) = Σ_t Att_h(t)ᵀ ∂L(x)/∂Att_h(t)

    with L(x) the mean loss in nats per predicted token of document x, and Att_h = z_h W_O[h].
    Gradients flow through one edit of z; attention runs fused. The given model is not touched.

    Args:
        model: a transformers decoder with a language-model head.
        prompts: the documents; those in which no prediction counts are left out.

    Raises:
        InputError: documents none of which predicts anything, or a model that cannot be copied.
    """

    @torch.inference_mode(False)
    def __init__(self, model: Any, prompts: Prompts) -> None:
        self._prompts = predicting(prompts)
        self._n_tokens = has_next(self._prompts).sum(1)
        self._twin = frozen_copy(model)
        self._gates = Gates(attention_sites(self._twin))
        self.heads = self._gates.heads

    @torch.inference_mode(False)
    def at(self, removed: Collection[HeadId] = ()) -> Float[np.ndarray, "document head"]:
        """The derivatives where some heads are removed.

        Raises:
            InputError: a derivative is not finite.
        """
        gone = set(removed)
        start = torch.tensor([float(head not in gone) for head in self.heads]).double()
        device = embedding_weight(self._twin).device
        vocab = len(output_head(self._twin).weight)
        tokens = min(BATCH_TOKENS, MOST_LOGITS // vocab)
        size = max(1, tokens // self._prompts.ids.shape[1])
        current: list[Tensor] = []
        edit = gate_edit(self._gates, lambda: current[0])
        found = []
        with attach(self._twin, edits=[edit]), undisturbed(self._twin), torch.enable_grad():
            for first in range(0, len(self._prompts), size):
                part = self._prompts.select(slice(first, first + size))
                gate = start.repeat(len(part), 1).to(device).requires_grad_()
                current[:] = [gate]
                loss = Batch(part, device).cross_entropy(self._twin)
                (gradient,) = torch.autograd.grad(loss, gate)
                found.append(gradient.cpu().numpy())
        gradients = np.concatenate(found) / self._n_tokens[:, None]
        if not np.isfinite(gradients).all():
            raise InputError(
                "a gradient is not finite; load the model in a wider dtype to rank its heads."
            )
        return gradients


def michel(
    gradients: Float[np.ndarray, "document head"],
    heads: tuple[HeadId, ...],
    removed: Collection[HeadId] = (),
) -> Float[np.ndarray, " head"]:
    """Importance of Michel: I_h = E_x |∂L(x)/∂ξ_h|, divided by the ℓ2 norm over its layer.

    The absolute value is taken per example, before the mean, so that examples in which a head helps
    and others in which it harms do not cancel. Layers count the heads that are left.

    Args:
        gradients: what `GateGradients.at` gives.
        heads: their heads.
        removed: heads that are gone; theirs is 0.

    Example:
        >>> heads = (HeadId("", 0, 0), HeadId("", 0, 1))
        >>> michel(np.array([[3.0, 4.0], [-3.0, 4.0]]), heads).tolist()
        [0.6, 0.8]

    Reference:
        Michel 2019, sections 4.1 and appendix (normalisation after Molchanov 2017).
    """
    gone = set(removed)
    left = np.array([head not in gone for head in heads])
    scores = np.where(left, np.abs(gradients).mean(0), 0.0)
    places = groupby(range(len(heads)), key=lambda place: (heads[place].site, heads[place].layer))
    for _, own in places:
        layer = list(own)
        norm = np.linalg.norm(scores[layer])
        if norm > 0:
            scores[layer] /= norm
    return scores


def taylor(gradients: Float[np.ndarray, "document head"]) -> Float[np.ndarray, " head"]:
    """Importance by a first-order Taylor step: I_h = E_x (∂L(x)/∂ξ_h · ξ_h)², with ξ_h = 1.

    The squared change of the loss that removing the head would make if the loss were linear in its
    gate. Layers are compared as they are, without a norm.

    Args:
        gradients: what `GateGradients.at` gives.

    Example:
        >>> taylor(np.array([[3.0, 0.0], [-1.0, 2.0]])).tolist()
        [5.0, 2.0]

    Reference:
        Molchanov 2019, equation 8, on the gate of a head.
    """
    return np.square(gradients).mean(0)


def magnitude(model: Any) -> dict[HeadId, float]:
    """The Frobenius norm ‖W_O[h]‖ of what each head writes with.

    Raises:
        InputError: no linear map from a layer's heads to its output was found.

    Example:
        >>> import headatlas as ha
        >>> norms = magnitude(ha.load("tiny")[0])
        >>> len(norms), min(norms.values()) > 0
        (32, True)
    """
    found = {}
    for site, weights in head_weights(model).items():
        norms = weights.W_O.detach().double().flatten(1).norm(dim=1).tolist()
        found.update(zip(site.heads, norms, strict=True))
    return found
