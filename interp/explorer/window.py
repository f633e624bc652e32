"""Which exact parts of long patterns a page shall hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import InputError, shown
from ..heads import HeadId

_FORM = re.compile(
    r"(?P<heads>[^@]+)@(?P<rows>\d{1,9}:\d{1,9})(?:,(?P<keys>\d{1,9}:\d{1,9}))?", re.ASCII
)
_MOST_CELLS = 2**22  # of one head: 2,048 x 2,048
_LONGEST = 8192  # as long as browsers draw
_ALL = "all"


@dataclass(frozen=True)
class Window:
    """The exact weights of some rows on some keys, written `L18H6,L17H3@1024:1280,0:256`.

    Args:
        rows: the first query and the one behind the last.
        keys: the first key and the one behind the last.
        heads: whose; None: of every head on the page.

    Example:
        >>> Window.parse("L18H6@1024:1280,0:256")
        Window(rows=(1024, 1280), keys=(0, 256), heads=(L18H6,))
        >>> Window.parse("all@0:64")
        Window(rows=(0, 64), keys=(0, 64), heads=None)
    """

    rows: tuple[int, int]
    keys: tuple[int, int]
    heads: tuple[HeadId, ...] | None = None

    def __post_init__(self) -> None:
        for start, stop in (self.rows, self.keys):
            if not 0 <= start < stop:
                raise InputError(
                    f"a range is START:STOP with START below STOP; got {start}:{stop}."
                )
            if stop - start > _LONGEST:
                raise InputError(
                    f"a window is at most {_LONGEST:,} queries or keys long; got {start}:{stop}."
                )
        if self.n_cells > _MOST_CELLS:
            raise InputError(
                f"a window of {self.rows[1] - self.rows[0]:,} queries on "
                f"{self.keys[1] - self.keys[0]:,} keys has {self.n_cells:,} weights per head, over "
                f"{_MOST_CELLS:,}; ask for several smaller ones."
            )

    @classmethod
    def parse(cls, text: str | Window) -> Window:
        """Read `HEADS@ROWS` or `HEADS@ROWS,KEYS`; keys are those of the rows where unsaid.

        Raises:
            InputError: the text has another form, or a range is empty or too large.
        """
        if isinstance(text, Window):
            return text
        match = _FORM.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
        if match is None:
            raise InputError(
                f"a window is written L18H6@1024:1280 (queries and keys 1024 to 1279) or "
                f"L18H6@1024:1280,0:256 (keys 0 to 255); heads are separated by commas, or all; "
                f"got {shown(text)}."
            )
        rows = _range(match["rows"])
        keys = rows if match["keys"] is None else _range(match["keys"])
        return cls(rows, keys, _heads(match["heads"]))

    @property
    def n_cells(self) -> int:
        """Weights per head."""
        return (self.rows[1] - self.rows[0]) * (self.keys[1] - self.keys[0])

    def check(self, n_tokens: int, heads: tuple[HeadId, ...]) -> None:
        """Refuse a window that lies outside of the text, or of heads that are not on the page.

        Raises:
            InputError: it does.
        """
        for name, (start, stop) in (("queries", self.rows), ("keys", self.keys)):
            if stop > n_tokens:
                raise InputError(
                    f"a window asks for {name} {start}:{stop}, but the text has {n_tokens} tokens."
                )
        strange = [head for head in self.heads or () if head not in heads]
        if strange:
            raise InputError(
                f"a window asks for {strange[0]}, which is not on the page of {len(heads)} heads; "
                f"the last is {heads[-1]}."
            )


def _range(text: str) -> tuple[int, int]:
    start, stop = map(int, text.split(":"))
    return start, stop


def _heads(text: str) -> tuple[HeadId, ...] | None:
    names = [name for name in text.split(",") if name]
    if names == [_ALL]:
        return None
    return tuple(dict.fromkeys(HeadId.parse(name) for name in names))
