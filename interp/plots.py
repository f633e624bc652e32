"""Attention patterns as pictures that can be trusted and passed on."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .errors import InputError
from .files import atomic_write
from .visible import visible_all

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_MAX_HEADS = 64
_MAX_CELLS = 16 * 2**20  # some 45 MB of HTML
_LABEL_CHARACTERS = 16


def plot_pattern(
    pattern: Float[Tensor, "*shape"] | Float[np.ndarray, "*shape"],
    *,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    heads: Sequence[object] | None = None,
    title: str | None = None,
    sinks: bool = False,
    max_weight: float = 1.0,
) -> Figure:
    """Draw attention weights: queries down (the first at the top), keys across.

    The cell (i, j) is A[i, j], the weight of key j in query i's softmax. Weights above the diagonal
    of a causal pattern and the rows of dead queries (all zero) are left blank, which is not the
    colour of zero.

    Args:
        pattern: weights after the softmax, [query, key], [head, query, key] (one panel per head)
            or [1, head, query, key].
        tokens: vocabulary strings of the queries, and of the keys where `keys` is not given.
            Hover shows all of them, long axes label some. None: positions.
        keys: vocabulary strings of the keys.
        heads: one name per head, such as `["L18H6"]`; None: `head 0`, `head 1`, …
        title: of the figure.
        sinks: rows may sum to less than 1, as in models whose softmax has a sink logit.
        max_weight: the weight that gets the darkest colour, for patterns of small weights.

    Returns:
        A plotly figure; nothing is shown or written (`write_figure` writes).

    Raises:
        InputError: not weights (NaN, negative, rows that do not sum to 1), more than one sequence,
            more than 64 heads, or tokens and names that do not fit the shape.

    Example:
        >>> weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
        >>> figure = plot_pattern(weights, tokens=["Ġa", "Ġcat"], heads=["L0H0"])
        >>> figure.layout.xaxis.ticktext
        ('·a', '·cat')
        >>> figure.data[0].z.tolist()
        [[1.0, nan], [0.25, 0.75]]
    """
    weights = _weights(pattern)
    _check_rows(weights, sinks, 1e-4 if _is_precise(pattern) else 1e-2)
    if not 0 < max_weight <= 1:
        raise InputError(f"max_weight must lie in (0, 1]; got {max_weight}.")
    n_heads, n_query, n_key = weights.shape
    if keys is None and tokens is not None and n_query == n_key:
        keys = tokens
    names = _head_names(heads, n_heads)
    y_labels = _labels(tokens, n_query, "tokens", "queries")
    x_labels = _labels(keys, n_key, "keys" if keys is not tokens else "tokens", "keys")
    from .pattern_figure import draw  # plotly takes its time: only where a figure is wanted

    return draw(
        _blanked(weights),
        x_labels=x_labels,
        y_labels=y_labels,
        names=names,
        title=None if title is None else _escaped(title),
        max_weight=max_weight,
    )


def check_figure_suffix(path: str | os.PathLike[str]) -> str:
    """The lower-case suffix of a figure's file, .html or .json.

    Raises:
        InputError: another suffix.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".html", ".json"):
        raise InputError(f"a figure is written as .html or .json; got {str(path)!r}.")
    return suffix


