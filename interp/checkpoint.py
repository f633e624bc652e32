"""What must hold of a model's folder before transformers is let near it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .errors import InputError, one_line, shown
from .files import read_json

_MAX_JSON_MIB = 64
# Integers of a config that something loops over, by the words of their keys: first or last word ->
# the largest value believed. A count of layers or experts may also be that of the tensors there.
_MAX_COUNT = {
    "layers": 1000, "layer": 1000, "groups": 1000, "group": 1000, "blocks": 1000, "stages": 1000,
    "depth": 1000, "depths": 1000, "experts": 4096, "heads": 4096, "head": 4096,
    "labels": 2**20, "classes": 2**20,
    "num": 2**24, "n": 2**24, "size": 2**24, "sizes": 2**24, "dim": 2**24, "dims": 2**24,
    "positions": 2**24, "embeddings": 2**24,
}  # fmt: skip
_WITH_TENSORS = 4096  # values up to here show in the files as tensors


class Held(NamedTuple):
    """What a checkpoint's files hold."""

    tensors: int
    weights: int


def check_folder(folder: Path, name: str) -> Held:
    """Check that a folder holds a whole model as JSON and safetensors, with nothing that can run.

    Args:
        folder: an existing directory.
        name: how error messages call it.

    Returns:
        How many tensors and weights the files hold.

    Raises:
        InputError: config.json or weights are missing, corrupt or cut off; weights only as pickle;
            an adapter without its model; a config that asks for downloaded code or for absurdly
            many layers, labels, ….
    """
    return _check_weights(folder, read_config(folder, name), name)


def _read_json(path: Path, name: str) -> dict[str, Any]:
    told = f"{path.name} of {name!r}"
    value = read_json(path, _MAX_JSON_MIB, told)
    if not isinstance(value, dict):
        raise InputError(f"{told} must hold a JSON object, not {type(value).__name__}.")
    return value


def read_config(folder: Path, name: str) -> dict[str, Any]:
    """The entries of a folder's config.json, checked to be an object."""
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise InputError(
                f"{name!r} is an adapter, not a model; merge it into its base model and save that."
            )
        raise InputError(f"{name!r} has no config.json; give the folder of a saved transformer.")
    config = _read_json(folder / "config.json", name)
    if (folder / "adapter_config.json").is_file():
        raise InputError(f"{name!r} holds an adapter; merge it into its base model and save that.")
    if "transformers_weights" in config:
        raise InputError(
            f"{name!r} names its own weight file in config.json; save it again without."
        )
    for key, value in _entries(config):
        # such a name ("owner/kernel") makes transformers download code and run it
        if key.endswith("_implementation") and not (value is None or str(value).isidentifier()):
            raise InputError(
                f"config.json of {name!r} asks for foreign code in {key!r} ({str(value)[:60]!r}); "
                f"remove that entry."
            )
    return config


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, however deep; the items of a list come under the list's key."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        key, inner = stack.pop()
        if key:
            yield key, inner
        if isinstance(inner, dict):
            stack += inner.items()
        elif isinstance(inner, list):
            stack += [(key, item) for item in inner]


def _check_weights(folder: Path, config: dict[str, Any], name: str) -> Held:
    """The weights must be there as safetensors, whole, and fit the config's counts."""
    from safetensors import SafetensorError, safe_open

    n_tensors = n_weights = 0
    for file in _weight_files(folder, name):
        try:
            with safe_open(file, framework="pt") as tensors:
                shapes = [tensors.get_slice(key).get_shape() for key in tensors.keys()]  # noqa: SIM118
                n_tensors += len(shapes)
                n_weights += sum(map(math.prod, shapes))
        except (SafetensorError, OSError, ValueError) as error:
            raise InputError(
                f"{file.name} of {name!r} is corrupt or cut off: {one_line(error)}. Fetch it again."
            ) from error
    check_counts(config, n_tensors, name)
    return Held(n_tensors, n_weights)


def check_counts(config: dict[str, Any], n_tensors: int, name: str) -> None:
    """Refuse numbers so large that building the config or the model would take for ever."""
    for key, value in _entries(config):
        words = str(key).lower().split("_")
        limits = [_MAX_COUNT[word] for word in {words[0], words[-1]} & _MAX_COUNT.keys()]
        limit = min(limits, default=None)
        if limit is None or not isinstance(value, int):
            continue
        if limit <= _WITH_TENSORS:
            limit = max(limit, n_tensors)
        if value > limit:
            what = words[-1] if words[-1] in ("layers", "groups", "labels", "experts") else ""
            announced = f"{shown(value)} {what}".strip()
            raise InputError(
                f"config.json of {name!r} announces {announced} in {key!r}; at most {limit} can "
                "be right. Fetch the file again, or correct that entry."
            )


def _weight_files(folder: Path, name: str) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        if any(
            next(folder.glob(pattern), None) for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt")
        ):
            raise InputError(
                f"{name!r} has its weights only as pickle, which can run code and is never read; "
                f"save it with model.save_pretrained(folder) to get model.safetensors."
            )
        raise InputError(
            f"{name!r} has no model.safetensors; give the folder of a saved transformer."
        )
    shards = _read_json(index, name).get("weight_map")
    names = set(map(str, shards.values())) if isinstance(shards, dict) else set()
    if not names or any(Path(n).name != n or not n.endswith(".safetensors") for n in names):
        raise InputError(
            f"{index.name} of {name!r} must map weights to .safetensors files beside it."
        )
    lost = sorted(n for n in names if not (folder / n).is_file())
    if lost:
        raise InputError(
            f"{name!r} lacks {len(lost)} of {len(names)} weight files, first {lost[0]!r}."
        )
    return [folder / n for n in sorted(names)]


def is_panic(error: BaseException) -> bool:
    """Whether a library written in Rust stumbled: no subclass of Exception, and of no module."""
    return type(error).__name__ == "PanicException"
