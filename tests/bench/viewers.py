"""Pages of attention patterns side by side: Headatlas's explorer, CircuitsVis and BertViz.

    python -m tests.bench.viewers [--lengths 64 256 512 4096] [--rounds 5] [--shots FOLDER]

All show the same patterns of the same tokens, those of a random GPT-2 of 12 heads; the explorer
also all 270 heads of smollm2-135m. Each page is written by a process of its own and opened from
its file in a fresh headless Chromium, five times (once where it takes over `SLOW` seconds), with
the scripts that it fetches served from this machine at once; then once without a network.

- fetched: bytes of those scripts, as they are, not compressed
- first paint: first-contentful-paint, from the start of navigation
- drawn: the frame after the one in which the elements or canvases of the pattern are all there;
  not before the first paint
- memory: the largest resident memory of the page's process, of ten samples a second

`viewer_pages` tells how to set up the other two; Chromium is the first on the path.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Playwright, sync_playwright

from .viewer_opening import Opening, launch, open_page
from .viewer_pages import N_HEADS, NO_MEMORY, WRITERS, check_setup, versions

SLOW = 20  # seconds; a page that took longer is not opened again
WHOLE = "Headatlas explorer, 270 heads"
WHOLE_TOKENS = 4096

_CANVASES = """
    const all = [...document.querySelectorAll("canvas")];
    return all.length === {heads} + 1 && all.every((canvas) => {ready});
"""
_LINES = """
    const groups = document.querySelectorAll("{heads}");
    if (groups.length !== {n_heads} * {rows}) return false;
    const last = groups[groups.length - 1];
    return last.childElementCount === {tokens} && last.lastChild.hasAttribute("stroke-opacity");
"""


def shown(viewer: str, tokens: int) -> str:
    """The body of a function of JavaScript: whether all of the viewer's first view is there."""
    if viewer.startswith("Headatlas"):
        return 'return document.querySelector("#canvases canvas") !== null;'
    if viewer.startswith("CircuitsVis attention_patterns"):
        # each canvas gets its size, one pixel per weight, together with its picture
        ready = f"canvas.width === {tokens} && canvas.height === {tokens}"
        return _CANVASES.format(heads=N_HEADS, ready=ready)
    if viewer.startswith("CircuitsVis"):
        # its charts are transparent until they are drawn
        ready = (
            'canvas.width > 0 && canvas.getContext("2d").getImageData('
            "canvas.width / 2, canvas.height / 2, 1, 1).data[3] > 0"
        )
        return _CANVASES.format(heads=N_HEADS, ready=ready)
    heads = ".tokenAttention" if viewer.endswith("head_view") else "g[source-index]"
    return _LINES.format(heads=heads, n_heads=N_HEADS, rows=tokens, tokens=tokens)


def write_page(viewer: str, tokens: int, path: Path, options: argparse.Namespace) -> str:
    """Write a page in a process of its own; why it is not there, or an empty text."""
    command = [sys.executable, "-m", "tests.bench.viewer_pages", viewer, str(tokens), str(path)]
    try:
        done = subprocess.run([*command, "--gib", str(options.gib)], timeout=options.writing)
    except subprocess.TimeoutExpired:
        return f"time-out: not written in {options.writing:g} s"
    if done.returncode == NO_MEMORY:
        return f"memory: writing it takes over {options.gib:g} GiB"
    done.check_returncode()
    return ""


def measure(options: argparse.Namespace) -> Iterator[dict]:
    """One row per viewer and length."""
    cases = [(viewer, n) for viewer in WRITERS if viewer != WHOLE for n in options.lengths]
    if options.whole:
        cases.append((WHOLE, WHOLE_TOKENS))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for viewer, tokens in cases:
            if options.only and options.only not in viewer:
                continue
            path = Path(folder) / "page.html"
            row = {"viewer": viewer, "tokens": tokens, "bytes": None, "opened": [], "offline": None}
            row["problem"] = write_page(viewer, tokens, path, options)
            if not row["problem"]:
                row["bytes"] = path.stat().st_size
                row |= _opened(playwright, path, viewer, tokens, options)
            yield row
            path.unlink(missing_ok=True)


