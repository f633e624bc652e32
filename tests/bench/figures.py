"""Every measured figure of the documents, made anew by one command.

    python -m tests.bench.figures [NAME …]    # no name: all of them; --list says which there are

A table stands in its document between `<!-- figures: NAME -->` and `<!-- end -->`, and is what the
function `markdown` of its module in this folder returns. A module whose figures are told in prose
as well returns a dict of texts: the table as `""`, a PART for each `<!-- figures: NAME.PART -->`.
Documents are rewritten as soon as their module has measured.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from headatlas.interp.files import atomic_write

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(
    r"(<!-- figures: (?P<name>\w+)(?:\.(?P<part>\w+))? -->\n?).*?\n?<!-- end -->", re.DOTALL
)


def placed() -> dict[str, dict[str, Path]]:
    """The document of each part, by the name of its module.

    Raises:
        ValueError: a part stands twice.
    """
    found: dict[str, dict[str, Path]] = {}
    for path in DOCUMENTS:
        for block in _BLOCK.finditer(path.read_text(encoding="utf-8")):
            parts = found.setdefault(block["name"], {})
            part = block["part"] or ""
            if part in parts:
                raise ValueError(
                    f"{block['name']}.{part} stands in {parts[part].name} and {path.name}"
                )
            parts[part] = path
    return found


def with_figures(text: str, name: str, figures: Mapping[str, str]) -> str:
    """The text of a document with a module's new figures in place of the old ones.

    Example:
        >>> old = "It takes <!-- figures: a.time -->1<!-- end --> s."
        >>> print(with_figures(old, "a", {"time": "2"}))
        It takes <!-- figures: a.time -->2<!-- end --> s.
    """

    def renewed(block: re.Match[str]) -> str:
        new = figures.get(block["part"] or "")
        if block["name"] != name or new is None:
            return block[0]
        end = "\n<!-- end -->" if block[1].endswith("\n") else "<!-- end -->"
        return f"{block[1]}{new.strip()}{end}"

    return _BLOCK.sub(renewed, text)


def measured(name: str) -> str | dict[str, str] | None:
    """What a module measures; None where it ends with a message instead."""
    try:
        return importlib.import_module(f"tests.bench.{name}").markdown()
    except SystemExit:
        return None


def _in_its_own_process(name: str) -> str | dict[str, str] | None:
    # what one module leaves in memory or in torch's settings must not show in another's figures
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measured, name).result()


def main() -> None:
    """Measure what was named and write it into the documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true", help="say which figures there are")
    options = parser.parse_args()
    places = placed()
    unknown = set(options.names) - set(places)
    if unknown:
        parser.error(f"no figures {', '.join(sorted(unknown))}; there are {', '.join(places)}")
    for name in options.names or places:
        paths = sorted(set(places[name].values()))
        if options.list:
            print(f"{name}: {', '.join(str(path.relative_to(ROOT)) for path in paths)}")
            continue
        print(f"measuring {name} …", flush=True)
        made = _in_its_own_process(name)
        if made is None:  # it needs a file that is not here, and has said so
            if options.names:
                raise SystemExit(2)
            continue
        figures = {"": made} if isinstance(made, str) else made
        missing = set(places[name]) - set(figures)
        if missing:
            raise SystemExit(f"{name} measures {', '.join(figures)}; asked: {', '.join(missing)}")
        for path in paths:
            new = with_figures(path.read_text(encoding="utf-8"), name, figures)
            with atomic_write(path) as partial:
                partial.write_text(new, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}", flush=True)
        print("\n".join(figures.values()), flush=True)


if __name__ == "__main__":
    main()
