"""Find what a page, a style, a script or a figure would load from another host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

_LOADING = {
    "audio": ("src",), "embed": ("src",), "iframe": ("src",), "image": ("href", "xlink:href"),
    "img": ("src", "srcset"), "input": ("src",), "object": ("data",), "script": ("src",),
    "source": ("src", "srcset"), "track": ("src",), "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}  # fmt: skip
_CODE = {"module", "text/javascript", "application/javascript", ""}
_HARMLESS_LINKS = {"canonical", "alternate", "next", "prev", "author", "license", "help"}
_OUTSIDE = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(
    r"""(?:url\(\s*["']?|@import\s+["'])\s*((?:https?:)?//[^"')\s]+)""", re.IGNORECASE
)
# a whole address in quotes, which is what code can ask for; not one in a comment or a sentence
_IN_SCRIPT = re.compile(
    r"""["'`]((?:https?:|wss?:)?//[\w-]+(?:\.[\w-]+)+[^"'`\s]*)""", re.IGNORECASE
)
_NAMES_ONLY = ("http://www.w3.org/",)  # of XML vocabularies: nothing is fetched from there
_MAPS = re.compile(r"choropleth|geo|map(?:box)?$")
# what draws on a map fetches its tiles or outlines; heat maps and tree maps only sound like it
_NO_MAPS = {"heatmap", "treemap"}

THEME_LOADS = {
    "https://unpkg.com/mermaid@": "diagrams, in pages with an element of the class mermaid",
    "https://unpkg.com/resize-observer-polyfill": "browsers of before 2020",
    "https://api.github.com/": "the counts of a repository, where the configuration names one",
}
"""What the theme's scripts name but do not ask for here, and what they would need it for."""


def outside_resources(text: str, *, css: bool = False) -> list[str]:
    """Addresses of scripts, styles, pictures, frames and fonts on other hosts.

    Links that a reader may follow do not count. A frame's `srcdoc` is a page of its own. Scripts
    within the page are read as `script_addresses` reads them, data are not.

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


def script_addresses(text: str) -> list[str]:
    """Whole addresses of other hosts that a script holds in quotes: what it may ask for.

    Names of XML vocabularies do not count. An address put together of parts is not found.

    Example:
        >>> script_addresses('load("https://a.b/c.js"); ns = "http://www.w3.org/2000/svg"')
        ['https://a.b/c.js']
    """
    found = _IN_SCRIPT.findall(text)
    return [address for address in found if not address.lower().startswith(_NAMES_ONLY)]


def figure_loads(figure: dict[str, Any]) -> list[str]:
    """What plotly would fetch to draw a figure: maps, and pictures on other hosts.

    Example:
        >>> figure_loads({"data": [{"type": "choropleth"}, {"type": "heatmap"}], "layout": {}})
        ['a trace of type choropleth']
    """
    types = [str(trace.get("type", "scatter")) for trace in figure["data"]]
    found = [f"a trace of type {t}" for t in types if _MAPS.search(t) and t not in _NO_MAPS]
    pictures = [*figure["data"], *figure["layout"].get("images", ())]
    sources = [str(picture.get("source", "")) for picture in pictures]
    return found + [source for source in sources if _OUTSIDE.match(source)]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = self.in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.in_style = tag == "style"
        self.in_script = tag == "script" and values.get("type", "module").lower() in _CODE
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
        self.in_style = self.in_script = False

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.found += _IN_STYLE.findall(data)
        elif self.in_script:
            self.found += script_addresses(data)
