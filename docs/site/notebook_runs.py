"""Execute the notebooks, and keep the executed copies apart from those in git.

python docs/site/notebook_runs.py [NAME …]    # those that are not executed yet, or have changed
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
EXECUTED = ROOT / "build" / "notebooks"
LIMIT_S = 600
_ENVIRONMENT = {
    "PLOTLY_RENDERER": "plotly_mimetype",  # figures as data: no script is written into outputs
    "TOKENIZERS_PARALLELISM": "false",
}


def execute(path: Path, folder: Path) -> Any:
    """Run a notebook from top to bottom in `folder`, and return it with its outputs.

    Raises:
        CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=LIMIT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, **_ENVIRONMENT})
    return notebook


def keep(notebook: Any, name: str) -> Path:
    """Write an executed copy to where the site looks for it."""
    import nbformat

    EXECUTED.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, EXECUTED / name)
    return EXECUTED / name


def why_not_current(path: Path, executed: Path) -> str | None:
    """Why an executed copy cannot stand for its notebook; None if it can."""
    if not executed.is_file():
        return "is not executed"
    own, copy = (json.loads(file.read_text("utf-8"))["cells"] for file in (path, executed))
    sources = [["".join(cell["source"]) for cell in cells] for cells in (own, copy)]
    return None if sources[0] == sources[1] else "has changed since it was executed"


def main() -> None:
    """Execute what was named, or all that is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="such as 01_classify_heads")
    names = parser.parse_args().names
    known = {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    if unknown := set(names) - set(known):
        parser.error(f"no notebook {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name, path in known.items():
        if name not in names and (names or why_not_current(path, EXECUTED / path.name) is None):
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            keep(execute(path, Path(folder)), path.name)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