def write_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as `.html` (one page that needs no network) or `.json` (plotly's format).

    Raises:
        InputError: another suffix, or a path that cannot be written.
    """
    suffix = check_figure_suffix(path)
    with atomic_write(path) as temporary:
        if suffix == ".json":
            text = str(figure.to_json())
        else:
            config = {"displaylogo": False, "responsive": True}
            text = figure.to_html(include_plotlyjs=True, config=config, div_id="headatlas")
        temporary.write_text(text, "utf-8")


def _is_precise(pattern: Any) -> bool:
    return pattern.dtype not in (torch.float16, torch.bfloat16, np.dtype(np.float16))


def _weights(pattern: Any) -> np.ndarray:
    """The pattern as float64 [head, query, key]."""
    if isinstance(pattern, Tensor):
        pattern = pattern.detach().to("cpu", torch.float64).numpy()
    if not isinstance(pattern, np.ndarray):
        raise InputError(f"a pattern is a tensor or an array; got {type(pattern).__name__}.")
    weights, shape = pattern.astype(np.float64), pattern.shape
    if weights.ndim == 4:
        if shape[0] != 1:
            raise InputError(
                f"one sequence at a time; the pattern is {shape}. Pass pattern[0], say."
            )
        weights = weights[0]
    if weights.ndim == 2:
        weights = weights[None]
    if weights.ndim != 3 or 0 in weights.shape:
        raise InputError(f"a pattern is [query, key] or [head, query, key]; got the shape {shape}.")
    if weights.shape[0] > _MAX_HEADS:
        raise InputError(
            f"{weights.shape[0]} heads do not fit on one page; pass at most {_MAX_HEADS}."
        )
    if weights.size > _MAX_CELLS:
        raise InputError(
            f"{weights.size:,} weights make too large a page (at most {_MAX_CELLS:,}); "
            f"pass fewer heads or a shorter text."
        )
    return weights


def _check_rows(weights: np.ndarray, sinks: bool, tolerance: float) -> None:
    def place(bad: np.ndarray) -> str:
        index = np.unravel_index(bad.argmax(), bad.shape)
        return f"({', '.join(str(int(i)) for i in index)})"

    bad = ~np.isfinite(weights)
    if bad.any():
        raise InputError(
            f"pattern weights must be finite; (head, query, key) {place(bad)} is not. "
            f"Pass post-softmax weights of a model without NaN."
        )
    bad = weights < 0
    if bad.any():
        raise InputError(
            f"pattern weights must not be negative; (head, query, key) {place(bad)} is. "
            f"Pass post-softmax weights, not scores."
        )
    sums = weights.sum(axis=-1)
    bad = sums > 1 + tolerance
    if not sinks:
        bad |= (sums < 1 - tolerance) & (sums > 0)
    if bad.any():
        total = sums.reshape(-1)[bad.argmax()]
        less = " (sinks=True allows less than 1, for models with sink logits)" if total < 1 else ""
        raise InputError(
            f"pattern rows must sum to 1; row (head, query) {place(bad)} sums to {total:.4g}. "
            f"Pass post-softmax weights, not scores{less}."
        )


def _blanked(weights: np.ndarray) -> np.ndarray:
    """NaN where a causal mask forbids a key, and in the rows of dead queries."""
    _, n_query, n_key = weights.shape
    # with a cache the last query stands on the last key
    own_key = np.arange(n_query)[:, None] + (n_key - n_query)
    later = np.arange(n_key)[None] > own_key
    dead = weights.sum(axis=-1, keepdims=True) == 0
    causal = not weights[:, later].any()
    return np.where(dead | (later if causal else False), np.nan, weights)


def _head_names(heads: Sequence[object] | None, n_heads: int) -> list[str]:
    if heads is None:
        return [f"head {i}" for i in range(n_heads)] if n_heads > 1 else [""]
    names = [str(heads)] if isinstance(heads, str) else [str(head) for head in heads]
    if len(names) != n_heads:
        raise InputError(f"the pattern has {n_heads} heads and heads= names {len(names)}.")
    return [_escaped(name) for name in names]


def _labels(tokens: Sequence[str] | None, count: int, argument: str, what: str) -> list[str]:
    if tokens is None:
        return [str(i) for i in range(count)]
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{argument} must be one string per position, such as tokens.strings[0].")
    if len(tokens) != count:
        raise InputError(
            f"the pattern has {count} {what} and {argument}= has {len(tokens)} strings."
        )
    return [_escaped(_short(text)) for text in visible_all(tokens)]


def _short(text: str) -> str:
    return text if len(text) <= _LABEL_CHARACTERS else text[: _LABEL_CHARACTERS - 1] + "…"


def _escaped(text: str) -> str:
    # plotly reads tags and these three entities in all of its texts, and no entity for quotes
    return html.escape(text, quote=False)
