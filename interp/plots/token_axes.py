"""Labels of maps of tokens by tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .style import token_labels


@dataclass(frozen=True)
class Axes:
    """Labels, escaped: `x` one per key, `y` one per query."""

    x: list[str]
    y: list[str]


def read_axes(
    shape: tuple[int, ...], tokens: Sequence[str] | None, keys: Sequence[str] | None
) -> Axes:
    """Labels of a map [query, key]; tokens name the keys too where these are as many.

    Raises:
        InputError: other numbers of strings, or no strings.
    """
    n_query, n_key = shape
    both = keys is None and tokens is not None and n_query == n_key
    x, argument = (tokens, "tokens") if both else (keys, "keys")
    y_labels = token_labels(tokens, n_query, argument="tokens", what="queries")
    return Axes(token_labels(x, n_key, argument=argument, what="keys"), y_labels)
