"""What the layer alone predicts of a removal's harm, and how far a head stands out from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

_REACH = 2  # layers on either side
RESOLUTION = 1e-6
"""Float32 losses and masses carry no more: a smaller effect is rounding."""


@dataclass(frozen=True, eq=False)
class Trend:
    """What the layer says of each head.

    Args:
        centre: the effect that it predicts.
        spread: how far effects in such layers lie from that, in the middle.
    """

    centre: Float[np.ndarray, " head"]
    spread: Float[np.ndarray, " head"]

    def standing(self, effect: Float[np.ndarray, " head"]) -> Float[np.ndarray, " head"]:
        """How far each head stands out: (effect − centre) / spread."""
        return (effect - self.centre) / self.spread


def layer_trend(
    effect: Float[np.ndarray, " head"],
    layer: Int[np.ndarray, " head"],
    reference: Bool[np.ndarray, " head"] | None = None,
) -> Trend:
    """The layer as covariate: running medians of the layers' medians and of their deviations.

        centre_l = median over l′ in l − 2 … l + 2 of median_h effect[l′, h]
        spread_l = likewise of median_h |effect[l′, h] − centre_l′|, never below half its median
                   over all layers

    A layer has too few heads for a median of its own, and effects are heavy-tailed: a median of
    medians is moved by neither. Removing heads of the first layers does erratic damage to
    everything, so what stands out there differs from what stands out later.

    Args:
        effect: of each head.
        layer: of each head.
        reference: the heads that the medians are over, at least one; None: all. Heads that are
            under test are left out, else two of them that fill a layer are its rule themselves. A
            layer without any takes part in no median, and gets that of the layers next to it (of
            all, where these have none either).

    Example:
        >>> effect = np.array([0.0, 1.0, 9.0, 2.0, 3.0, 3.0])
        >>> trend = layer_trend(effect, np.array([0, 0, 0, 1, 2, 2]))
        >>> trend.centre.tolist(), float(trend.standing(effect)[2])
        ([2.0, 2.0, 2.0, 2.0, 2.0, 2.0], 7.0)

    Reference: Tukey 1977 (running medians); the use as a covariate is this project's.
    """
    used = np.ones(len(effect), dtype=bool) if reference is None else reference
    layers = np.unique(layer)
    places = np.searchsorted(layers, layer)
    own = [used & (layer == one) for one in layers]
    has = np.array([bool(heads.any()) for heads in own])
    centre = _running(np.array([np.median(effect[h]) if h.any() else np.nan for h in own]), has)
    distance = np.abs(effect - centre[places])
    spread = np.array([np.median(distance[h]) if h.any() else np.nan for h in own])
    least = max(float(np.median(spread[has])) / 2, RESOLUTION)
    return Trend(centre[places], np.maximum(_running(spread, has), least)[places])


def _running(
    values: Float[np.ndarray, " layer"], has: Bool[np.ndarray, " layer"]
) -> Float[np.ndarray, " layer"]:
    """Median over the layers in reach that have a value."""
    found = np.empty(len(values))
    for place in range(len(values)):
        near = slice(max(0, place - _REACH), place + _REACH + 1)
        found[place] = np.median(values[near][has[near]] if has[near].any() else values[has])
    return found


def rank_p(
    standing: Float[np.ndarray, " head"], reference: Bool[np.ndarray, " head"]
) -> Float[np.ndarray, " head"]:
    """The share of reference heads, the head itself among them, that stand out as far or farther.

        p_h = (1 + #{r in reference, r ≠ h : standing_r ≥ standing_h}) / (1 + #{r ≠ h})

    Example:
        >>> rank_p(np.array([5., 1., 2., 3.]), np.array([False, True, True, True])).tolist()
        [0.25, 1.0, 0.6666666666666666, 0.3333333333333333]
    """
    own = standing[:, None]
    others = reference[None, :] & ~np.eye(len(standing), dtype=bool)
    farther = ((standing[None, :] >= own) & others).sum(1)
    return (1 + farther) / (1 + others.sum(1))
