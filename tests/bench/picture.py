"""The README's picture: the explorer on real weights, as a browser shows it.

    python -m tests.bench.picture [OUT.png]

Classifies the heads of smollm2-135m, makes a page of a short text with a repeated sentence, and
takes a picture of an induction head compared with the previous-token head of the largest excess.
Needs Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import headatlas as ha
from tests.browser.conftest import chromium_path

OUT = Path(__file__).parents[2] / "docs" / "images" / "explorer.png"
TEXT = (
    "Mrs Calloway wore a yellow coat to the station. The train was late. "
    "Mrs Calloway wore a yellow coat to the station again."
)
SIZE = {"width": 1360, "height": 1010}


def take(path: Path) -> None:
    """Write the picture."""
    model, tokenizer = ha.load("smollm2-135m")
    atlas = ha.classify(model, tokenizer, prompts=32, seed=0)
    reads, writes = atlas.heads("induction")[0], atlas.heads("previous_token")[0]
    page = ha.explore(model, tokenizer, TEXT, atlas=atlas, title="smollm2-135m")
    strings = ha.tokenize(tokenizer, TEXT).strings[0]
    again = len(strings) - 1 - strings[::-1].index("Ġyellow")
    link = f"head={reads}&compare={writes}&q={again}&k={strings.index('Ġcoat')}&lock=1&theme=light"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page.save(Path(folder) / "page.html")
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        shown = browser.new_context(offline=True, viewport=SIZE).new_page()
        shown.goto(f"file://{folder}/page.html#{link}")
        shown.wait_for_selector("#canvases canvas")
        shown.wait_for_timeout(300)
        shown.screenshot(path=path)
        browser.close()
    print(f"wrote {path}: {page}, {reads} beside {writes}")


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
