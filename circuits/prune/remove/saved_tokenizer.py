"""The tokenizer beside a saved model, and which of its files a later model may take away.

The record, `saved.json`, has file name -> SHA-256 of what was written. A file that has another
content by now is somebody else's, and stays.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from ....interp.errors import InputError
from ....interp.files import atomic_write, read_json, sha256_of

RECORD = "saved.json"

_MOST_MIB = 1
_ENTRY = "tokenizer_files"


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Save a tokenizer in a folder, and note which files are its own."""
    written = [Path(name) for name in tokenizer.save_pretrained(folder)]
    own = {
        path.name: sha256_of(path)
        for path in sorted(set(written))
        if path.parent.resolve() == folder.resolve() and path.is_file()
    }
    with atomic_write(folder / RECORD) as partial:
        partial.write_text(json.dumps({_ENTRY: own}, indent=1) + "\n", encoding="utf-8")


def forget_tokenizer(folder: Path) -> None:
    """Delete the files that `write_tokenizer` wrote to a folder, those that are still as it did."""
    record = folder / RECORD
    files = _read(record)
    if files is None:
        return
    for name, digest in files.items():
        path = folder / name
        if path.is_file() and not path.is_symlink() and sha256_of(path) == digest:
            path.unlink()
    record.unlink(missing_ok=True)


def _read(record: Path) -> dict[str, str] | None:
    """File names and digests; None where there is no record, or it is none of ours."""
    content: Any = None
    if record.is_file():
        with contextlib.suppress(InputError):
            content = read_json(record, _MOST_MIB)
    if not isinstance(content, dict) or set(content) != {_ENTRY}:
        return None
    files = content[_ENTRY]
    if not isinstance(files, dict) or not all(map(_is_entry, files.items())):
        return None
    return files


def _is_entry(entry: tuple[str, Any]) -> bool:
    """Whether it is the name of a file right in the folder, and a digest."""
    name, digest = entry
    plain = bool(name) and name.isprintable() and name not in (".", "..")
    return plain and not set("/\\:") & set(name) and isinstance(digest, str) and len(digest) == 64
