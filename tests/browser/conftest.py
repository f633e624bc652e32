"""Pages in a headless Chromium without a network; whatever it complains about fails the test."""

import os
import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.browser)


def chromium_path():
    """Debian's Chromium, or what HEADATLAS_CHROMIUM names."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("HEADATLAS_CHROMIUM") or next(filter(None, map(shutil.which, names)), "")
    if not found:
        pytest.fail("tests marked browser need Chromium: apt-get install chromium.")
    return found


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium_path(), args=["--no-sandbox"]
        )
        yield launched
        launched.close()


@pytest.fixture
def visit(browser, request):
    """`visit(path, "head=L1H1", dark=False)`: the page opened from its file, offline."""
    opened, wrong, asked = [], [], []

    def go(path, link="", **options):
        context = browser.new_context(
            offline=True, viewport={"width": 1300, "height": 1000}, **options
        )
        page = context.new_page()
        opened.append(page)
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda sent: asked.append(sent.url))
        page.goto(f"file://{path}{'#' if link else ''}{link}")
        return page

    yield go
    SHOTS.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(opened):
        name = re.sub(r"\W+", "_", request.node.name)
        page.screenshot(path=SHOTS / f"{name}_{number}.png", full_page=True)
        page.context.close()
    assert not wrong
    outside = [url for url in asked if not url.startswith(("file://", "data:", "about:"))]
    assert not outside
