"""All heads at a glance: a number, or what each does, by layer and head."""

from __future__ import annotations

import string
from collections import Counter
from typing import Any

import numpy as np
from plotly.graph_objects import Figure

from ..errors import InputError
from .head_grid import HeadPanel, draw_heads, range_of
from .head_values import HeadValues, read_head_values
from .style import Theme, escaped, named, readable, theme_of

_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_BAR_ROW = 20  # pixels of a category's name beside the colours


def plot_head_map(
    values: Any,
    *,
    kind: str | None = None,
    value: str | None = None,
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw one value per head: layers down (the first at the top), heads across.

    Numbers that are all at least 0 get colours that rise from 0; where one is negative, colours
    diverge around 0. Words, such as kinds, get a colour and a letter each. Heads without a value
    stay blank. The stacks of an encoder-decoder model stand beside one another. Hover tells a
    head's address and its value, with the interval where the table has `low` and `high`.

    Args:
        values: an array [layer, head] (NaN: no value); a DataFrame with the columns layer and head
            (and site, for models of several stacks); or anything that has such a table as `rows`,
            as a `HeadAtlas`.
        kind: only the rows whose column `kind` says so.
        value: the column to draw, or what an array's numbers are called. None: of a table with
            one row per head its `score` or its only further column; of an atlas without `kind` the
            kind of each head: that of its best grade, of weak or better, and of these that of the
            largest excess.
        title: of the figure; None says what is shown.
        theme: `light` or `dark`.

    Raises:
        InputError: another shape, columns that are missing, several values for a head, infinite
            numbers, or no value at all.

    Example:
        >>> figure = plot_head_map(np.array([[0.1, -0.3], [np.nan, 0.2]]), value="Δ loss")
        >>> figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax
        (-0.3, 0.3)
        >>> import pandas as pd
        >>> table = pd.DataFrame({"layer": [0, 0], "head": [0, 1], "does": ["copies", "rests"]})
        >>> plot_head_map(table, value="does").layout.coloraxis.colorbar.ticktext
        ('B rests (1)', 'A copies (1)')
    """
    chosen = theme_of(theme)
    found = read_head_values(values, kind, value)
    words = found.cells.dtype.kind == "O"
    panels = [(_of_words if words else _of_numbers)(found, site, chosen) for site in found.sites]
    shown = found.said if title is None else title
    return draw_heads(panels, across=len(panels), title=shown, theme=chosen)


def _of_numbers(found: HeadValues, site: str, theme: Theme) -> HeadPanel:
    """A map of numbers; all stacks share their colours."""
    numbers = found.cells.astype(float)
    signed = bool((numbers < 0).any())
    name, ends = named(found.name), "%{customdata[0]:.4~g}, %{customdata[1]:.4~g}"
    told = f"{name} %{{z:.4~g}}" + (f"<br>[{ends}]" if found.ends is not None else "")
    return HeadPanel(
        name=_above(site),
        cells=found.grid(site, numbers),
        colours=range_of(numbers, theme, middle=0.0 if signed else None),
        told=told,
        bar={"title": {"text": named(found.name, 24), "font": {"size": 10}}},
        details=None if found.ends is None else found.grid(site, found.ends),
        prefix=_prefix(site),
    )


def _of_words(found: HeadValues, site: str, theme: Theme) -> HeadPanel:
    """A map of words, the most frequent first; all stacks share their colours."""
    counts = Counter(word for word in found.cells.tolist() if isinstance(word, str))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    n = len(words)
    if n > len(_LETTERS):
        raise InputError(
            f"{n} different words cannot be told apart by a letter; draw at most {len(_LETTERS)}."
        )
    # colour bars count from below, and the first word stands at the top
    codes = {word: n - 1 - place for place, word in enumerate(words)}
    numbers = np.array([codes.get(word, np.nan) for word in found.cells.tolist()], float)
    cells = found.grid(site, numbers)
    shown = {codes[word]: escaped(readable(word)[:60]) for word in words}
    letters = dict(zip(codes.values(), _LETTERS, strict=False))
    texts, signs = (
        [[by_code.get(code, "") for code in row] for row in cells.tolist()]
        for by_code in (shown, letters)
    )
    return HeadPanel(
        name=_above(site),
        cells=cells,
        colours={"colorscale": _steps(n, theme), "cmin": -0.5, "cmax": n - 0.5},
        told="%{customdata}",
        bar={
            "tickvals": [*range(n)],
            "ticktext": [
                f"{letters[codes[word]]} {named(word, 34) or '∅'} ({counts[word]})"
                for word in reversed(words)
            ],
            "nticks": 0, "len": max(60, _BAR_ROW * n + 20),
            "title": {"text": named(found.name, 24), "font": {"size": 10}},
        },
        details=np.array(texts, object),
        signs=signs,
        prefix=_prefix(site),
    )  # fmt: skip


def _steps(n: int, theme: Theme) -> list[tuple[float, str]]:
    """A scale of n colours without anything between them, the first at the top."""
    colours = [theme.colours[place % len(theme.colours)] for place in range(n)][::-1]
    return [
        (edge / n, colour) for place, colour in enumerate(colours) for edge in (place, place + 1)
    ]


def _above(site: str) -> str:
    return {"": "", "enc": "encoder", "dec": "decoder", "cross": "cross-attention"}.get(
        site, named(site)
    )


def _prefix(site: str) -> str:
    return f"{named(site)}." if site else ""
