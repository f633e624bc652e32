"""What the commands of this room share: how they end, what they refuse, how they write."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

_INTERRUPTED = 130


def run_command(
    app: typer.Typer,
    program: str,
    arguments: Sequence[str] | None,
    *,
    refused: type[Exception] | tuple[type[Exception], ...] = (),
) -> NoReturn:
    """Run a command and end the process: its own status, 2 with one line on a user's error.

    Args:
        app: The command; what it returns is the status, None is 0.
        program: How it is called.
        arguments: In place of those of the process.
        refused: Errors that are told in their own words, as a user's error.
    """
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        status = app(given, prog_name=program, standalone_mode=False) or 0
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except refused as error:
        refuse(program, str(error))
    except Exception as error:
        wrong_option = getattr(error, "format_message", None)  # what typer's usage errors have
        if wrong_option is None:
            raise
        refuse(program, wrong_option())
    if status == _INTERRUPTED:
        print(f"{program}: interrupted", file=sys.stderr)
    raise SystemExit(status)


def refuse(program: str, message: str) -> NoReturn:
    """End the process with status 2 and one line.

    Args:
        program: How it was called.
        message: What is wrong, and what to do.
    """
    print(f"{program}: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2) from None


def check_folder(path: Path | None, option: str) -> None:
    """Refuse a file whose folder is missing, before minutes are spent on what goes into it.

    Args:
        path: The file; None is fine.
        option: What it was given to.

    Raises:
        typer.BadParameter: The folder is missing.
    """
    if path is not None and not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder of {str(path)!r} is missing.", param_hint=option)


def write_whole(path: Path, text: str) -> None:
    """Write a file that is at no time half-written.

    Args:
        path: The file.
        text: Its new content.

    Raises:
        OSError: It cannot be written.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "bench.json"
        >>> write_whole(file, "{}")
        >>> file.read_text()
        '{}'
    """
    partial = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
