"""The folder of one unit: its parts, its atlas, and the word on how it ended."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...interp.errors import InputError
from ...interp.files import atomic_write, folder_to_disk, read_json, sha256_of
from ..atlas import HeadAtlas

_MOST_MIB = 16


@dataclass(frozen=True)
class UnitFolder:
    """Where a unit keeps what it has.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def parts(self) -> Path:
        """The folder of its parts."""
        return self.path / "parts"

    @property
    def lock(self) -> Path:
        """The file that whoever works on the unit has locked."""
        return self.path / "lock"

    @property
    def atlas(self) -> Path:
        """The atlas, once all is scored."""
        return self.path / "atlas.parquet"

    @property
    def removals(self) -> Path:
        """Where the removal of heads keeps its finished layers."""
        return self.path / "removal.safetensors"

    def make(self) -> None:
        """Make the folder and that of its parts.

        Raises:
            InputError: they cannot be made.
        """
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make {str(self.parts)!r}: {error.strerror}.") from error

    def sweep_out(self) -> None:
        """Delete what writers that were killed have left; only under the lock."""
        for folder in (self.path, self.parts):
            for file in folder.glob(".*"):
                with contextlib.suppress(OSError):
                    file.unlink()

    def state(self, plan: str) -> Mapping[str, Any]:
        """How the unit ended under this plan: `state` is done, failed, or missing.

        A unit is done only while its atlas is byte for byte what was written.

        Args:
            plan: its hash.
        """
        try:
            told = read_json(self.path / "unit.json", _MOST_MIB)
        except InputError:
            return {}
        if not isinstance(told, dict) or told.get("plan_sha256") != plan:
            return {}
        if told.get("state") == "done":
            try:
                return told if sha256_of(self.atlas) == told.get("atlas_sha256") else {}
            except OSError:
                return {}
        return told if told.get("state") == "failed" else {}

    def finish(self, atlas: HeadAtlas, told: Mapping[str, Any]) -> None:
        """Write the atlas, and only then that the unit is done.

        Raises:
            InputError: one of them cannot be written.
        """
        atlas.save(self.atlas)
        self.tell({"state": "done", "atlas_sha256": sha256_of(self.atlas), **told})

    def tell(self, told: Mapping[str, Any]) -> None:
        """Write how the unit ended.

        Raises:
            InputError: it cannot be written.
        """
        write_json(self.path / "unit.json", told)


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file, all at once and to the disk.

    Raises:
        InputError: it cannot be written.
    """
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")
    try:
        folder_to_disk(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}.") from error
