"""Every measured table of the documents, made anew by one command.

    python -m tests.bench.figures [NAME …]    # no name: all of them; --list says which there are

A table stands in its document between `<!-- figures: NAME -->` and `<!-- end -->`, and is what the
function `markdown` of its module in this folder returns. Documents are rewritten one by one, as
soon as a table is measured.
"""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

from headatlas.interp.files import atomic_write

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def placed() -> dict[str, Path]:
    """The document of each table, by the name of its module.

    Raises:
        ValueError: a name stands twice.
    """
    found: dict[str, Path] = {}
    for path in DOCUMENTS:
        for _, name, *_ in _BLOCK.findall(path.read_text(encoding="utf-8")):
            if name in found:
                raise ValueError(f"the table {name} stands in {found[name].name} and {path.name}")
            found[name] = path
    return found


def with_table(text: str, name: str, table: str) -> str:
    """The text of a document with a new table in place of the old one.

    Example:
        >>> print(with_table("<!-- figures: a -->\\nold\\n<!-- end -->", "a", "new"))
        <!-- figures: a -->
        new
        <!-- end -->
    """
    return _BLOCK.sub(
        lambda block: f"{block[1]}{table.strip()}\n{block[4]}" if block[2] == name else block[0],
        text,
    )


def main() -> None:
    """Measure the named tables and write them into their documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true", help="say which tables there are")
    options = parser.parse_args()
    places = placed()
    unknown = set(options.names) - set(places)
    if unknown:
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(places)}")
    for name in options.names or places:
        path = places[name]
        if options.list:
            print(f"{name}: {path.relative_to(ROOT)}")
            continue
        print(f"measuring {name} …", flush=True)
        try:
            table = importlib.import_module(f"tests.bench.{name}").markdown()
        except SystemExit:  # it needs a file that is not here, and has said so
            if options.names:
                raise
            continue
        with atomic_write(path) as partial:
            partial.write_text(
                with_table(path.read_text(encoding="utf-8"), name, table), encoding="utf-8"
            )
        print(f"wrote {path.relative_to(ROOT)}\n{table}", flush=True)


if __name__ == "__main__":
    main()
