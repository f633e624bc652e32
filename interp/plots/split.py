"""How a vector per token becomes a vector per token and head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from plotly.graph_objects import Figure, Heatmap
from plotly.subplots import make_subplots
from torch import Tensor

from ..errors import InputError, shown
from ..plain_numbers import as_index
from .head_grid import range_of
from .style import (
    LABEL_PIXELS,
    Theme,
    as_text,
    head_names,
    lay_out,
    named,
    room,
    theme_of,
    token_labels,
)
from .weights import MAX_HEADS, as_array

_MOST_CELLS = 2**20
_ACROSS = 8  # heads beside one another
_WIDE = 760  # pixels
_BETWEEN = 24
_LEAST_CELL, _HIGHEST = 3, 6000  # a token at least; all panels at most
_SHARED = ("k", "rot_k", "v")


def plot_split(
    vectors: Float[Tensor, "*shape"] | Float[np.ndarray, "*shape"],
    *,
    tokens: Sequence[str] | None = None,
    n_heads: int | None = None,
    heads: Sequence[object] | None = None,
    what: str = "q",
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw queries, keys or values twice: whole, and cut into heads.

    Above is the matrix T × d that a projection gives, one row per token; below are its n_heads
    slices of d_head = d / n_heads columns each, T × n_heads × d_head: head h has the columns
    h · d_head to (h + 1) · d_head − 1. Orange is above zero, blue below.

    Args:
        vectors: [pos, d] with `n_heads`, or [pos, head, d_head], as `capture` keeps them; a batch
            of one in front is allowed.
        tokens: vocabulary strings, one per position.
        n_heads: how many heads the columns belong to.
        heads: one name per head, such as `["L0KV0", "L0KV1"]` of keys and values; None: `head 0`,
            `head 1`, … or `KV head 0`, ….
        what: what the vectors are, such as `q`; `k`, `rot_k` and `v` belong to key-value heads,
            which several query heads may share.
        title: of the figure; None tells the shapes.
        theme: `light` or `dark`.

    Raises:
        InputError: another shape, columns that do not divide into the heads, numbers that are not
            finite, more than 64 heads, names that do not fit, or more numbers or tokens than fit on
            a page.

    Example:
        >>> import torch
        >>> figure = plot_split(torch.arange(12.0).reshape(2, 6), n_heads=3, what="k")
        >>> figure.layout.title.text
        'k: 2 tokens × 6 → 2 tokens × 3 key-value heads × 2'
        >>> figure.data[2].z.tolist()  # after the whole and head 0: head 1
        [[2.0, 3.0], [8.0, 9.0]]
    """
    cells = _read(vectors, n_heads)
    n_tokens, n, d_head = cells.shape
    chosen = theme_of(theme)
    labels = token_labels(tokens, n_tokens, argument="tokens", what="positions", of="vectors")
    shared = as_text(what, "what") in _SHARED
    told_names = head_names(_names(heads, n, shared), n, "split")
    short = head_names(_names(heads, n, shared), n, "split", _WIDE // _across(n) // LABEL_PIXELS)
    sort = "key-value heads" if shared else "heads"
    figure, size = _panels(cells.shape, labels, [f"all {n} {sort}", *short])
    told = "dimension %{x:d}<br>token %{y:d}  %{y}<br>%{z:.4~g}<extra>" + named(what) + "</extra>"
    figure.add_trace(
        Heatmap(z=cells.reshape(n_tokens, -1), coloraxis="coloraxis", hovertemplate=told),
        row=1, col=1,
    )  # fmt: skip
    for head, name in enumerate(told_names):
        row, column = divmod(head, _across(n))
        own = told.replace("<extra>", f"<extra>{name} of ")
        figure.add_trace(
            Heatmap(z=cells[:, head], coloraxis="coloraxis", hovertemplate=own),
            row=row + 2, col=column + 1,
        )  # fmt: skip
    for edge in range(1, n):
        line: dict[str, Any] = {"x0": edge * d_head - 0.5, "x1": edge * d_head - 0.5}
        line |= {"y0": 0, "y1": 1, "yref": "y domain", "xref": "x"}
        figure.add_shape(type="line", line={"color": chosen.text, "width": 2}, **line)
    d = n * d_head
    shown_title = f"{what}: {n_tokens} tokens × {d} → {n_tokens} tokens × {n} {sort} × {d_head}"
    _finish(figure, cells, labels, shown_title if title is None else title, size, chosen)
    figure.update_layout(coloraxis_colorbar_title_text=named(what, 12))
    return figure


def _read(vectors: Any, n_heads: int | None) -> Float[np.ndarray, "pos head d_head"]:
    cells = as_array(vectors, "what is split")
    shape = tuple(cells.shape)
    n = None if n_heads is None else as_index(n_heads)
    if n_heads is not None and (n is None or not 1 <= n <= MAX_HEADS):
        raise InputError(f"n_heads is a whole number from 1 to {MAX_HEADS}; got {shown(n_heads)}.")
    if cells.ndim > 2 and shape[0] == 1 and (cells.ndim == 4 or n not in (None, shape[1])):
        cells = cells[0]
    if cells.ndim == 2 and n is not None:
        if shape[-1] % n or not shape[-1]:
            raise InputError(f"{shape[-1]} columns do not divide into {n} heads.")
        cells = cells.reshape(len(cells), n, -1)
    if cells.ndim != 3 or 0 in cells.shape or n not in (None, cells.shape[1]):
        raise InputError(
            f"what is split is [pos, d] with n_heads=, or [pos, head, d_head]; got the shape "
            f"{shape} and n_heads={n_heads!r}."
        )
    if cells.shape[1] > MAX_HEADS or cells.size > _MOST_CELLS:
        raise InputError(
            f"{cells.shape[1]} heads and {cells.size:,} numbers do not fit on one page; pass at "
            f"most {MAX_HEADS} and {_MOST_CELLS:,}, such as fewer tokens."
        )
    if not np.isfinite(cells).all():
        raise InputError("what is split holds a number that is not finite.")
    return cells


def _across(n: int) -> int:
    """How many heads stand beside one another, so that rows are about equally full."""
    return -(-n // -(-n // _ACROSS))


def _names(heads: Sequence[object] | None, n: int, shared: bool) -> Sequence[object]:
    if heads is not None:
        return heads
    return [f"{'KV head' if shared else 'head'} {head}" for head in range(n)]


def _panels(
    shape: tuple[int, ...], labels: list[str], titles: list[str]
) -> tuple[Figure, tuple[int, int, int]]:
    """An empty figure: the whole above, the heads below; its width, height and left margin."""
    n_tokens, n, _ = shape
    across = _across(n)
    down = -(-n // across)
    high = max(90, min(16, max(_LEAST_CELL, 320 // n_tokens)) * n_tokens)
    left = room(labels) + 40
    total = (1 + down) * high + down * (_BETWEEN + 30)
    if total > _HIGHEST:
        most = (_HIGHEST - down * (_BETWEEN + 30)) // (1 + down) // _LEAST_CELL
        raise InputError(
            f"{n_tokens} tokens of {n} heads make too high a picture; pass at most {most} tokens."
        )
    specs: list[list[Any]] = [[{"colspan": across}, *[None] * (across - 1)]]
    specs += [[{} for _ in range(across)] for _ in range(down)]
    figure = make_subplots(
        rows=1 + down, cols=across, specs=specs, subplot_titles=titles,
        vertical_spacing=(_BETWEEN + 30) / total, horizontal_spacing=min(0.02, 0.5 / across),
    )  # fmt: skip
    figure.update_annotations(font_size=11)
    for empty in range(n, across * down):
        row, column = divmod(empty, across)
        figure.update_xaxes(visible=False, row=row + 2, col=column + 1)
        figure.update_yaxes(visible=False, row=row + 2, col=column + 1)
    return figure, (left + _WIDE + 110, 90 + total + 60, left)


def _finish(
    figure: Figure,
    cells: np.ndarray,
    labels: list[str],
    title: str,
    size: tuple[int, int, int],
    theme: Theme,
) -> None:
    wide, high, left = size
    lay_out(figure, theme, title, size=(wide, high), margin=(left, 110, 90, 60))
    n_tokens, n, d_head = cells.shape
    # all tick texts stay, because hover reads them; annotations label some
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(n_tokens)), ticktext=labels, showgrid=False,
        zeroline=False, range=[n_tokens - 0.5, -0.5], showticklabels=False,
    )  # fmt: skip
    for first in [0, *range(1, n + 1, _across(n))]:
        suffix = str(first + 1) if first else ""
        for place in range(0, n_tokens, -(-n_tokens // 20)):
            figure.add_annotation(
                text=labels[place], y=place, yref=f"y{suffix}", x=0, xref=f"x{suffix} domain",
                xanchor="right", yanchor="middle", showarrow=False,
            )  # fmt: skip
    figure.update_xaxes(showgrid=False, zeroline=False, tickformat="d", range=[-0.5, d_head - 0.5])
    figure.update_xaxes(nticks=4)
    figure.update_xaxes(range=[-0.5, n * d_head - 0.5], row=1, col=1, nticks=16)
    figure.update_xaxes(title_text="dimension", title_standoff=6, row=1 + -(-n // _across(n)))
    colours = range_of(cells, theme, middle=0.0, share=0.995)
    figure.update_layout(coloraxis={**colours, "colorbar": {"thickness": 14, "nticks": 6}})
