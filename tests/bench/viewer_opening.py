"""Open a page in a fresh headless Chromium and time until its pattern is drawn; for `viewers`."""

from __future__ import annotations

import contextlib
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from playwright.sync_api import Browser, Error, Page, Playwright, Route, TimeoutError

from .viewer_pages import script

PATIENCE = 5  # seconds, for a page whose scripts could not be fetched

_SHOWN = """(() => {
  const shown = () => { %s };
  const look = () => {
    if (!document.body || !shown()) return requestAnimationFrame(look);
    return requestAnimationFrame(() => tell(performance.now()));
  };
  const tell = (now) => {  // the browser tells of its first paint when it is on the screen
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    if (!paint) return setTimeout(tell, 20, now);
    document.documentElement.dataset.paintMs = paint.startTime;
    document.documentElement.dataset.drawnMs = Math.max(now, paint.startTime);
  };
  requestAnimationFrame(look);
})();"""


@dataclass(frozen=True)
class Opening:
    """What opening a page once came to; times in seconds, None where nothing was drawn.

    Args:
        problem: why nothing was drawn, in words; empty where it was.
    """

    paint_s: float | None = None
    drawn_s: float | None = None
    fetched: int = 0
    peak_mib: float = 0
    problem: str = ""


class Memory(threading.Thread):
    """Watches the pages' processes of the browsers that this process started; ends greedy ones."""

    def __init__(self, most_mib: float) -> None:
        super().__init__(daemon=True)
        self.most_mib, self.peak_mib, self.over = most_mib, 0.0, False
        self._done = threading.Event()

    def run(self) -> None:
        """Take a sample every tenth of a second."""
        while not self._done.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "--type=renderer" in process.cmdline():
                        self._sample(process)

    def _sample(self, process: psutil.Process) -> None:
        mib = process.memory_info().rss / 2**20
        self.peak_mib = max(self.peak_mib, mib)
        if mib > self.most_mib:
            self.over = True
            process.kill()

    def __enter__(self) -> Memory:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._done.set()
        self.join()


def launch(playwright: Playwright) -> Browser:
    """Start the first Chromium on the path."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise SystemExit("viewers needs Chromium: apt-get install chromium.")
    return playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])


def open_page(
    playwright: Playwright, path: Path, condition: str, *, gib: float, seconds: float,
    network: bool = True, shot: Path | None = None,
) -> Opening:  # fmt: skip
    """Open a page in a fresh browser and wait until its pattern is drawn.

    Args:
        playwright: what starts the browser.
        path: the page.
        condition: the body of a function of JavaScript: whether the pattern is there.
        gib: how large the page's process may grow.
        seconds: how long to wait.
        network: whether the scripts that the page fetches are there.
        shot: where to keep a picture of the page, taken when all is measured.
    """
    fetched = 0

    def serve(route: Route) -> None:
        nonlocal fetched
        body = script(urlsplit(route.request.url).path)
        fetched += len(body)
        headers = {"Access-Control-Allow-Origin": "*"}
        route.fulfill(body=body, content_type="text/javascript", headers=headers)

    browser = launch(playwright)
    try:
        context = browser.new_context(offline=not network, viewport={"width": 1300, "height": 1000})
        context.add_init_script(_SHOWN % condition)
        if network:
            context.route("https://**/*", serve)
        page = context.new_page()
        with Memory(gib * 1024) as memory:
            problem = _wait(page, path, memory, seconds)
        if problem:
            return Opening(None, None, fetched, memory.peak_mib, problem)
        told = page.evaluate("() => ({...document.documentElement.dataset})")
        paint, drawn = float(told["paintMs"]), float(told["drawnMs"])
        if shot is not None:
            page.screenshot(path=shot, timeout=300_000)
        return Opening(paint / 1000, drawn / 1000, fetched, memory.peak_mib)
    finally:
        browser.close()


def _wait(page: Page, path: Path, memory: Memory, seconds: float) -> str:
    """Open a file; why its pattern is not drawn, or an empty text once it is."""
    crashed, missing = [], []
    page.on("crash", lambda _: crashed.append(True))
    page.on("requestfailed", lambda sent: missing.append(sent.url))
    try:
        page.goto(path.as_uri(), wait_until="load", timeout=seconds * 1000)
        if missing:  # it has nothing more to do
            seconds = min(seconds, PATIENCE)
        page.wait_for_selector("html[data-drawn-ms]", timeout=seconds * 1000)
    except TimeoutError:
        return f"time-out: not drawn in {seconds:g} s"
    except Error:
        if memory.over:
            return f"memory: the page takes over {memory.most_mib / 1024:g} GiB"
        if crashed:
            return f"memory: the page crashes at {memory.peak_mib / 1024:.1f} GiB"
        raise
    return ""
