"""The file in which the training of gates keeps its state, so that it can be taken up again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ...interp.errors import InputError, one_line
from ...interp.files import atomic_write, check_target
from ...interp.probes import Prompts
from ..fingerprint import fingerprint_prompts, fingerprint_tensors
from .settings import GateTraining

_ANY_FORMAT = "headatlas gates "
_FORMAT = f"{_ANY_FORMAT}2"
_SUFFIX = ".safetensors"
_FREE = ("every",)  # settings that change no number


@dataclass(frozen=True)
class TrainingFile:
    """A safetensors file with the state of a training of gates.

    Args:
        path: ends in `.safetensors`; need not exist yet.
        identity: what the numbers depend on: fingerprints of the model and the documents, and the
            settings as JSON.

    Raises:
        InputError: the path has another suffix or cannot be written.
    """

    path: Path
    identity: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.path.suffix != _SUFFIX:
            raise InputError(f"a checkpoint is a {_SUFFIX} file; got {str(self.path)!r}.")
        check_target(self.path)

    def read(self) -> tuple[int, dict[str, Tensor]] | None:
        """The updates done and the state after them; None where there is no file.

        Raises:
            InputError: the file is no checkpoint, is damaged, or is of another model, other
                documents or other settings.
        """
        if not self.path.exists():
            return None
        name = str(self.path)
        meta, state = _load(self.path)
        if meta.get("format") != _FORMAT:
            if meta.get("format", "").startswith(_ANY_FORMAT):
                raise InputError(
                    f"{name!r} is a checkpoint of another version of headatlas, which this one "
                    "cannot take up. Choose another path, or delete the file, and start anew."
                )
            raise InputError(f"{name!r} is not a checkpoint of gates; choose another path.")
        for what, wanted in self.identity.items():
            if meta.get(what) != wanted:
                raise InputError(
                    f"{name!r} is of a training with {_difference(what, meta.get(what), wanted)}. "
                    "Choose another path, or delete the file."
                )
        done = meta.get("updates", "")
        if meta.get("sha256") != fingerprint_tensors(done, state) or not done.isdecimal():
            raise InputError(
                f"{name!r} is damaged: its content is not what was written. Delete it."
            )
        return int(done), state

    def write(self, updates: int, state: Mapping[str, Tensor]) -> None:
        """Replace the file, all at once.

        Raises:
            InputError: it cannot be written.
        """
        from safetensors.torch import save_file

        held = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        meta = {
            "format": _FORMAT, **self.identity, "updates": str(updates),
            "sha256": fingerprint_tensors(str(updates), held),
        }  # fmt: skip
        with atomic_write(self.path) as temporary:
            save_file(held, temporary, meta)


def identity_of(
    model: str, prompts: Prompts, config: GateTraining, start: Mapping[str, Tensor]
) -> dict[str, str]:
    """What a training's numbers depend on.

    Args:
        model: fingerprint of the model.
        prompts: the documents.
        config: the settings.
        start: the gates to start from.
    """
    settings = dataclasses.asdict(config)
    settings = {name: value for name, value in settings.items() if name not in _FREE}
    settings["start"] = fingerprint_tensors("", start) if start else None
    return {
        "model": model,
        "documents": fingerprint_prompts(prompts),
        "settings": json.dumps(settings, sort_keys=True),
    }


def _difference(what: str, found: str | None, wanted: str) -> str:
    """What is other there, in words; the file's own words are not repeated."""
    if what == "model":
        return "another model (its weights or config differ)"
    if what == "documents":
        return "other documents"
    ours = json.loads(wanted)
    try:
        theirs = json.loads(found or "")
    except (ValueError, RecursionError):
        theirs = None
    if not isinstance(theirs, dict):
        return "other settings"
    names = [name for name, value in ours.items() if name not in theirs or theirs[name] != value]
    return f"other settings ({', '.join(names)})" if names else "other settings"


def _load(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            if meta.get("format") != _FORMAT:
                return meta, {}
            return meta, {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{str(path)!r} is not a checkpoint, or is damaged: {one_line(error)}."
        ) from error
