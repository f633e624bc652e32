"""How every figure looks: colours in light and dark, fonts, and texts that are safe to show."""

from __future__ import annotations

import html
import textwrap
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InputError, shown
from ..visible import visible_all

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LABEL_CHARACTERS = 16
"""Of a token on an axis; what is longer is cut."""

LABEL_PIXELS = 7
"""The width of one character of a label."""

_TITLE_PIXELS = 8
_TITLE_LINES = 4
_FAMILY = "DejaVu Sans Mono, Menlo, Consolas, monospace"
# seven, so that they and the eight colours meet anew in each of the first 224 lines with the dashes
MARKS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Theme:
    """Colours of a figure.

    Attributes:
        name: `light` or `dark`.
        template: plotly's, which the other colours are laid over.
        paper: behind everything.
        text: letters and numbers.
        grid: lines that guide the eye.
        blank: cells without a value; never a colour of a value.
        rising: from zero to the most. Its lightness runs one way, so it holds for every colour
            vision and in grey.
        diverging: least, zero, most: blue against orange, told apart by every colour vision.
        colours: for things without an order (Okabe and Ito 2008).
    """

    name: str
    template: str
    paper: str
    text: str
    grid: str
    blank: str
    rising: tuple[str, ...]
    diverging: tuple[str, ...]
    colours: tuple[str, ...]


LIGHT = Theme(
    name="light", template="plotly_white", paper="#ffffff", text="#1f2328", grid="#e4e7eb",
    blank="#e2e2e2",
    rising=("#f7fbff", "#d2e3f3", "#9ac8e0", "#529dcc", "#1c6cb1", "#08306b"),
    diverging=("#1c6cb1", "#9ac8e0", "#f7f7f7", "#f4a582", "#b35806"),
    colours=(
        "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c8c8c",
    ),
)  # fmt: skip
DARK = Theme(
    name="dark", template="plotly_dark", paper="#14171c", text="#e6e8eb", grid="#343a43",
    blank="#3a3d42",
    rising=("#0c1620", "#12344f", "#1a5c8e", "#3b8fc7", "#86c5ec", "#f2faff"),
    diverging=("#7cc0f5", "#2f6ea5", "#17191d", "#a5591b", "#ffae60"),
    colours=(
        "#56b4e9", "#e69f00", "#1fbf92", "#e09bc3", "#f0e442", "#f0783c", "#ffffff", "#9e9e9e",
    ),
)  # fmt: skip
_THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def theme_of(name: str) -> Theme:
    """The theme of a name.

    Raises:
        InputError: neither `light` nor `dark`.

    Example:
        >>> theme_of("dark").paper
        '#14171c'
    """
    if not isinstance(name, str) or name not in _THEMES:
        raise InputError(f"a figure's theme is 'light' or 'dark'; got {shown(name)}.")
    return _THEMES[name]


def lay_out(
    figure: Figure,
    theme: Theme,
    title: str | None,
    *,
    size: tuple[int, int],
    margin: tuple[int, int, int, int],
) -> None:
    """Give a figure its theme, size, margins and title.

    Args:
        figure: what to lay out.
        theme: its colours.
        title: any text; long ones are broken into lines, for which the figure grows.
        size: width and height in pixels, with a title of one line.
        margin: left, right, top, bottom.
    """
    lines = title_lines(title, size[0])
    more = 18 * max(0, len(lines) - 1)
    left, right, top, bottom = margin
    figure.update_layout(
        template=theme.template,
        paper_bgcolor=theme.paper,
        plot_bgcolor=theme.paper,
        font={"family": _FAMILY, "size": 11, "color": theme.text},
        width=size[0],
        height=size[1] + more,
        margin={"l": left, "r": right, "t": top + more, "b": bottom},
        hoverlabel={"font": {"family": _FAMILY, "size": 12}},
    )
    if lines:
        figure.update_layout(
            title={
                "text": "<br>".join(lines), "x": 0.5, "xanchor": "center", "font": {"size": 13},
                "y": 1 - 20 / (size[1] + more), "yanchor": "top",
            }
        )  # fmt: skip


