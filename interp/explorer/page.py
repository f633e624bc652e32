"""Patterns and facts as one HTML page that needs nothing else.

Nothing that a model, a tokenizer or a file says gets into the page but as data: JSON whose `<`,
`>` and `&` are escaped, and base64. The page's script puts it on the screen as text, never as HTML,
and the page's own policy forbids every script but that one, and all of the network.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from functools import cache
from importlib import resources
from typing import Any

from ..heads import HeadId
from .facts import Card, Facts, HeadMap
from .read import STATISTICS, HeadData, Patterns

_SCRIPTS = (
    "dom.js", "colours.js", "data.js", "state.js", "head_map.js", "card.js", "views.js",
    "canvas.js", "strip.js", "search.js", "main.js",
)  # fmt: skip
_STATISTICS = ("entropy, nats", "weight on the first token", "weight on the previous token")
_PLACE = re.compile("@@(\\w+)@@")
_HIDDEN = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def page_parts(facts: Facts, patterns: Patterns | None, heads: tuple[HeadId, ...]) -> list[str]:
    """The page, in pieces: their concatenation is its source.

    Args:
        facts: what to say.
        patterns: what to draw; None: the map of heads and the cards alone.
        heads: all heads of the map.
    """
    blocks = {} if patterns is None else {data.head: data for data in patterns.heads}
    data = {
        "schema_version": 1,
        "title": facts.title,
        "lines": facts.lines,
        "tokens": () if patterns is None else patterns.tokens,
        "cell": 1 if patterns is None else patterns.cell,
        "masks": () if patterns is None else patterns.masks,
        "columns": facts.columns,
        "maps": [_map(own, heads) for own in (*facts.maps, *_text_maps(patterns))],
        "heads": [_head(head, blocks.get(head), facts.cards.get(head)) for head in heads],
    }
    script, style = _script(), _asset("style.css")
    pieces = {
        "TITLE": html.escape(facts.title),
        "SCRIPT_HASH": _hash(script),
        "STYLE_HASH": _hash(style),
        "STYLE": style,
        "SCRIPT": script,
    }
    # the template alone is searched: a title may look like a place in it
    before, after = (
        _PLACE.sub(lambda place: pieces[place[1]], part)
        for part in _asset("page.html").split("@@DATA@@")
    )
    parts = [before, f'<script type="application/json" id="data">{_json(data)}</script>\n']
    for number, head in enumerate(heads):
        for place, block in enumerate(blocks[head].blocks if head in blocks else ()):
            parts.append(f'<script type="text/plain" id="b{number}-{place}">{block}</script>\n')
    return [*parts, after]


def _head(head: HeadId, data: HeadData | None, card: Card | None) -> dict[str, Any]:
    row = str(head).removesuffix(f"H{head.head}")
    own: dict[str, Any] = {"name": str(head), "row": row, "layer": head.layer, "head": head.head}
    if data is not None:
        own["mask"] = data.mask
        own["windows"] = [{"rows": w.rows, "keys": w.keys} for w in data.windows]
    if card is not None:
        own["labels"], own["text"], own["rows"] = card.labels, card.paragraph, card.rows
    return own


def _map(given: HeadMap, heads: tuple[HeadId, ...]) -> dict[str, Any]:
    return {
        "name": given.name,
        "title": given.title,
        "values": [_cell(given.values.get(head)) for head in heads],
        "signed": given.signed,
        "top": given.top,
        "grades": [given.grades.get(head) for head in heads] if given.grades else None,
    }


def _text_maps(patterns: Patterns | None) -> list[HeadMap]:
    """Maps of the statistics on the page's own text."""
    if patterns is None:
        return []
    return [
        HeadMap(
            f":{name}",
            f"on this text: {title}",
            {data.head: data.statistics[place] for data in patterns.heads},
            top=None if place == 0 else 1.0,
        )
        for place, (name, title) in enumerate(zip(STATISTICS, _STATISTICS, strict=True))
    ]


def _cell(value: float | str | None) -> float | str | None:
    """A value of a map; what is missing or not finite is blank."""
    if value is None or isinstance(value, str):
        return value
    return round(float(value), 5) if math.isfinite(value) else None


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_HIDDEN)


@cache
def _asset(name: str) -> str:
    return resources.files(str(__package__)).joinpath("assets", name).read_text("utf-8")


@cache
def _script() -> str:
    body = "\n".join(_asset(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}\n}})();\n'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
