"""The weights of a saved pruned model, and where they go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ....interp.errors import InputError, one_line
from ....interp.files import sha256_of
from .pruned_file import FILE, WEIGHTS, PrunedFile


def read_weights(
    folder: Path, said: PrunedFile, dtype: torch.dtype, name: str
) -> dict[str, Tensor]:
    """The weights of a folder by name, in a floating type.

    Args:
        folder: where `pruned.json` is.
        said: its content, which has the digest of the weights.
        dtype: of the floating ones.
        name: what messages call the folder.

    Raises:
        InputError: no such file, another one than `pruned.json` was written with, or a corrupt one.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / WEIGHTS).is_file():
        raise InputError(f"{name!r} has no {WEIGHTS}. Save the model again with save_pruned.")
    try:
        if sha256_of(folder / WEIGHTS) != said.weights_sha256:
            raise InputError(
                f"{WEIGHTS} of {name!r} is not the file that {FILE} was written with: its SHA-256 "
                "is another. Fetch the folder again, or save the model again."
            )
        weights = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{WEIGHTS} of {name!r} is corrupt or cut off: {one_line(error)}."
        ) from error
    return {
        key: value.to(dtype) if value.is_floating_point() else value
        for key, value in weights.items()
    }


def fill(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Put the weights into a model, each where its name and shape fit, every one of them.

    Raises:
        InputError: some are missing, left over, or of another shape.
    """
    wanted = model.state_dict(keep_vars=True)
    there = {id(weight) for key, weight in wanted.items() if key in weights}
    missing = [key for key, weight in wanted.items() if id(weight) not in there]
    extra = [key for key in weights if key not in wanted]
    if missing or extra:
        what = f"lacks the weight {missing[0]!r}" if missing else f"holds {extra[0]!r:.80} beside"
        raise InputError(f"{name!r} {what}; its files do not belong together. Save it again.")
    for key, weight in weights.items():
        if weight.shape != wanted[key].shape:
            raise InputError(
                f"{key!r} of {name!r} has shape {tuple(weight.shape)}; by config.json and {FILE} "
                f"it must be {tuple(wanted[key].shape)}. Save the model again."
            )
    filled = {id(wanted[key]): nn.Parameter(weight) for key, weight in weights.items()
              if isinstance(wanted[key], nn.Parameter)}  # fmt: skip
    for module in model.modules():
        for key, weight in module._parameters.items():
            if weight is not None and id(weight) in filled:
                module._parameters[key] = filled[id(weight)]
    buffers = {key for key, value in wanted.items() if not isinstance(value, nn.Parameter)}
    rest = {key: value for key, value in weights.items() if key in buffers}
    model.load_state_dict(rest, strict=False)
