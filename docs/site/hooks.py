"""What the site is made of beside the pages in docs/: notebooks, the API, and one check.

mkdocs calls these functions while it builds (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.offline
from api_pages import api_pages
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url
from notebook_pages import NotebookPage, read_page
from notebook_runs import EXECUTED, NOTEBOOKS, why_not_current
from offline_check import THEME_LOADS, outside_resources, script_addresses

ASSETS = Path(__file__).parent / "assets"
_PLOTLY = "assets/plotly.min.js"
_DRAW = "assets/figures.js"
_pages: dict[str, NotebookPage] = {}


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages and files that are made here."""
    made = dict(api_pages())
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        executed = EXECUTED / path.name
        reason = why_not_current(path, executed)
        if reason:
            raise PluginError(f"{executed.name} {reason}; `make notebooks` executes it.")
        page = read_page(executed)
        _pages[f"notebooks/{path.stem}.md"] = page
        made[f"notebooks/{path.stem}.md"] = page.markdown
    for asset in sorted(ASSETS.iterdir()):
        made[f"assets/{asset.name}"] = asset.read_text("utf-8")
    made[_PLOTLY] = plotly.offline.get_plotlyjs()
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Put a notebook's outputs in their places, and load what draws its figures."""
    notebook = _pages.get(page.file.src_uri)
    if notebook is None:
        return html
    scripts = "".join(
        f'<script defer src="{get_relative_url(name, page.url)}"></script>'
        for name in (_PLOTLY, _DRAW)
        if notebook.has_figures
    )
    return notebook.filled(html) + scripts


def on_post_build(*, config: Any) -> None:
    """Refuse a site that would ask another host for a script, a style, a font or a picture.

    Plotly's own script names the hosts of maps; it asks them for figures with maps alone, and those
    are refused where a notebook is read.
    """
    site = Path(config.site_dir)
    found = [
        f"{path.relative_to(site)}: {address}"
        for path in sorted(site.rglob("*"))
        if path != site / _PLOTLY
        for address in _asked(path)
    ]
    if found:
        raise PluginError("the site loads from other hosts:\n" + "\n".join(found))


def _asked(path: Path) -> list[str]:
    """What a file of the site would load from other hosts."""
    if path.suffix in (".html", ".css"):
        return outside_resources(path.read_text("utf-8"), css=path.suffix == ".css")
    if path.suffix != ".js":
        return []
    known = tuple(THEME_LOADS) if "javascripts" in path.parts else ()
    addresses = script_addresses(path.read_text("utf-8"))
    return [address for address in addresses if not address.startswith(known)]
