"""An executed notebook as a page of the site."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_check import figure_loads

_PLACE = '<div data-output="{}"></div>'
_FIGURE = "application/vnd.plotly.v1+json"
_STYLE = re.compile(r"<style.*?</style>\s*", re.DOTALL)


@dataclass(frozen=True)
class NotebookPage:
    """A page whose outputs are put in once its text has become HTML.

    Outputs hold text of any length and sort, which is no business of the Markdown reader.

    Attributes:
        markdown: text and code, with an empty element where an output goes.
        outputs: HTML, in the order of their places.
        has_figures: whether a script has to draw some.
    """

    markdown: str
    outputs: tuple[str, ...]
    has_figures: bool

    def filled(self, page: str) -> str:
        """The page's HTML with the outputs in their places.

        Raises:
            ValueError: a place is missing.
        """
        for number, output in enumerate(self.outputs):
            place = _PLACE.format(number)
            if page.count(place) != 1:
                raise ValueError(f"output {number} has no place of its own in the page")
            page = page.replace(place, output)
        return page


def read_page(path: Path) -> NotebookPage:
    """Make a page of an executed notebook.

    Raises:
        ValueError: an output of an error, of a sort that pages do not show, or a figure that
            would ask other hosts for something.
    """
    cells = json.loads(path.read_text("utf-8"))["cells"]
    parts, outputs = list[str](), list[str]()
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in _shown(cell["outputs"]):
            parts.append(_PLACE.format(len(outputs)))
            outputs.append(output)
    title, text = parts[0], parts[1:]
    origin = f"*Made by running `notebooks/{path.name}` from top to bottom.*"
    figures = any("output-figure" in output for output in outputs)
    return NotebookPage("\n\n".join([title, origin, *text]) + "\n", tuple(outputs), figures)


def _shown(outputs: list[dict[str, Any]]) -> Iterator[str]:
    """Each output as HTML; what a run writes to stderr is not part of the page."""
    for output in outputs:
        sort = output["output_type"]
        if sort == "stream":
            if output["name"] == "stdout":
                yield _plain("".join(output["text"]))
        elif sort in ("execute_result", "display_data"):
            yield _display(output["data"])
        else:
            raise ValueError(f"a page shows no output of type {sort}")


def _display(data: dict[str, Any]) -> str:
    if _FIGURE in data:
        return _figure(data[_FIGURE])
    if "text/html" in data:
        table = _STYLE.sub("", "".join(data["text/html"]))
        return f'<div class="output output-html">{table}</div>'
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<div class="output"><img alt="" src="data:image/png;base64,{picture}"></div>'
    return _plain("".join(data["text/plain"]))


def _plain(text: str) -> str:
    return f'<pre class="output output-text">{html.escape(text.rstrip())}</pre>'


def _figure(figure: dict[str, Any]) -> str:
    drawn = {"data": figure["data"], "layout": figure["layout"]}
    if loads := figure_loads(drawn):
        raise ValueError(f"a figure would ask other hosts for {', '.join(loads)}")
    # nothing in a token may end the element that holds the data
    safe = json.dumps(drawn).replace("<", "\\u003c")
    height = figure["layout"].get("height", 450)
    return (
        f'<div class="output output-figure" style="min-height: {int(height)}px">'
        f'<script type="application/json">{safe}</script></div>'
    )
