"""The file in which a sweep keeps its finished layers, so that it can be taken up again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from torch import nn

from ...interp.errors import InputError, one_line
from ...interp.files import atomic_write, check_target
from ...interp.frames import is_edited
from ...interp.heads import HeadId
from ...interp.probes import Prompts
from ..fingerprint import fingerprint_prompts
from .measures import MassMeasure, Measure

_FORMAT = "headatlas sweep 1"
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A safetensors file with the finished heads of a sweep.

    Args:
        path: ends in `.safetensors`; need not exist yet.
        model: fingerprint of the model's weights.
        settings: fingerprint of everything else that the numbers depend on.

    Raises:
        InputError: the path has another suffix or cannot be written.
    """

    path: Path
    model: str
    settings: str

    def __post_init__(self) -> None:
        if self.path.suffix != _SUFFIX:
            raise InputError(f"a checkpoint is a {_SUFFIX} file; got {str(self.path)!r}.")
        check_target(self.path)

    def read(
        self, shape: tuple[int, int, int, int]
    ) -> tuple[Float[np.ndarray, "head ablation behaviour document"], Bool[np.ndarray, " head"]]:
        """The values and which heads are done; none where there is no file.

        Args:
            shape: of the values.

        Raises:
            InputError: the file is no checkpoint, is damaged, or is of another model or sweep.
        """
        if not self.path.exists():
            return np.zeros(shape), np.zeros(shape[0], bool)
        values, done = _load(self.path, shape, {"model": self.model, "settings": self.settings})
        name = str(self.path)
        if not np.isin(done, (0, 1)).all():
            raise InputError(
                f"{name!r} is damaged: it marks a head as done with {int(done.max())}, not 0 or 1. "
                "Delete it."
            )
        finished = done.astype(bool)
        wrong = ~np.isfinite(values).all(axis=(1, 2, 3)) & finished
        if wrong.any():
            raise InputError(
                f"{name!r} is damaged: of {int(finished.sum())} heads marked as done "
                f"{int(wrong.sum())} have values that are not finite. Delete it."
            )
        return np.where(finished[:, None, None, None], values, 0.0), finished

    def write(
        self,
        values: Float[np.ndarray, "head ablation behaviour document"],
        done: Bool[np.ndarray, " head"],
    ) -> None:
        """Replace the file, all at once.

        Raises:
            InputError: it cannot be written.
        """
        from safetensors.numpy import save_file

        meta = {"format": _FORMAT, "model": self.model, "settings": self.settings}
        with atomic_write(self.path) as temporary:
            save_file({"values": values, "done": done.astype(np.uint8)}, temporary, meta)


def beside(checkpoint: str | Path, documents: str) -> Path:
    """The file of one set of documents, where a run over several keeps one each.

    Example:
        >>> beside("run.safetensors", "text").name
        'run-text.safetensors'
    """
    path = Path(checkpoint)
    return path.with_name(f"{path.stem}-{documents}{path.suffix}")


def refuse_edited(model: nn.Module) -> None:
    """Refuse a model inside an attach block: its weights do not say what it computes.

    Raises:
        InputError: it is being edited.
    """
    if is_edited(model):
        raise InputError(
            "the model is being edited, which a checkpoint cannot tell; sweep without one, or "
            "outside the block."
        )


def _load(path: Path, shape: tuple[int, ...], wanted: dict[str, str]) -> tuple[Any, Any]:
    from safetensors import SafetensorError, safe_open

    name = str(path)
    try:
        with safe_open(path, framework="numpy") as file:
            meta = file.metadata() or {}
            if meta.get("format") != _FORMAT:
                raise InputError(f"{name!r} is not a checkpoint of a sweep; choose another path.")
            for what, value in wanted.items():
                if meta.get(what) != value:
                    raise InputError(
                        f"{name!r} is of another {'model' if what == 'model' else 'sweep'} "
                        f"(its {what} differ{'s' if what == 'model' else ''}). Choose another "
                        "path, or delete the file."
                    )
            expected = {"values": ("F64", [*shape]), "done": ("U8", [shape[0]])}
            found = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            held = {key: (part.get_dtype(), part.get_shape()) for key, part in found.items()}
            if held != expected:
                raise InputError(f"{name!r} is damaged: it holds {held}. Delete it.")
            return file.get_tensor("values"), file.get_tensor("done")
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{name!r} is not a checkpoint, or is damaged: {one_line(error)}."
        ) from error


def fingerprint_sweep(
    prompts: Prompts,
    measures: Sequence[Measure],
    heads: Sequence[HeadId],
    ablations: Sequence[str],
    seed: int,
) -> str:
    """SHA-256 of the documents, of what is measured on them, and of what is removed."""
    digest = hashlib.sha256(fingerprint_prompts(prompts).encode())
    for measure in measures:
        digest.update(measure.name.encode())
        if isinstance(measure, MassMeasure):
            digest.update(str(measure.heads).encode())
            for pair in measure.labels:
                digest.update(f"{pair.strict} {pair.sign}".encode())
                digest.update(pair.q.tobytes() + pair.k.tobytes())
        else:
            digest.update(measure.quantity.encode() + measure.rows.tobytes())
    digest.update(json.dumps([[*map(str, heads)], [*ablations], seed]).encode())
    return digest.hexdigest()
