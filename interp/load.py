"""Models by name: built in, a GGUF file, a folder, or the Hugging Face hub."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import InputError
from .pretrained import read_folder, read_gguf

BUILT_IN = ("tiny", "smollm2-135m")
_TINY = Path(__file__).parent / "builtin" / "tiny"
_HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)
# one level deep and no pickle: what a model and its tokenizer need, and nothing that can run
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.tiktoken", "*.spm", "*.jinja"]
_UNWANTED = ["*/*", "consolidated*", "*.fp16.safetensors", "*.bf16.safetensors"]


def load(
    source: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> tuple[nn.Module, Any]:
    """Load a model and its tokenizer, in eval mode.

    The class is the one that the config names, else the auto class that fits the config's type.
    Only safetensors and GGUF are read; code that a checkpoint brings is never run. A checkpoint
    that would leave weights random is refused.

    Args:
        source: `"tiny"` or `"smollm2-135m"` (built in; the latter is fetched once), the path of a
            `.gguf` file, the path of a folder with config.json, or a Hugging Face hub id.
        dtype: floating type of the weights.
        device: where the model goes, such as `"cpu"` or `"cuda:0"`.

    Returns:
        (model, tokenizer). The tokenizer is None only when the folder holds no file that looks
        like a part of one (tokenizer*, vocab*, merges.txt, *.model, …).

    Raises:
        InputError: nothing of that name, missing or corrupt files, weights only as pickle, weights
            missing, no such device.

    Example:
        >>> model, tokenizer = load("tiny")
        >>> type(model).__name__, model.training, len(tokenizer)
        ('LlamaForCausalLM', False, 1024)
    """
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(
            f"dtype must be a floating torch dtype such as torch.float32; got {dtype!r}."
        )
    name = os.fspath(source)
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise InputError(f"a model is a name or a path; got {source!r}. Built in: {_built_in()}.")
    place = _device(device)
    model, tokenizer = _read(name, dtype)
    try:
        return model.to(place), tokenizer
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot move {name!r} to {str(device)!r}: {reason}") from error


def _read(name: str, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    if name == "tiny":
        return read_folder(_TINY, dtype=dtype, name=name)
    if name == "smollm2-135m":
        from .builtin import smollm2

        return read_folder(smollm2.fetch(), dtype=dtype, name=name)
    path = Path(name).expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:  # a name too long for the file system, a folder without permission
        raise InputError(f"cannot open {name[:80]!r}: {error.strerror}.") from error
    if is_folder:
        return read_folder(path, dtype=dtype, name=name)
    if is_file:
        if path.suffix.lower() == ".gguf":
            return read_gguf(path, dtype=dtype)
        raise InputError(
            f"{name!r} is a file; give a .gguf file or the folder that holds config.json."
        )
    return read_folder(_from_hub(name), dtype=dtype, name=name)


def _from_hub(name: str) -> Path:
    """The local copy of a hub model, downloaded when it is not there yet."""
    meant = [known for known in BUILT_IN if _plain(known) == _plain(name)]
    if meant:  # nobody else's model of nearly that name should come in its place
        raise InputError(
            f"no model {name!r}. Did you mean {meant[0]!r}? Names are lower-case; built in: "
            f"{_built_in()}."
        )
    if not _HUB_ID.fullmatch(name) or name.lower().endswith(".gguf") or name.startswith("."):
        raise InputError(f"no file or folder {name!r}. {_hint(name)}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except (
        Exception
    ) as error:  # the hub's client raises OSError, ValueError and its own httpx errors
        reason = " ".join(str(error).split())[:160].rstrip(".")
        raise InputError(
            f"no model {name!r}: it is not built in, not a folder here, and the hub gave nothing "
            f"({type(error).__name__}: {reason}). {_hint(name)}"
        ) from error


def _plain(name: str) -> str:
    """The name without case and punctuation."""
    return "".join(char for char in name.casefold() if char.isalnum())


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), BUILT_IN, n=1, cutoff=0.5)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"Built in: {_built_in()}; else a .gguf file, a folder or a hub id.{guess}"


def _built_in() -> str:
    return ", ".join(BUILT_IN)


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{device!r} is not a device; give 'cpu' or 'cuda:0', say.") from error
