"""Where heads stand in a graph of layers, and how edges run between them."""

from __future__ import annotations

import numpy as np

from ..heads import HeadId

Place = tuple[float, float]
"""Across, a whole number per layer, and down, one per head."""

_STEPS = 16  # points of a curve from one layer to the next
_WIDE, _CLEAR = 0.22, 0.33  # what a head covers around its middle, across and down


def _step(head: HeadId) -> tuple[bool, int, bool]:
    """When a head writes: the encoder first; cross-attention last in each layer of the decoder."""
    return head.site in ("dec", "cross"), head.layer, head.site == "cross"


def reads(source: HeadId, target: HeadId) -> bool:
    """Whether what the source writes comes to the target.

    Example:
        >>> cross, own = HeadId("cross", 0, 1), HeadId("dec", 0, 3)
        >>> reads(own, cross), reads(cross, own)
        (True, False)
    """
    if source.site == "enc" and target.site == "cross":
        return True
    together = source.site == target.site or {source.site, target.site} == {"dec", "cross"}
    return together and _step(source) < _step(target)


def places_of(edges: list[tuple[HeadId, HeadId]]) -> dict[HeadId, Place]:
    """Where each head stands: layers in columns, heads ordered so that edges cross little.

    Args:
        edges: source and target of each.
    """
    heads = sorted({head for edge in edges for head in edge})
    layers = sorted({_step(head) for head in heads})
    columns = {layer: [head for head in heads if _step(head) == layer] for layer in layers}
    near: dict[HeadId, list[HeadId]] = {head: [] for head in heads}
    for source, target in edges:
        near[source].append(target)
        near[target].append(source)
    height = dict[HeadId, float]()
    for layer in layers:
        height.update(_spread(columns[layer]))
    for sweep in range(4):  # each layer by the mean height of what it is joined to
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            mean = {
                head: float(np.mean([height[o] for o in near[head]])) for head in columns[layer]
            }
            columns[layer].sort(key=lambda head: (mean[head], head))
            height.update(_spread(columns[layer]))
    return {head: (float(layers.index(_step(head))), height[head]) for head in heads}


def _spread(column: list[HeadId]) -> dict[HeadId, float]:
    """Heads of a layer below one another around height 0."""
    return {head: place - (len(column) - 1) / 2 for place, head in enumerate(column)}


def curve_of(
    start: Place, end: Place, places: dict[HeadId, Place]
) -> tuple[np.ndarray, np.ndarray]:
    """Points of an edge that leaves and arrives level, bent around the heads that it passes.

    Args:
        start: of the source.
        end: of the target, in a later column.
        places: of all heads.
    """
    span = int(end[0] - start[0])
    t = np.linspace(0, 1, _STEPS * span + 1)
    x = start[0] + span * t
    level = start[1] + (end[1] - start[1]) * t * t * (3 - 2 * t)
    passed = np.array([at for at in places.values() if start[0] < at[0] < end[0]]).reshape(-1, 2)
    if not len(passed):
        return x, level
    beside = np.abs(x - passed[:, :1]) < _WIDE
    best, most = level, -1.0
    # the smallest bend that leads around all heads, else the one that comes least close
    for step in range(2 * int(8 * np.abs(passed[:, 1]).max() + 9)):
        y = level + (step // 2 / 4) * (-1) ** step * np.sin(np.pi * t)
        clear = float(np.abs(y - passed[:, 1:])[beside].min())
        if clear > most:
            best, most = y, clear
        if clear >= _CLEAR:
            break
    return x, best
