"""A model's configuration and skeleton by name, without its weights."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .checkpoint import check_counts, read_config
from .errors import InputError
from .gguf_file import check_gguf
from .model_names import hub_silent, locate_model
from .pretrained import quiet, reading

_MAX_PIECES = 200_000  # modules and parameters; the largest models have some ten thousand


def load_config(source: str | os.PathLike[str]) -> Any:
    """Read the transformers config of a model; no weight is fetched or read.

    Args:
        source: `"tiny"`, the path of a `.gguf` file, the path of a folder with config.json, or a
            Hugging Face hub id, of which only config.json is fetched.

    Returns:
        A transformers config; of a model that also sees or hears, the part for text.

    Raises:
        InputError: nothing of that name, a corrupt file, a config that asks for downloaded code or
            for absurdly many layers, or a kind of model that transformers does not know.

    Example:
        >>> load_config("tiny").num_attention_heads
        8
    """
    place = locate_model(source, from_hub=_fetch)
    return _from_gguf(place.path) if place.is_gguf else _from_folder(place.path, place.name)


def _fetch(name: str) -> Path:
    """The folder of a hub model's config.json, downloaded when it is not there yet."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with hub_silent():
        try:
            return Path(hf_hub_download(name, "config.json")).parent
        except LocalEntryNotFoundError as error:  # what it raises at last when nothing answered
            reason = "it cannot be reached, and no copy of the config is kept here"
            raise ConnectionError(reason) from error


def _from_folder(folder: Path, name: str) -> Any:
    # no tensor is seen, so none vouches for a larger number of layers than the limits allow
    check_counts(read_config(folder, name), 0, name)
    with quiet(), reading(name):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        return config.get_text_config()


def _from_gguf(path: Path) -> Any:
    check_gguf(path)
    with quiet(), reading(path.name):
        from transformers import AutoConfig

        options: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
        return AutoConfig.from_pretrained(path.parent, **options).get_text_config()


def skeleton(config: Any, name: str) -> nn.Module:
    """The model that a config describes, on the meta device: without memory for its weights.

    Raises:
        InputError: transformers has no such model, or it has absurdly many parts.
    """
    from transformers import AutoModel

    with quiet(), reading(name), torch.device("meta"), _at_most(_MAX_PIECES, name):
        return AutoModel.from_config(config, attn_implementation="eager", trust_remote_code=False)


@contextmanager
def _at_most(most: int, name: str) -> Iterator[None]:
    """Stop the building of a model early, whatever entry of the config makes it too large."""
    thread, pieces = threading.get_ident(), 0

    def count(module: nn.Module, key: str, piece: Any) -> None:
        nonlocal pieces
        if threading.get_ident() == thread and piece is not None:
            pieces += 1
            if pieces > most:
                raise InputError(
                    f"the config of {name} announces more than {most:,} layers and other parts; "
                    f"correct it, or give the numbers instead."
                )

    hooks = torch.nn.modules.module
    handles = [
        hooks.register_module_module_registration_hook(count),
        hooks.register_module_parameter_registration_hook(count),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
