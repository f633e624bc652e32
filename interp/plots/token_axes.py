"""Labels of maps of tokens by tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .style import token_labels


@dataclass(frozen=True)
class Axes:
    """Labels, escaped: `x` one per key, `y` one per query, which tell `positions` or do not."""

    x: list[str]
    y: list[str]
    positions: bool = False


def read_axes(
    shape: tuple[int, ...],
    tokens: Sequence[str] | None,
    keys: Sequence[str] | None,
    rows: Sequence[int] | None = None,
) -> Axes:
    """Labels of a map [query, key]; tokens name the keys too where these are as many.

    With `rows`, the positions of the queries, tokens that are as many as the keys are those of the
    whole text, and the labels of queries start with their positions.

    Raises:
        InputError: other numbers of strings, or no strings.
    """
    n_query, n_key = shape
    fits = n_query if rows is None else len(tokens or ())
    both = keys is None and tokens is not None and fits == n_key
    x, argument = (tokens, "tokens") if both else (keys, "keys")
    if rows is None:
        y_labels = token_labels(tokens, n_query, argument="tokens", what="queries")
        return Axes(token_labels(x, n_key, argument=argument, what="keys"), y_labels)
    x_labels = token_labels(x, n_key, argument=argument, what="keys")
    own = [int(row) for row in rows]
    if tokens is None:
        return Axes(x_labels, [str(row) for row in own], positions=True)
    if both and max(own) < n_key:
        y_labels = [x_labels[row] for row in own]
    else:
        y_labels = token_labels(tokens, n_query, argument="tokens", what="queries")
    told = [f"{row} {label}" for row, label in zip(own, y_labels, strict=True)]
    return Axes(x_labels, told, positions=True)
