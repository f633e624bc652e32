"""The folder that a pruning is taken up again in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...interp.errors import InputError, one_line
from .prune_file import RESULT, UNFINISHED
from .prune_result import PruneResult


def finished_result(
    folder: Path, identity: Mapping[str, str], settings: Mapping[str, Any]
) -> PruneResult | None:
    """The result of the same pruning, if the folder holds it whole.

    Args:
        folder: where to look.
        identity: what kept numbers depend on.
        settings: what else must be as in that run.

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
    other += [name for name, own in settings.items() if found.settings.get(name) != own]
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
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {str(folder)!r}: {one_line(error)}.") from error
    return kept
