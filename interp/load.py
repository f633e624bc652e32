"""Models by name: built in, a GGUF file, a folder, or the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import InputError
from .model_names import hub_silent, locate_model
from .pretrained import read_folder, read_gguf

# one level deep and no pickle: what a model and its tokenizer need, and nothing that can run
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.tiktoken", "*.spm", "*.jinja"]
_UNWANTED = ["*/*", "consolidated*", "*.fp16.safetensors", "*.bf16.safetensors"]


def load(
    source: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    revision: str | None = None,
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
        revision: a branch, tag or commit of a hub model; refused for what lies on this machine.

    Returns:
        (model, tokenizer). The tokenizer is None only when the folder holds no file that looks
        like a part of one (tokenizer*, vocab*, merges.txt, *.model, …).

    Raises:
        InputError: nothing of that name, missing or corrupt files, weights only as pickle, weights
            missing, no such device, or a folder with pruned.json, which `load_pruned` reads.

    Example:
        >>> model, tokenizer = load("tiny")
        >>> type(model).__name__, model.training, len(tokenizer)
        ('LlamaForCausalLM', False, 1024)
    """
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(
            f"dtype must be a floating torch dtype such as torch.float32; got {dtype!r}."
        )
    device = _device(device)
    fetched = []

    def from_hub(name: str) -> Path:
        fetched.append(name)
        return _fetch(name, revision)

    place = locate_model(source, from_hub=from_hub)
    if revision is not None and not fetched:
        raise InputError(
            f"{place.name!r} lies on this machine and has no revision {revision!r}; give a hub id, "
            "or the folder of the checkpoint."
        )
    if place.is_gguf:
        model, tokenizer = read_gguf(place.path, dtype=dtype)
    else:
        model, tokenizer = read_folder(place.path, dtype=dtype, name=place.name)
    try:
        return model.to(device), tokenizer
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot move {place.name!r} to {str(device)!r}: {reason}") from error


def _fetch(name: str, revision: str | None) -> Path:
    """The local copy of a hub model, downloaded when it is not there yet."""
    from huggingface_hub import snapshot_download

    with hub_silent():
        found = snapshot_download(
            name, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
        )
    return Path(found)


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{device!r} is not a device; give 'cpu' or 'cuda:0', say.") from error