def title_lines(title: str | None, width: int) -> list[str]:
    """A title in lines that fit a width in pixels, safe to show; none for None or blanks.

    Raises:
        InputError: no text.
    """
    return [escaped(line) for line in broken(title, max(16, (width - 40) // _TITLE_PIXELS))]


def broken(title: str | None, room: int) -> list[str]:
    """A title in at most four readable lines of `room` characters; a last … tells of more.

    Raises:
        InputError: no text.
    """
    if title is None:
        return []
    lines = as_text(title, "title").splitlines()
    found = [part for line in lines for part in textwrap.wrap(readable(line), room)]
    if len(found) > _TITLE_LINES:
        found = [*found[: _TITLE_LINES - 1], f"{found[_TITLE_LINES - 1][: room - 1]}…"]
    return found


def as_text(value: object, argument: str) -> str:
    """A text that a caller passed.

    Raises:
        InputError: something else.
    """
    if not isinstance(value, str):
        raise InputError(f"{argument} is a text; got {shown(value)}.")
    return value


def escaped(text: str) -> str:
    """Text that plotly shows as it is.

    Plotly reads tags and entities in all of its texts (no entity for quotes), `%{` in what shows at
    the mouse, and, on pages that hold MathJax, formulas between dollar signs.

    Example:
        >>> escaped("<b>$x$")
        '&lt;b&gt;&#36;x&#36;'
    """
    safe = html.escape(text, quote=False)
    return safe.replace("$", "&#36;").replace("%{", "&#37;{")


def readable(text: str) -> str:
    """Running text with the characters that a reader would not see named.

    Example:
        >>> readable("a\u202eb c")
        'a<U+202E>b c'
    """
    return "".join(map(_named, text))


def named(text: str, most: int = 60) -> str:
    """A name, such as a head's or a kind's, safe to show: readable, cut and escaped."""
    return escaped(_short(readable(text), most))


def token_labels(
    tokens: Sequence[str] | None, count: int, *, argument: str, what: str, of: str = "pattern"
) -> list[str]:
    """One safe label per position: visible tokens, or the positions themselves.

    Args:
        tokens: vocabulary strings; None: positions.
        count: how many there must be.
        argument: what messages call them.
        what: what they stand for, in the plural.
        of: what has that many.

    Raises:
        InputError: not strings, or another number of them.

    Example:
        >>> token_labels(["Ġthe", "<s>"], 2, argument="tokens", what="keys")
        ['·the', '&lt;s&gt;']
    """
    if tokens is None:
        return [str(i) for i in range(count)]
    if not _is_list(tokens) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{argument} must be one string per position, such as tokens.strings[0].")
    if len(tokens) != count:
        raise InputError(f"the {of} has {count} {what} and {argument}= has {len(tokens)} strings.")
    return [escaped(_short(text, LABEL_CHARACTERS)) for text in visible_all(tokens)]


def head_names(
    heads: Sequence[object] | None, n_heads: int, of: str = "pattern", most: int = 60
) -> list[str]:
    """One safe name per head; without names `head 0`, …, and nothing where there is one head.

    Args:
        heads: their names; one head's may stand alone.
        n_heads: how many there must be.
        of: what has that many.
        most: characters of a name.

    Raises:
        InputError: another number of names, or no list of them.
    """
    if heads is None:
        return [f"head {i}" for i in range(n_heads)] if n_heads > 1 else [""]
    if not isinstance(heads, str) and not _is_list(heads):
        raise InputError(f"heads= is one name per head; got {shown(heads)}.")
    names = [heads] if isinstance(heads, str) else [str(head) for head in heads]
    if len(names) != n_heads:
        raise InputError(f"the {of} has {n_heads} heads and heads= names {len(names)}.")
    return [named(name, most) for name in names]


def room(labels: Sequence[str]) -> int:
    """Pixels for the longest label; labels are escaped, and &lt; is one character."""
    return LABEL_PIXELS * max((len(html.unescape(label)) for label in labels), default=0) + 10


def _is_list(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _named(character: str) -> str:
    hidden = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    if unicodedata.category(character) in hidden:
        return f"<U+{ord(character):04X}>"
    return character
