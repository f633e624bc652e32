"""Label vectors of kinds on a grid: which patches of an image a head looks at, by place."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from ..interp.probes import Prompts
from .label_vectors import NO_KEY, NO_QUERY, Labels, UnfitPromptsError, Variants

_NEIGHBOURS = {
    "up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1), "up_left": (-1, -1),
    "up_right": (-1, 1), "down_left": (1, -1), "down_right": (1, 1),
}  # fmt: skip


def neighbour_labels(prompts: Prompts) -> Variants:
    """Each patch matches one of the eight beside it; patches at that edge are not scored."""
    return {name: (_beside(prompts, *step),) for name, step in _NEIGHBOURS.items()}


def surround_labels(prompts: Prompts) -> Variants:
    """Each patch matches all of those beside it."""
    pairs = [_beside(prompts, *step) for step in _NEIGHBOURS.values()]
    # what the first pair leaves out is not scored at all: let it hold every patch
    everywhere = np.where(_cell(prompts) >= 0, _nowhere(prompts), NO_QUERY)
    return {"": (Labels(everywhere, pairs[0].k), *pairs)}


def row_labels(prompts: Prompts) -> Variants:
    """Each patch matches the others of its row."""
    return {"": _line(prompts, "row")}


def column_labels(prompts: Prompts) -> Variants:
    """Each patch matches the others of its column."""
    return {"": _line(prompts, "column")}


def outside_labels(prompts: Prompts) -> Variants:
    """Each patch matches the tokens that are no patch; without one nothing is scored."""
    inside = _cell(prompts) >= 0
    outside = prompts.mask & ~inside
    scored = inside & outside.any(1, keepdims=True)
    return {"": (Labels(np.where(scored, 0, NO_QUERY), np.where(outside, 0, NO_KEY)),)}


def _line(prompts: Prompts, axis: str) -> tuple[Labels, ...]:
    inside, place = _cell(prompts) >= 0, _marks(prompts)[axis]
    return (
        Labels(np.where(inside, place, NO_QUERY), np.where(inside, place, NO_KEY), strict=True),
    )


def _beside(prompts: Prompts, down: int, right: int) -> Labels:
    """Each patch matches the one so many rows below and columns to the right."""
    marks, cell = _marks(prompts), _cell(prompts)
    row, column = marks["row"] + down, marks["column"] + right
    height, width = marks["row"].max() + 1, marks["column"].max() + 1
    exists = (cell >= 0) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    target = np.where(exists, row * width + column, NO_QUERY)
    return Labels(target, np.where(cell >= 0, cell, NO_KEY))


def _cell(prompts: Prompts) -> Int[np.ndarray, "document pos"]:
    """The number of each token's patch, row by row; −1 at tokens that are none."""
    marks = _marks(prompts)
    return np.where(
        marks["row"] >= 0, marks["row"] * (marks["column"].max() + 1) + marks["column"], -1
    )


def _nowhere(prompts: Prompts) -> int:
    """A label that no patch has."""
    return int(_cell(prompts).max()) + 1


def _marks(prompts: Prompts) -> dict[str, Int[np.ndarray, "document pos"]]:
    marks = {name: prompts.marks[name] for name in ("row", "column") if name in prompts.marks}
    if len(marks) < 2 or not (marks["row"] >= 0).any():
        raise UnfitPromptsError(
            f"the tokens of the {prompts.name} prompts form no grid of patches, which kinds of "
            "images are about."
        )
    return marks
