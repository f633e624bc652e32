"""Figures as files: pages that need no network, plotly's own format, and pictures."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, one_line
from ..files import atomic_write, check_target

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PICTURES = (".png", ".svg", ".pdf")
"""What a browser draws."""

# A name, #rrggbb or rgb(…). Plotly takes var(--…) with anything in it, also quotes, tags and
# addresses; the page around the figure does not.
_COLOUR = re.compile(r"#?\w+|(?:rgb|hsl)a?\([\d\s.,%]+\)", re.ASCII)
_SUFFIXES = (".html", ".json", *PICTURES)
_SCALE = 2  # pixels of a .png per pixel of the page


def check_figure_suffix(path: str | os.PathLike[str]) -> str:
    """The lower-case suffix of a figure's file: .html, .json, or the picture's .png, .svg or .pdf.

    Raises:
        InputError: another suffix; or a picture, where kaleido or a browser for it is missing.

    Example:
        >>> check_figure_suffix("map.HTML")
        '.html'
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(
            f"a figure is written as .html or .json, or drawn as {', '.join(PICTURES[:-1])} or "
            f"{PICTURES[-1]}; got {str(path)!r}."
        )
    if suffix in PICTURES and not _can_draw():
        raise _no_browser(suffix)
    return suffix


def write_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure; the suffix picks the format.

    `.html` is one page that needs no network, `.json` is plotly's format. `.png` (two pixels per
    pixel of the page), `.svg` and `.pdf` are drawn by kaleido in a Chrome or Chromium that is
    installed; `write_pattern_image` draws patterns without one.

    Args:
        figure: what a plot function gives.
        path: the file to write; a file that is there is replaced all at once.

    Raises:
        InputError: another suffix, a path that cannot be written, or for pictures no kaleido, no
            browser, or one that fails.

    Example:
        >>> import tempfile, torch
        >>> from headatlas.interp.plots import plot_pattern
        >>> page = Path(tempfile.mkdtemp()) / "pattern.html"
        >>> write_figure(plot_pattern(torch.eye(2)), page)
        >>> page.stat().st_size > 1_000_000  # plotly itself, so that no network is needed
        True
    """
    suffix = check_figure_suffix(path)
    check_target(Path(path))
    with atomic_write(path) as temporary:
        if suffix in PICTURES:
            _draw(figure, temporary, suffix)
        elif suffix == ".json":
            temporary.write_text(str(figure.to_json()), "utf-8")
        else:
            # no formulas between dollar signs
            config = {"displaylogo": False, "responsive": True, "typesetMath": False}
            page = figure.to_html(include_plotlyjs=True, config=config, div_id="headatlas")
            colour = str(figure.layout.paper_bgcolor)  # pyright: ignore[reportAttributeAccessIssue]
            if _COLOUR.fullmatch(colour):
                page = page.replace("<body>", f'<body style="background:{colour};margin:0">', 1)
            temporary.write_text(page, "utf-8")


def _draw(figure: Figure, path: Path, suffix: str) -> None:
    import kaleido
    import plotly
    from kaleido.errors import ChromeNotFoundError

    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    spec: dict[str, Any] = {
        "fig": figure.to_dict(),
        "path": path,
        "opts": {"format": suffix[1:], "scale": _SCALE if suffix == ".png" else 1},
    }
    try:
        # the script of the plotly that is installed; MathJax would come from the network
        kaleido.write_fig_from_object_sync([spec], kopts={"plotlyjs": script, "mathjax": False})
    except ChromeNotFoundError as error:
        raise _no_browser(suffix) from error
    except Exception as error:  # of the browser's many ways to fail
        raise InputError(
            f"the browser could not draw the figure: {one_line(error)}. Write .html instead."
        ) from error


def _can_draw() -> bool:
    """Whether kaleido is installed and finds a browser."""
    if importlib.util.find_spec("kaleido") is None:
        return False
    from choreographer.browsers.chromium import Chromium

    own = os.environ.get("BROWSER_PATH")
    if own:
        return Path(own).is_file()
    return Chromium.find_browser(skip_local=False) is not None


def _no_browser(suffix: str) -> InputError:
    return InputError(
        f"a figure is drawn as {suffix} by the package kaleido in Chrome or Chromium, and one of "
        "them is missing here. Install both (BROWSER_PATH tells where the browser is), or write "
        ".html, which needs neither; write_pattern_image draws patterns as .png without them."
    )
