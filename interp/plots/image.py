"""Attention patterns as .png, drawn without a browser."""

from __future__ import annotations

import dataclasses
import html
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor

from ..errors import InputError
from ..files import atomic_write, check_target
from .canvas import Canvas, Lettering
from .style import broken, head_names, theme_of
from .token_axes import Axes, read_axes
from .weights import check_max_weight, read_pattern

_LABELLED = 64  # an axis up to this long labels every token, in a picture of one panel
# pixels
_CELL, _PANEL, _SMALL = 16, 700, 250  # a cell at most; a single panel, one of several
_GAP, _BAR, _LINE, _EDGE = 30, 90, 18, 12
_LEAST = (240, 150)  # all panels together: what titles, and the bar with its numbers, take
_TICKS = 5
_BELOW, _BESIDE = "key (source)", "query (destination)"


def pattern_image(
    pattern: Float[Tensor, "*shape"] | Float[np.ndarray, "*shape"],
    *,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    heads: Sequence[object] | None = None,
    title: str | None = None,
    sinks: bool = False,
    rows: Sequence[int] | None = None,
    max_weight: float = 1.0,
    theme: str = "light",
    font: str | os.PathLike[str] | None = None,
) -> Image:
    """Draw attention weights as a picture, with Pillow alone.

    As `plot_pattern` shows them: queries down (the first at the top), keys across, blank where a
    causal mask hides keys. A token has at least one pixel of its own, so nothing is averaged.

    Args:
        pattern: as in `plot_pattern`.
        tokens: likewise; axes of more than 64 tokens label some.
        keys: likewise.
        heads: one name per head.
        title: of the picture.
        sinks: rows may sum to less than 1.
        rows: the position of each query, as in `plot_pattern`.
        max_weight: the weight that gets the last colour.
        theme: `light` or `dark`.
        font: a TrueType file for the labels; None: DejaVu where it is installed, else Pillow's
            own. A character that the font lacks shows as its code, `<U+4E2D>`.

    Raises:
        InputError: what `plot_pattern` refuses, or a font that cannot be read.

    Example:
        >>> import torch
        >>> pattern_image(torch.eye(4)).getpixel((0, 0))  # the paper
        (255, 255, 255)
    """
    weights, chosen = read_pattern(pattern, sinks=sinks, rows=rows), theme_of(theme)
    most = check_max_weight(max_weight)
    names = head_names(heads, len(weights), most=60 if len(weights) == 1 else 24)
    axes = read_axes(weights.shape[1:], tokens, keys, rows)
    frame = _Frame.of(names, weights.shape[1:], axes, title, Lettering(font))
    canvas = Canvas(frame.size, chosen, frame.lettering)
    for place, line in enumerate(frame.title):
        canvas.text(frame.size[0] // 2, 12 + _LINE * place, line, anchor="ma")
    for number, name in enumerate(frame.names):
        x, y = frame.corner(number)
        canvas.text(x + frame.panel[0] // 2, y - 5, name, anchor="mb")
        canvas.cells(weights[number] / most, (x, y), frame.cell)
    _label(canvas, frame)
    _bar(canvas, frame, most)
    return canvas.image


def write_pattern_image(
    pattern: Float[Tensor, "*shape"] | Float[np.ndarray, "*shape"],
    path: str | os.PathLike[str],
    *,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    heads: Sequence[object] | None = None,
    title: str | None = None,
    sinks: bool = False,
    rows: Sequence[int] | None = None,
    max_weight: float = 1.0,
    theme: str = "light",
    font: str | os.PathLike[str] | None = None,
) -> None:
    """Write what `pattern_image` draws as a .png, which needs no browser.

    Args:
        pattern: as in `pattern_image`, like all options.
        path: the file to write.
        tokens: see there.
        keys: see there.
        heads: see there.
        title: see there.
        sinks: see there.
        rows: see there.
        max_weight: see there.
        theme: see there.
        font: see there.

    Raises:
        InputError: another suffix, a path that cannot be written, or what `pattern_image` refuses.
    """
    if Path(path).suffix.lower() != ".png":
        raise InputError(f"a picture of a pattern is written as .png; got {str(path)!r}.")
    check_target(Path(path))
    image = pattern_image(
        pattern, tokens=tokens, keys=keys, heads=heads, title=title, sinks=sinks, rows=rows,
        max_weight=max_weight, theme=theme, font=font,
    )  # fmt: skip
    with atomic_write(path) as temporary:
        image.save(temporary, format="PNG", optimize=True)


@dataclass(frozen=True)
class _Frame:
    """Where everything stands, in pixels."""

    lettering: Lettering
    title: list[str]
    names: list[str]
    x: list[str]
    y: list[str]
    grid: tuple[int, int]
    cell: int

    @classmethod
    def of(
        cls,
        names: list[str],
        shape: tuple[int, ...],
        axes: Axes,
        title: str | None,
        lettering: Lettering,
    ) -> _Frame:
        """The frame of patterns [query, key], one per name."""
        columns = math.ceil(math.sqrt(len(names)))
        cell = max(1, min(_CELL, max(_SMALL, _PANEL // columns) // max(shape)))
        said, x, y = (
            [lettering.drawable(html.unescape(one)) for one in texts]
            for texts in (names, axes.x, axes.y)
        )
        grid = (math.ceil(len(names) / columns), columns)
        untitled = cls(lettering, [], said, x, y, grid, cell)
        room = int((untitled.size[0] - 2 * _EDGE) / lettering.width)
        lines = [lettering.drawable(line) for line in broken(title, room)]
        return dataclasses.replace(untitled, title=lines)

    @property
    def left(self) -> int:
        """Beside the panels: the queries, and what they are."""
        return _EDGE + _LINE + self.lettering.room(self.y)

    @property
    def place(self) -> tuple[int, int]:
        """Width and height that a panel takes, its name's among them."""
        wide, high = self.panel
        return max(wide, self.lettering.room(self.names)), high

    @property
    def panels(self) -> tuple[int, int]:
        """Width and height of all panels."""
        rows, columns = self.grid
        wide, high = self.place
        return columns * wide + (columns - 1) * _GAP, rows * high + (rows - 1) * _GAP

    @property
    def area(self) -> tuple[int, int]:
        """Width and height kept for them; they stand in its middle."""
        return max(self.panels[0], _LEAST[0]), max(self.panels[1], _LEAST[1])

    @property
    def panel(self) -> tuple[int, int]:
        """Width and height of a panel."""
        return self.cell * len(self.x), self.cell * len(self.y)

    @property
    def top(self) -> int:
        """Above the first panel."""
        return _EDGE + _LINE * len(self.title) + _LINE

    @property
    def bottom(self) -> int:
        """Below the last row of panels: the keys, and what they are."""
        return self.lettering.room(self.x) + _LINE + _EDGE

    @property
    def size(self) -> tuple[int, int]:
        """Of the picture."""
        wide, high = self.area
        return self.left + wide + _BAR, self.top + high + self.bottom

    def corner(self, number: int) -> tuple[int, int]:
        """The upper left corner of a panel."""
        row, column = divmod(number, self.grid[1])
        (wide, high), inner = self.place, (self.place[0] - self.panel[0]) // 2
        across, down = ((most - own) // 2 for most, own in zip(self.area, self.panels, strict=True))
        x = self.left + across + column * (wide + _GAP) + inner
        return x, self.top + down + row * (high + _GAP)

    def step(self, count: int) -> int:
        """From one label to the next: none touches another."""
        if self.grid == (1, 1) and count <= _LABELLED and self.cell >= _LINE - 4:
            return 1
        return max(1, math.ceil(_LINE / self.cell))


def _label(canvas: Canvas, frame: _Frame) -> None:
    """Tokens along the outer panels, and what the axes are."""
    rows, columns = frame.grid
    below = frame.lettering.room(frame.x) + 6
    high, half = frame.panel[1], frame.cell // 2
    for column in range(columns):
        x, y = frame.corner(column + (len(frame.names) - 1 - column) // columns * columns)
        for place in range(0, len(frame.x), frame.step(len(frame.x))):
            across = x + place * frame.cell + half
            canvas.text(across, y + high + 4, frame.x[place], anchor="ma", upright=True)
    for row in range(rows):
        x, y = frame.corner(row * columns)
        for place in range(0, len(frame.y), frame.step(len(frame.y))):
            canvas.text(x - 5, y + place * frame.cell + half, frame.y[place], anchor="rm")
    centre = frame.left + frame.area[0] // 2, frame.top + frame.area[1] // 2
    lowest = frame.corner((rows - 1) * columns)[1] + high
    canvas.text(centre[0], lowest + below, _BELOW, anchor="ma")
    canvas.text(_EDGE - 4, centre[1], _BESIDE, anchor="lm", upright=True)


def _bar(canvas: Canvas, frame: _Frame, most: float) -> None:
    """What the colours mean."""
    high = min(240, frame.area[1])
    x, y = frame.size[0] - _BAR + 16, frame.top
    shades = np.repeat(np.linspace(1, 0, high)[:, None], 14, axis=1)
    canvas.cells(shades, (x, y), 1)
    canvas.text(x, y - 5, "weight", anchor="lb")
    for tick in np.linspace(0, 1, _TICKS):
        canvas.text(x + 19, y + round((1 - tick) * (high - 1)), f"{tick * most:.3g}", anchor="lm")
