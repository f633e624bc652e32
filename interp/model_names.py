"""What a model's name stands for: built in, a GGUF file, a folder, or a Hugging Face hub id."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError, one_line

BUILT_IN = ("tiny", "smollm2-135m")
_TINY = Path(__file__).parent / "builtin" / "tiny"
_HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)


@dataclass(frozen=True)
class Place:
    """Where a model lies.

    Attributes:
        name: what it was asked for by.
        path: a folder with config.json, or a `.gguf` file.
    """

    name: str
    path: Path

    @property
    def is_gguf(self) -> bool:
        """Whether it is one file rather than a folder."""
        return self.path.suffix.lower() == ".gguf" and self.path.is_file()


def name_of(model: Any) -> str:
    """What a loaded model is called: the last part of where it came from, else its class.

    Example:
        >>> from types import SimpleNamespace
        >>> name_of(SimpleNamespace(name_or_path="models/smollm2")), name_of(object())
        ('smollm2', 'object')
    """
    return Path(getattr(model, "name_or_path", "") or "").name or type(model).__name__


def locate_model(source: str | os.PathLike[str], *, from_hub: Callable[[str], Path]) -> Place:
    """Find a model; `smollm2-135m` is fetched once, a name that is nothing here by `from_hub`.

    Args:
        source: a built-in name, the path of a `.gguf` file or of a folder, or a hub id.
        from_hub: gives the folder of a hub model.

    Raises:
        InputError: nothing of that name.

    Example:
        >>> locate_model("tiny", from_hub=Path).path.name
        'tiny'
    """
    name = os.fspath(source)
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise InputError(f"a model is a name or a path; got {source!r}. Built in: {_built_in()}.")
    if name == "tiny":
        return Place(name, _TINY)
    if name == "smollm2-135m":
        from .builtin import smollm2

        return Place(name, smollm2.fetch())
    path = Path(name).expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:  # a name too long for the file system, a folder without permission
        raise InputError(f"cannot open {name[:80]!r}: {error.strerror}.") from error
    if is_folder or (is_file and path.suffix.lower() == ".gguf"):
        return Place(name, path)
    if is_file:
        raise InputError(
            f"{name!r} is a file; give a .gguf file or the folder that holds config.json."
        )
    return Place(name, _ask_hub(name, from_hub))


def _ask_hub(name: str, from_hub: Callable[[str], Path]) -> Path:
    meant = [known for known in BUILT_IN if _plain(known) == _plain(name)]
    if meant:  # nobody else's model of nearly that name should come in its place
        raise InputError(
            f"no model {name!r}. Did you mean {meant[0]!r}? Names are lower-case; built in: "
            f"{_built_in()}."
        )
    if not _HUB_ID.fullmatch(name) or name.lower().endswith(".gguf") or name.startswith("."):
        raise InputError(f"no file or folder {name!r}. {_hint(name)}")
    try:
        return from_hub(name)
    except InputError:
        raise
    except Exception as error:  # the hub's client raises OSError, ValueError, its own httpx errors
        raise InputError(
            f"no model {name!r}: it is not built in, not a folder here, and the hub gave nothing "
            f"({type(error).__name__}: {one_line(error)}). {_hint(name)}"
        ) from error


@contextmanager
def hub_silent() -> Iterator[None]:
    """Keep the hub's client from logging each of its attempts: their end is what counts."""
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _plain(name: str) -> str:
    """The name without case and punctuation."""
    return "".join(char for char in name.casefold() if char.isalnum())


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), BUILT_IN, n=1, cutoff=0.5)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"Built in: {_built_in()}; else a .gguf file, a folder or a hub id.{guess}"


def _built_in() -> str:
    return ", ".join(BUILT_IN)
