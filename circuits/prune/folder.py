"""The folder that a pruning writes to and is taken up again in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from ...interp.errors import InputError
from .prune_file import RESULT, UNFINISHED
from .prune_result import PruneResult


def check_folder(folder: str | Path) -> Path:
    """The folder to write to, new, empty, or of an earlier pruning.

    Raises:
        InputError: it is a file, or a folder of something else.
    """
    place = Path(folder)
    try:
        if place.exists() and not place.is_dir():
            raise InputError(f"{str(folder)!r} is a file; give a folder to write to.")
        content = {path.name for path in place.iterdir()} if place.exists() else set()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {str(folder)!r}: {error}.") from error
    if content and not content & {RESULT, UNFINISHED}:
        raise InputError(
            f"{str(folder)!r} holds something else than a pruning; give a new or empty folder."
        )
    return place


def finished_result(
    folder: Path, identity: Mapping[str, str], methods: Collection[str]
) -> PruneResult | None:
    """The result of the same pruning, if the folder holds it whole.

    Raises:
        InputError: it holds that of another one, or a result that is damaged.
    """
    if (folder / UNFINISHED).exists() or not (folder / RESULT).exists():
        return None
    found = PruneResult.load(folder)
    if not found.finished:
        return None
    known = found.settings.get("identity")
    other = [name for name, own in identity.items() if not isinstance(known, dict)
             or known.get(name) != own]  # fmt: skip
    if set(found.methods) != set(methods):
        other.append("methods")
    if other:
        raise InputError(
            f"{str(folder)!r} holds a finished pruning with other {', '.join(other)}. Choose "
            "another folder, or delete it."
        )
    return found


def begin(folder: Path) -> Path:
    """Make the folder within the folder that keeps what an unfinished run has found.

    Raises:
        InputError: it cannot be made.
    """
    kept = folder / UNFINISHED
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {str(folder)!r}: {error.strerror}.") from error
    return kept
