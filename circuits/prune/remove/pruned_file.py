"""`pruned.json`: which heads each attention module of a saved model keeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....interp.errors import InputError, shown
from ....interp.files import read_json
from ....interp.pretrained import PRUNED_FILE
from .cut import Cut, read_cut

FILE = PRUNED_FILE
SCHEMA_VERSION = 1
"""Raised when a reader of the old files would misread the new ones."""

_MOST_MIB = 64
_MOST_SITES = 10_000
_ENTRIES = ("schema_version", "class", "sites")


def reader_of(folder: Path) -> str:
    """What reads the model that `save_pruned` wrote to a folder.

    Example:
        >>> import tempfile
        >>> reader_of(Path(tempfile.mkdtemp()))
        'from_pretrained'
    """
    return "headatlas.load_pruned" if (folder / FILE).exists() else "from_pretrained"


def as_text(class_name: str, cuts: Sequence[Cut]) -> str:
    """The file's content."""
    sites = [cut.as_record() for cut in cuts]
    content = {"schema_version": SCHEMA_VERSION, "class": class_name, "sites": sites}
    return json.dumps(content, indent=1) + "\n"


def read_pruned(path: Path) -> tuple[str, tuple[Cut, ...]]:
    """The class of the model and the cuts of its attention modules.

    Raises:
        InputError: the file cannot be read, or is not one that `save_pruned` writes.
    """
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}; save the model again with save_pruned.")
    return _read(read_json(path, _MOST_MIB), path.name)


def _read(content: Any, name: str) -> tuple[str, tuple[Cut, ...]]:
    if not isinstance(content, dict) or set(content) != set(_ENTRIES):
        got = ", ".join(map(str, content))[:80] if isinstance(content, dict) else shown(content)
        raise InputError(
            f"{name} must be an object of {', '.join(_ENTRIES)}; got {got}. Save the model again."
        )
    version, kind, sites = (content[key] for key in _ENTRIES)
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(
            f"{name} has schema_version {shown(version)}; this release reads {SCHEMA_VERSION}. "
            "Save the model again, or use the release that wrote it."
        )
    if not isinstance(kind, str) or not kind.isidentifier():
        raise InputError(f"{name}: class must be the name of a model class; got {shown(kind)}.")
    if not isinstance(sites, list) or not 0 < len(sites) <= _MOST_SITES:
        raise InputError(
            f"{name}: sites must be a list of 1 to {_MOST_SITES} attention modules; got "
            f"{shown(sites)}."
        )
    cuts = tuple(read_cut(site, name) for site in sites)
    for what, keys in (
        ("module", [cut.module for cut in cuts]),
        ("address", [(cut.stack, cut.layer) for cut in cuts]),
    ):
        if len(set(keys)) < len(keys):
            raise InputError(f"{name} lists one {what} twice. Save the model again.")
    return kind, cuts
