"""The page as a value: its size, its file, its look in a notebook."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..files import atomic_write, check_target
from ..heads import HeadId
from ..plain_text import counted
from .facts import Facts
from .page import page_parts
from .read import Patterns

MAX_MIB = 25
_INLINE_MIB = 12  # a notebook keeps what it shows, and many of them open slowly


@dataclass(frozen=True, eq=False, repr=False)
class Explorer:
    """One offline page: the map of heads, their cards, their patterns on a text.

    In a notebook it shows in a frame of its own, which can reach neither the notebook nor the
    network.

    Args:
        parts: the page's source, in pieces.
        n_heads: heads of the map.
        n_drawn: those with a pattern.
        n_tokens: of the text; 0 without one.
        exact: whether every weight is on the page, at most 0.002 off; otherwise the largest of each
            cell of a grid, the strongest keys of each query, and the windows asked for.
    """

    parts: tuple[str, ...]
    n_heads: int
    n_drawn: int
    n_tokens: int
    exact: bool

    @property
    def html(self) -> str:
        """The page's source."""
        return "".join(self.parts)

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return sum(len(part) if part.isascii() else len(part.encode()) for part in self.parts)

    def save(self, path: str | Path) -> Path:
        """Write the page as .html; the file is replaced only once it is complete.

        Raises:
            InputError: another suffix, or the file cannot be written.
        """
        target = check_page(path)
        with atomic_write(target) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(self.parts)
        return target

    def __repr__(self) -> str:
        text = f" × {self.n_tokens:,} tokens" if self.n_tokens else ""
        how = ("" if self.exact else ", pooled") if self.n_tokens else ", no patterns"
        size = self.size_bytes / 2**20
        heads = counted(self.n_heads, "head")
        if 0 < self.n_drawn < self.n_heads:
            heads = f"{self.n_drawn} of {heads}"
        return f"<Explorer: {heads}{text}{how}, {size:.1f} MiB>"

    def _repr_html_(self) -> str:
        if self.size_bytes > _INLINE_MIB * 2**20:
            return (
                f"<p>{html.escape(repr(self))}: over {_INLINE_MIB} MiB, which would stay in the "
                "notebook. Write it with <code>.save('page.html')</code> and open that file, or "
                "explore fewer heads.</p>"
            )
        return (
            '<iframe sandbox="allow-scripts" title="Headatlas explorer" width="100%" height="900" '
            f'style="border:1px solid #8884" srcdoc="{html.escape(self.html)}"></iframe>'
        )


def check_page(path: str | Path) -> Path:
    """The path of a page to write.

    Raises:
        InputError: another suffix than .html, or a path that cannot be written.
    """
    if Path(path).suffix.lower() != ".html":
        raise InputError(f"the explorer is one .html page; got {str(path)!r}.")
    check_target(Path(path))
    return Path(path)


def make_explorer(
    facts: Facts,
    patterns: Patterns | None,
    heads: tuple[HeadId, ...],
    *,
    max_mib: int = MAX_MIB,
) -> Explorer:
    """Put a page together.

    Args:
        facts: what to say.
        patterns: what to draw, if anything.
        heads: all heads of the map.
        max_mib: the largest page.

    Raises:
        InputError: the page would be larger.
    """
    parts = tuple(page_parts(facts, patterns, heads))
    exact = patterns is not None and patterns.cell == 1
    n_drawn, n_tokens = (0, 0) if patterns is None else (len(patterns.heads), len(patterns.tokens))
    page = Explorer(parts, len(heads), n_drawn, n_tokens, exact)
    if page.size_bytes > max_mib * 2**20:
        raise InputError(
            f"the page would be {page.size_bytes / 2**20:.1f} MiB, over max_mib = {max_mib}. "
            "Name fewer heads, ask for fewer windows, shorten the text, or raise max_mib."
        )
    return page
