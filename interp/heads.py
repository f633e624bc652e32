"""The addresses of attention heads: query heads, and the key-value heads they share."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeGuard

from .errors import InputError, shown
from .plain_numbers import as_index

_MOST = 9999  # as the pattern has it
_PATTERN = re.compile(r"(?:(enc|dec|cross)\.)?L(\d{1,4})(H|KV)(\d{1,4})", re.ASCII)


@dataclass(frozen=True, order=True, repr=False)
class HeadId:
    """One attention head: `L18H6`, or `enc.L2H3` in an encoder-decoder model.

    Args:
        site: `""` in a model with one stack, else `enc`, `dec` or `cross`.
        layer: 0-based index of the attention layer within its site.
        head: 0-based index of the query head within its layer.

    Example:
        >>> HeadId.parse("L18H6").layer
        18
        >>> [HeadId("", 18, 6), HeadId("cross", 2, 3)]
        [L18H6, cross.L2H3]
        >>> HeadId.parse((18, 6))
        L18H6
    """

    site: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{_prefix(self.site)}L{self.layer}H{self.head}"

    __repr__ = __str__  # lists of heads are what people read most

    @classmethod
    def parse(cls, text: str | HeadId | tuple[int, int]) -> HeadId:
        """Read a head's address; a pair is (layer, head), a `HeadId` is returned as it is.

        Raises:
            InputError: the text is not of the form `L18H6` or `enc.L2H3`.
        """
        if isinstance(text, HeadId):
            return text
        if _is_pair(text):
            return cls("", operator.index(text[0]), operator.index(text[1]))
        match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[3] != "H":
            raise InputError(
                f"a head is written L18H6 (or enc.L2H3, dec.L2H3, cross.L2H3); got {shown(text)}."
            )
        return cls(match[1] or "", int(match[2]), int(match[4]))


@dataclass(frozen=True, order=True, repr=False)
class KvHeadId:
    """One key-value head, shared by a group of query heads: `L18KV2`, or `cross.L2KV1`.

    Query heads h with h // (n_heads / n_kv_heads) = kv_head read it.

    Args:
        site: as in `HeadId`.
        layer: as in `HeadId`.
        kv_head: 0-based index of the key-value head within its layer.

    Example:
        >>> KvHeadId.parse("L18KV2")
        L18KV2

    Reference: Ainslie et al. 2023 (grouped-query attention).
    """

    site: str
    layer: int
    kv_head: int

    def __str__(self) -> str:
        return f"{_prefix(self.site)}L{self.layer}KV{self.kv_head}"

    __repr__ = __str__

    @classmethod
    def parse(cls, text: str | KvHeadId) -> KvHeadId:
        """Read a key-value head's address; a `KvHeadId` is returned as it is.

        Raises:
            InputError: the text is not of the form `L18KV2` or `enc.L2KV1`.
        """
        if isinstance(text, KvHeadId):
            return text
        match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[3] != "KV":
            raise InputError(
                f"a key-value head is written L18KV2 (or cross.L2KV1); got {shown(text)}."
            )
        return cls(match[1] or "", int(match[2]), int(match[4]))


Heads = str | HeadId | KvHeadId | Sequence[str | HeadId | KvHeadId | Sequence[int] | int]
"""One head or several, as people name them; a pair of numbers is (layer, query head)."""


def parse_head(text: str | HeadId | KvHeadId | tuple[int, int]) -> HeadId | KvHeadId:
    """Read the address of a query head or of a key-value head; a pair is (layer, query head).

    Raises:
        InputError: the text is neither.

    Example:
        >>> parse_head("L1H3"), type(parse_head("cross.L1KV0")).__name__
        (L1H3, 'KvHeadId')
    """
    if isinstance(text, HeadId | KvHeadId):
        return text
    if _is_pair(text):
        return HeadId.parse(text)  # pyright: ignore[reportArgumentType]
    match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        several = isinstance(text, str) and len(text.replace(",", " ").split()) > 1
        raise InputError(
            f"a head is written L18H6, a key-value head L18KV2 (after enc., dec. or cross. in an "
            f"encoder-decoder model); got {shown(text)}."
            + " Several are passed as a list, ['L18H6', 'L17H3']."
            * several
        )
    kind = HeadId if match[3] == "H" else KvHeadId
    return kind(match[1] or "", int(match[2]), int(match[4]))


def one_or_more(heads: Any) -> Any:
    """Heads as given, but a single one as a list of one, so that all can be gone through.

    Raises:
        InputError: what was given holds no heads, such as a result of which they are a field.

    Example:
        >>> one_or_more("L0H1"), one_or_more((0, 1)), one_or_more(["L0H1", (0, 2)])
        (['L0H1'], [(0, 1)], ['L0H1', (0, 2)])
    """
    if isinstance(heads, str | HeadId | KvHeadId) or _is_pair(heads):
        return [heads]
    if isinstance(heads, Iterable):
        return heads
    instead = "one or more of them, such as ['L0H1', 'L2H3']"
    if hasattr(heads, "removed"):
        instead = f"the heads it holds: .removed{'()' * callable(heads.removed)}"
    raise InputError(
        f"heads are names such as 'L0H1', or a collection of them; got {type(heads).__name__}. "
        f"Pass {instead}."
    )


def _is_pair(value: Any) -> TypeGuard[tuple[SupportsIndex, SupportsIndex]]:
    """Whether it is (layer, head), two whole numbers from 0."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    numbers = [as_index(part) for part in value]
    return all(number is not None and 0 <= number <= _MOST for number in numbers)


def _prefix(site: str) -> str:
    return f"{site}." if site else ""
