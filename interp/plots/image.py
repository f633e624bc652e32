"""Attention patterns as .png, drawn without a browser."""

from __future__ import annotations

import html
import math
import os
import textwrap
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
from .style import head_names, readable, theme_of
from .token_axes import Axes, read_axes
from .weights import check_max_weight, read_pattern

_LABELLED = 64  # an axis up to this long labels every token, in a picture of one panel
# pixels
_CELL, _PANEL, _SMALL = 16, 700, 250  # a cell at most; a single panel, one of several
_GAP, _BAR, _LINE, _EDGE = 30, 90, 18, 12
_TICKS = 5


def pattern_image(
    pattern: Float[Tensor, "*shape"] | Float[np.ndarray, "*shape"],
    *,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    heads: Sequence[object] | None = None,
    title: str | None = None,
    sinks: bool = False,
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
    weights, chosen = read_pattern(pattern, sinks=sinks), theme_of(theme)
    most = check_max_weight(max_weight)
    names = [html.unescape(name) for name in head_names(heads, len(weights))]
    axes = read_axes(weights.shape[1:], tokens, keys)
    frame = _Frame.of(weights.shape, axes, title, Lettering(font))
    canvas = Canvas(frame.size, chosen, frame.lettering)
    for place, line in enumerate(frame.title):
        canvas.text(frame.size[0] // 2, 12 + _LINE * place, line, anchor="ma")
    for number, name in enumerate(names):
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
        pattern, tokens=tokens, keys=keys, heads=heads, title=title, sinks=sinks,
        max_weight=max_weight, theme=theme, font=font,
    )  # fmt: skip
    with atomic_write(path) as temporary:
        image.save(temporary, format="PNG", optimize=True)


@dataclass(frozen=True)
class _Frame:
    """Where everything stands, in pixels."""

    lettering: Lettering
    title: list[str]
    x: list[str]
    y: list[str]
    n: int
    grid: tuple[int, int]
    cell: int
    left: int

    @classmethod
    def of(
        cls, shape: tuple[int, ...], axes: Axes, title: str | None, lettering: Lettering
    ) -> _Frame:
        """The frame of a pattern [head, query, key]."""
        n, n_query, n_key = shape
        columns = math.ceil(math.sqrt(n))
        wanted = max(_SMALL, _PANEL // columns)
        cell = max(1, min(_CELL, wanted // max(n_query, n_key)))
        x, y = (
            [lettering.drawable(html.unescape(one)) for one in axis] for axis in (axes.x, axes.y)
        )
        left = _EDGE + _LINE + lettering.room(y)
        wide = left + columns * cell * n_key + (columns - 1) * _GAP + _BAR
        room = max(20, int((wide - 2 * _EDGE) / lettering.width))
        lines = [part for line in (title or "").splitlines() for part in textwrap.wrap(
            lettering.drawable(readable(line)), room)]  # fmt: skip
        return cls(lettering, lines[:4], x, y, n, (math.ceil(n / columns), columns), cell, left)

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
        rows, columns = self.grid
        wide = self.left + columns * self.panel[0] + (columns - 1) * _GAP + _BAR
        high = self.top + rows * self.panel[1] + (rows - 1) * _GAP + self.bottom
        return wide, high

    def corner(self, number: int) -> tuple[int, int]:
        """The upper left corner of a panel."""
        row, column = divmod(number, self.grid[1])
        wide, high = self.panel
        return self.left + column * (wide + _GAP), self.top + row * (high + _GAP)

    def step(self, count: int) -> int:
        """From one label to the next: none touches another."""
        if self.grid == (1, 1) and count <= _LABELLED and self.cell >= _LINE - 4:
            return 1
        return max(1, math.ceil(_LINE / self.cell))


def _label(canvas: Canvas, frame: _Frame) -> None:
    """Tokens along the outer panels, and what the axes are."""
    rows, columns = frame.grid
    below = frame.lettering.room(frame.x) + 6
    (wide, high), half = frame.panel, frame.cell // 2
    for column in range(columns):
        x, y = frame.corner(column + (frame.n - 1 - column) // columns * columns)
        for place in range(0, len(frame.x), frame.step(len(frame.x))):
            across = x + place * frame.cell + half
            canvas.text(across, y + high + 4, frame.x[place], anchor="ma", upright=True)
        canvas.text(x + wide // 2, y + high + below, "key (source)", anchor="ma")
    for row in range(rows):
        x, y = frame.corner(row * columns)
        for place in range(0, len(frame.y), frame.step(len(frame.y))):
            canvas.text(x - 5, y + place * frame.cell + half, frame.y[place], anchor="rm")
        canvas.text(_EDGE - 4, y + high // 2, "query (destination)", anchor="lm", upright=True)


def _bar(canvas: Canvas, frame: _Frame, most: float) -> None:
    """What the colours mean."""
    high = min(240, frame.panel[1])
    x, y = frame.size[0] - _BAR + 16, frame.top
    shades = np.repeat(np.linspace(1, 0, high)[:, None], 14, axis=1)
    canvas.cells(shades, (x, y), 1)
    canvas.text(x, y - 5, "weight", anchor="lb")
    ticks = _TICKS if high > _TICKS * _LINE else 2
    for tick in np.linspace(0, 1, ticks):
        canvas.text(x + 19, y + round((1 - tick) * (high - 1)), f"{tick * most:.3g}", anchor="lm")
