"""What every shipped kernel takes on each architecture, read from its machine code.

    python -m tests.bench.aot [--representative] [--jobs N]

`python -m headatlas.kernels.aot --markdown FILE` writes the same table into a document.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from headatlas.kernels.aot.cases import select
from headatlas.kernels.aot.gate import SHIPPED
from headatlas.kernels.aot.run import Result, check_cases
from headatlas.kernels.aot.table import markdown as table_of


def markdown(arguments: list[str] | None = None) -> str:
    """One row per kernel, one column per architecture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--representative", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments or [])
    cases = select(representative=options.representative)
    with tempfile.TemporaryDirectory() as cache:
        return table_of(check_cases(cases, SHIPPED, jobs=options.jobs, cache=cache, progress=_told))


def _told(result: Result, done: int, total: int) -> None:
    print(f"\r{done} of {total} kernels", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(markdown(sys.argv[1:]))
