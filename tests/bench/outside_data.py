"""Where data lie that the repository does not hold: an option, or a variable of the environment."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def file_option(parser: argparse.ArgumentParser, name: str, variable: str, what: str) -> None:
    """Add an option for a file, whose default a variable of the environment names."""
    parser.add_argument(
        f"--{name}", type=Path, default=os.environ.get(variable), metavar="FILE",
        help=f"{what}; default: the file that {variable} names",
    )  # fmt: skip


def checked_file(parser: argparse.ArgumentParser, path: Path | None, name: str) -> Path:
    """The file, which must be there; ends the program with status 2 if it is not."""
    if path is None or not Path(path).is_file():
        parser.error(f"--{name} is a file that exists; got {'nothing' if path is None else path}")
    return Path(path)
