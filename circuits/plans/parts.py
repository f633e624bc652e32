"""Parts: the sums of one batch as a file that is whole or counts for nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ...interp.checkpoint import is_panic
from ...interp.errors import InputError
from ...interp.files import atomic_write, folder_to_disk
from ...interp.heads import HeadId
from ..sums import Statistic, Sums

_FORMAT = "headatlas part 1"
_ARRAYS = tuple(
    field.name
    for field in fields(Sums)
    if field.name not in ("prompts", "heads", "statistics", "permuted")
)


@dataclass(frozen=True)
class Part:
    """Some documents of a prompt set, and the file that holds their sums.

    Args:
        folder: where its file stands.
        prompts: name of the set.
        documents: which of its documents.
        identity: SHA-256 of all that the sums depend on.
    """

    folder: Path
    prompts: str
    documents: slice
    identity: str

    @property
    def path(self) -> Path:
        """Its file, such as `random-00000-00016.safetensors`."""
        span = f"{self.documents.start:05d}-{self.documents.stop:05d}"
        return self.folder / f"{self.prompts}-{span}.safetensors"

    def write(self, sums: Sums) -> None:
        """Put the sums on the disk: content first, then the name, then the folder's entry.

        Raises:
            InputError: it cannot be written, or the disk is full.
        """
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(getattr(sums, name)) for name in _ARRAYS}
        told = self._told(sums)
        # one entry: safetensors writes several in an order that changes from process to process
        meta = {"headatlas": json.dumps({"told": told, "sha256": _digest(told, arrays)})}
        with atomic_write(self.path) as temporary:
            temporary.write_bytes(save(arrays, meta))
        try:
            folder_to_disk(self.folder)
        except OSError as error:
            raise InputError(f"cannot write {str(self.path)!r}: {error.strerror}.") from error

    def read(self) -> Sums | None:
        """The sums; None where there is no file, or one that is torn, or of something else."""
        try:
            return self._read(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except Exception:  # whatever garbage does to a reader: the documents are scored again
            return None
        except BaseException as error:
            if is_panic(error):
                return None
            raise

    def _told(self, sums: Sums) -> str:
        return json.dumps({
            "format": _FORMAT,
            "identity": self.identity,
            "documents": [self.documents.start, self.documents.stop],
            "prompts": sums.prompts,
            "heads": [[head.site, head.layer, head.head] for head in sums.heads],
            "statistics": [[one.kind, one.variant] for one in sums.statistics],
            "permuted": list(sums.permuted),
        })  # fmt: skip

    def _read(self, data: bytes) -> Sums | None:
        from safetensors.numpy import load

        size = int.from_bytes(data[:8], "little")
        header: dict[str, Any] = json.loads(data[8 : 8 + size])
        meta: dict[str, str] = json.loads(header["__metadata__"]["headatlas"])
        arrays = load(data)  # checks the length of every tensor against the file's
        told = json.loads(meta["told"])
        own = {"format": _FORMAT, "identity": self.identity, "prompts": self.prompts,
               "documents": [self.documents.start, self.documents.stop]}  # fmt: skip
        if set(arrays) != set(_ARRAYS) or meta["sha256"] != _digest(meta["told"], arrays):
            return None
        if any(told[name] != value for name, value in own.items()):
            return None
        return Sums(
            prompts=told["prompts"],
            heads=tuple(HeadId(*head) for head in told["heads"]),
            statistics=tuple(Statistic(*one) for one in told["statistics"]),
            permuted=tuple(told["permuted"]),
            **arrays,
        )


def _digest(told: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(told.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
