"""What pictures without a browser are drawn on: cells, letters and colours, through Pillow."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageColor, ImageDraw, ImageFont

from ..errors import InputError, one_line
from .style import Theme

_SIZE = 11
_WIDE_SETS = ("DejaVuSansMono.ttf", "DejaVuSans.ttf")
_PLAIN = {"⏎": "\\n", "⇥": "\\t", "∅": "(empty)", "…": "...", "·": "_"}
_ABSENT = "\U0010fffe"  # a code that no font has a sign for


class Lettering:
    """A font, and how texts look in it.

    Args:
        path: of a TrueType file; None: DejaVu where it is installed, else Pillow's own.

    Raises:
        InputError: the file is no font.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.font = _font(path)
        self.width: float = self.font.getlength("n")
        self._absent = self._ink(_ABSENT)
        self._known: dict[str, str] = {}

    def drawable(self, text: str) -> str:
        """The text with signs that the font lacks written as their codes.

        Example:
            >>> Lettering().drawable("cat \U0001f63a")
            'cat <U+1F63A>'
        """
        return "".join(map(self._sign, text))

    def room(self, texts: list[str]) -> int:
        """Pixels of the longest text, and a little air."""
        return round(max((self.font.getlength(text) for text in texts), default=0)) + 8

    def _ink(self, sign: str) -> bytes:
        mask: Any = self.font.getmask(sign)
        return bytes(mask)

    def _sign(self, sign: str) -> str:
        if sign not in self._known:
            lacks = not sign.isspace() and self._ink(sign) == self._absent
            self._known[sign] = _PLAIN.get(sign, f"<U+{ord(sign):04X}>") if lacks else sign
        return self._known[sign]


class Canvas:
    """A picture in a theme.

    Args:
        size: width and height in pixels.
        theme: its colours.
        lettering: its font.
    """

    def __init__(self, size: tuple[int, int], theme: Theme, lettering: Lettering) -> None:
        self.image = Image.new("RGB", size, theme.paper)
        self._theme, self._lettering = theme, lettering
        self._draw = ImageDraw.Draw(self.image)
        self._shades = shades_of(theme.rising)

    def text(self, x: int, y: int, text: str, *, anchor: str = "la", upright: bool = False) -> None:
        """Write a text that the font can draw.

        Args:
            x: of its anchor.
            y: of its anchor.
            text: one line.
            anchor: which of its points stands there: l, m, r and a (top), m, b.
            upright: reads from below to above; the anchor is that of the text as it stands.
        """
        font, colour = self._lettering.font, self._theme.text
        if not text:
            return
        if not upright:
            vertical = {"a": "a", "m": "m", "b": "d"}[anchor[1]]
            self._draw.text((x, y), text, colour, font, anchor=f"{anchor[0]}{vertical}")
            return
        size = (max(1, round(font.getlength(text)) + 1), _SIZE + 5)
        ink = Image.new("L", size)
        ImageDraw.Draw(ink).text((0, size[1] // 2), text, 255, font, anchor="lm")
        ink = ink.transpose(Image.Transpose.ROTATE_90)
        left = x - {"l": 0, "m": ink.width // 2, "r": ink.width}[anchor[0]]
        top = y - {"a": 0, "m": ink.height // 2, "b": ink.height}[anchor[1]]
        self.image.paste(colour, (left, top), ink)

    def cells(
        self, values: Float[np.ndarray, "row column"], corner: tuple[int, int], cell: int
    ) -> None:
        """Paint values from 0 to 1 as squares; NaN is blank."""
        steps = np.round(np.clip(np.nan_to_num(values), 0, 1) * (len(self._shades) - 1))
        painted = self._shades[steps.astype(int)]
        painted[np.isnan(values)] = ImageColor.getrgb(self._theme.blank)
        painted = painted.repeat(cell, axis=0).repeat(cell, axis=1)
        self.image.paste(Image.fromarray(painted), corner)


def shades_of(colours: tuple[str, ...]) -> UInt8[np.ndarray, "shade 3"]:
    """256 colours between those named.

    Example:
        >>> shades_of(("#000000", "#ffffff"))[[0, 128, 255]].tolist()
        [[0, 0, 0], [128, 128, 128], [255, 255, 255]]
    """
    known = np.array([ImageColor.getrgb(colour)[:3] for colour in colours], float)
    place = np.linspace(0, len(known) - 1, 256)
    parts = [np.interp(place, np.arange(len(known)), part) for part in known.T]
    return np.round(np.stack(parts, axis=1)).astype(np.uint8)


def _font(path: str | os.PathLike[str] | None) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    if path is not None:
        try:
            return ImageFont.truetype(os.fspath(path), _SIZE)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{str(path)!r} is no font that can be read: {one_line(error)}. Pass a .ttf file."
            ) from error
    for name in _WIDE_SETS:
        try:
            return ImageFont.truetype(name, _SIZE)
        except OSError:
            continue
    return ImageFont.load_default(_SIZE)
