"""The address of an attention head."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import InputError

_PATTERN = re.compile(r"(?:(enc|dec|cross)\.)?L(\d{1,4})H(\d{1,4})", re.ASCII)


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
    """

    site: str
    layer: int
    head: int

    def __str__(self) -> str:
        prefix = f"{self.site}." if self.site else ""
        return f"{prefix}L{self.layer}H{self.head}"

    __repr__ = __str__  # lists of heads are what people read most

    @classmethod
    def parse(cls, text: str | HeadId) -> HeadId:
        """Read a head's address; a `HeadId` is returned as it is.

        Raises:
            InputError: the text is not of the form `L18H6` or `enc.L2H3`.
        """
        if isinstance(text, HeadId):
            return text
        match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InputError(
                f"a head is written L18H6 (or enc.L2H3, dec.L2H3, cross.L2H3); got {text!r}."
            )
        return cls(match[1] or "", int(match[2]), int(match[3]))
