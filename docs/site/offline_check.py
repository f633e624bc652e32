"""Find what a page would load from another host."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_LOADING = {
    "audio": ("src",), "embed": ("src",), "iframe": ("src",), "image": ("href", "xlink:href"),
    "img": ("src", "srcset"), "input": ("src",), "object": ("data",), "script": ("src",),
    "source": ("src", "srcset"), "track": ("src",), "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}  # fmt: skip
_HARMLESS_LINKS = {"canonical", "alternate", "next", "prev", "author", "license", "help"}
_OUTSIDE = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(
    r"""(?:url\(\s*["']?|@import\s+["'])\s*((?:https?:)?//[^"')\s]+)""", re.IGNORECASE
)


def outside_resources(text: str, *, css: bool = False) -> list[str]:
    """Addresses of scripts, styles, pictures, frames and fonts on other hosts.

    Links that a reader may follow do not count. A frame's `srcdoc` is a page of its own.

    Example:
        >>> outside_resources('<a href="https://a.b">a</a><script src="//a.b/c.js"></script>')
        ['//a.b/c.js']
        >>> outside_resources("@import 'https://a.b/c.css';", css=True)
        ['https://a.b/c.css']
    """
    if css:
        return _IN_STYLE.findall(text)
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.in_style = tag == "style"
        names: tuple[str, ...] = _LOADING.get(tag, ())
        if tag == "link" and not set(values.get("rel", "").lower().split()) <= _HARMLESS_LINKS:
            names = ("href", "imagesrcset")
        for name in names:
            value = values.get(name, "")
            parts = value.split(",") if name.endswith("srcset") else [value]
            self.found += [part.strip() for part in parts if _OUTSIDE.match(part)]
        self.found += _IN_STYLE.findall(values.get("style", ""))
        if "srcdoc" in values:
            self.found += outside_resources(values["srcdoc"])

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.found += _IN_STYLE.findall(data)
