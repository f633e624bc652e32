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

from .checkpoint import _check_counts, _read_config
from .errors import InputError
from .gguf_file import check_gguf
from .load import _HUB_ID, _TINY, _hint
from .pretrained import _as_input_error, quiet

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
    name = os.fspath(source)
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise InputError(f"a model is a name or a path; got {source!r}.")
    if name == "tiny":
        return _from_folder(_TINY, name)
    path = Path(name).expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:  # a name too long for the file system, a folder without permission
        raise InputError(f"cannot open {name[:80]!r}: {error.strerror}.") from error
    if is_folder:
        return _from_folder(path, name)
    if is_file and path.suffix.lower() == ".gguf":
        return _from_gguf(path)
    if is_file:
        raise InputError(
            f"{name!r} is a file; give a .gguf file or the folder that holds config.json."
        )
    return _from_folder(_from_hub(name), name)


def _from_folder(folder: Path, name: str) -> Any:
    # no tensor is seen, so none vouches for a larger number of layers than the limits allow
    _check_counts(_read_config(folder, name), 0, name)
    with quiet(), _as_input_error(name):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        return config.get_text_config()


def _from_gguf(path: Path) -> Any:
    check_gguf(path)
    with quiet(), _as_input_error(path.name):
        from transformers import AutoConfig

        options: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
        return AutoConfig.from_pretrained(path.parent, **options).get_text_config()


def _from_hub(name: str) -> Path:
    """The folder that holds the config of a hub model, fetched when it is not there yet."""
    if not _HUB_ID.fullmatch(name) or name.lower().endswith(".gguf") or name.startswith("."):
        raise InputError(f"no file or folder {name!r}. {_hint(name)}")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json")).parent
    except (
        Exception
    ) as error:  # the hub's client raises OSError, ValueError and its own httpx errors
        reason = " ".join(str(error).split())[:160].rstrip(".")
        raise InputError(
            f"no config of {name!r}: it is not built in, not a folder here, and the hub gave "
            f"nothing ({type(error).__name__}: {reason}). {_hint(name)}"
        ) from error


def skeleton(config: Any, name: str) -> nn.Module:
    """The model that a config describes, on the meta device: without memory for its weights.

    Raises:
        InputError: transformers has no such model, or it has absurdly many parts.
    """
    from transformers import AutoModel

    with quiet(), _as_input_error(name), torch.device("meta"), _at_most(_MAX_PIECES, name):
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