def _opened(playwright: Playwright, path: Path, viewer: str, tokens: int, options) -> dict:
    """The openings of a page, and what is there without a network."""
    shot = None
    if options.shots:
        options.shots.mkdir(parents=True, exist_ok=True)
        shot = options.shots / f"{viewer.replace(' ', '_').replace(',', '')}_{tokens}.png"

    def once(*, network: bool = True, shot: Path | None = None) -> Opening:
        limits = {"gib": options.gib, "seconds": options.seconds}
        return open_page(
            playwright, path, shown(viewer, tokens), network=network, shot=shot, **limits
        )

    opened = [once(shot=shot)]
    while len(opened) < options.rounds and not _slow(opened[-1]):
        opened.append(once())
    problem = opened[-1].problem
    offline = None if problem else once(network=False)
    return {"opened": opened, "offline": offline, "problem": problem}


def _slow(opening: Opening) -> bool:
    return opening.drawn_s is None or opening.drawn_s > SLOW


def line(row: dict) -> str:
    """One row of the table."""
    cells = [row["viewer"], f"{row['tokens']:,}"]
    cells.append("–" if row["bytes"] is None else megabytes(row["bytes"]))
    opened = row["opened"]
    cells.append(megabytes(opened[0].fetched) if opened else "–")
    if row["problem"]:
        peak = f"{max(one.peak_mib for one in opened):.0f}" if opened else "–"
        return f"| {' | '.join([*cells, '–', '–', row['problem'], peak])} |"
    cells.append("blank" if row["offline"].problem else "drawn")
    once = ", once" if len(opened) == 1 else ""
    cells.append(f"{_median(opened, 'paint_s'):.2f}")
    cells.append(f"{_median(opened, 'drawn_s'):.2f}{once}")
    cells.append(f"{_median(opened, 'peak_mib'):.0f}")
    return f"| {' | '.join(cells)} |"


def _median(opened: list[Opening], name: str) -> float:
    return statistics.median(getattr(opening, name) for opening in opened)


def megabytes(size: int) -> str:
    """Of 10⁶ bytes; nothing is 0.

    Example:
        >>> megabytes(0), megabytes(86_321), megabytes(22_400_000)
        ('0', '0.09', '22.4')
    """
    return "0" if not size else f"{size / 1e6:.{1 if size >= 1e7 else 2}f}"


def _weights_as_json(tokens: int) -> int:
    """Bytes of the weights as JSON, which CircuitsVis's page holds, and BertViz's twice."""
    with tempfile.NamedTemporaryFile("r") as file:
        command = [sys.executable, "-m", "tests.bench.viewer_pages", "json", str(tokens)]
        subprocess.run([*command, file.name], check=True)
        return int(Path(file.name).read_text())


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 256, 512, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gib", type=float, default=8, help="for writing a page, and for a page")
    parser.add_argument("--writing", type=float, default=600, help="seconds for writing a page")
    parser.add_argument("--seconds", type=float, default=120, help="for drawing a page")
    parser.add_argument("--only", default="", help="viewers with this in their names")
    parser.add_argument("--whole", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--shots", type=Path, help="folder for pictures of the pages")
    return parser.parse_args(arguments)


def _table(options: argparse.Namespace) -> tuple[str, list[dict]]:
    """The rows, printed as they come, and the table of them."""
    lines = [
        "| viewer | tokens | page, MB | fetched, MB | no network | first paint, s | drawn, s "
        "| memory, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = []
    for row in measure(options):
        rows.append(row)
        lines.append(line(row))
        print(lines[-1], flush=True)
    return "\n".join(lines), rows


def markdown(arguments: list[str] | None = None) -> dict[str, str]:
    """The table; for prose, the explorer of 270 heads and the weights of 4,096 tokens as JSON."""
    options = _options(arguments or [])
    check_setup()
    table, rows = _table(options)
    whole = next(row for row in rows if row["viewer"] == WHOLE)
    paint = _median(whole["opened"], "paint_s")
    return {
        "": f"{table}\n\n{_machine()}",
        "explorer": f"{megabytes(whole['bytes'])} MB, first paint after {paint:.2f} s",
        "json": f"{_weights_as_json(max(options.lengths)) / 1e9:.1f} GB",
    }


def _machine() -> str:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        known = {"Chromium": browser.version, "Python": platform.python_version(), **versions()}
        browser.close()
    return ", ".join(f"{name} {version}" for name, version in known.items()) + "."


def main() -> None:
    """Run the benchmark and print its rows."""
    options = _options(sys.argv[1:])
    check_setup()
    _table(options)
    print(_machine())


if __name__ == "__main__":
    main()
