"""`pruned.json`: which heads each attention module of a saved model keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ....interp.errors import InputError, shown
from ....interp.files import read_json
from ....interp.pretrained import PRUNED_FILE
from .cut import Cut, read_cut
from .pruning import left_by

FILE = PRUNED_FILE
WEIGHTS = "pruned.safetensors"
"""Its weights: not under transformers' name, which would fill what is missing with random ones."""

SCHEMA_VERSION = 2
"""Raised when a reader of the old files would misread the new ones."""

_MOST_MIB = 64
_MOST_SITES = 10_000
_HEX = "0123456789abcdef"
_ENTRIES = ("schema_version", "class", "weights_sha256", "sites", "earlier")


class PrunedFile(NamedTuple):
    """What `pruned.json` says.

    Attributes:
        kind: the class of the model.
        cuts: those of its attention modules, by its config.
        weights_sha256: of the file of weights.
        earlier: the cuts of the ordinary result it was cut out of, as in `Pruning`; or empty.
    """

    kind: str
    cuts: tuple[Cut, ...]
    weights_sha256: str
    earlier: tuple[Cut, ...] = ()


def reader_of(folder: Path) -> str:
    """What reads the model that `save_pruned` wrote to a folder.

    Example:
        >>> import tempfile
        >>> reader_of(Path(tempfile.mkdtemp()))
        'from_pretrained'
    """
    return "headatlas.load_pruned" if (folder / FILE).exists() else "from_pretrained"


def as_text(content: PrunedFile) -> str:
    """The file's content."""
    entries = {
        "schema_version": SCHEMA_VERSION,
        "class": content.kind,
        "weights_sha256": content.weights_sha256,
        "sites": [cut.as_record() for cut in content.cuts],
        "earlier": [cut.as_record() for cut in content.earlier],
    }
    return json.dumps(entries, indent=1) + "\n"


def read_pruned(path: Path) -> PrunedFile:
    """The class of the model, the cuts of its attention modules, and the digest of its weights.

    Raises:
        InputError: the file cannot be read, or is not one that `save_pruned` writes.
    """
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}; save the model again with save_pruned.")
    return _read(read_json(path, _MOST_MIB), path.name)


def _read(content: Any, name: str) -> PrunedFile:
    version = content.get("schema_version", SCHEMA_VERSION) if isinstance(content, dict) else None
    if isinstance(content, dict) and (type(version) is not int or version != SCHEMA_VERSION):
        raise InputError(
            f"{name} has schema_version {shown(version)}; this release reads {SCHEMA_VERSION}. "
            "Save the model again, or use the release that wrote it."
        )
    if not isinstance(content, dict) or set(content) != set(_ENTRIES):
        got = ", ".join(map(str, content))[:80] if isinstance(content, dict) else shown(content)
        raise InputError(
            f"{name} must be an object of {', '.join(_ENTRIES)}; got {got}. Save the model again."
        )
    kind, digest = content["class"], content["weights_sha256"]
    if not isinstance(kind, str) or not kind.isidentifier():
        raise InputError(f"{name}: class must be the name of a model class; got {shown(kind)}.")
    if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set(_HEX):
        raise InputError(
            f"{name}: weights_sha256 must be 64 hexadecimal digits; got {shown(digest)}."
        )
    cuts, earlier = (_cuts(content, key, name) for key in ("sites", "earlier"))
    if not cuts:
        raise InputError(f"{name}: sites must name at least one attention module; got [].")
    if earlier and left_by(earlier) != [(cut.module, cut.n_heads) for cut in cuts]:
        raise InputError(
            f"{name}: what earlier cuts kept is not what sites cuts heads out of. "
            "Save the model again."
        )
    return PrunedFile(kind, cuts, digest, earlier)


def _cuts(content: dict[str, Any], key: str, name: str) -> tuple[Cut, ...]:
    sites = content[key]
    if not isinstance(sites, list) or len(sites) > _MOST_SITES:
        raise InputError(
            f"{name}: {key} must be a list of at most {_MOST_SITES} attention modules; got "
            f"{shown(sites)}."
        )
    cuts = tuple(read_cut(site, name) for site in sites)
    for what, keys in (
        ("module", [cut.module for cut in cuts]),
        ("address", [(cut.stack, cut.layer) for cut in cuts]),
    ):
        if len(set(keys)) < len(keys):
            raise InputError(f"{name} lists one {what} twice. Save the model again.")
    return cuts
