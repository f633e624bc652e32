"""Whether an atlas is of these weights: of two models with the same heads, labels fit one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from ..interp.errors import InputError

_VALUES = 1024  # of each tensor: any training moves nearly all values, and hashing all takes long


def sample_weights(model: nn.Module) -> str:
    """SHA-256 of the names, types and shapes of a model's weights, and of a sample of each.

    Of every tensor 1,024 values at even distances are read (all of them where there are fewer),
    which is fast however large they are. Training, merging and quantising change nearly all values;
    a change of a few by hand may go unseen. Tensors that are not loaded (offloaded ones) count with
    their shape.

    Example:
        >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> sample_weights(one) == sample_weights(other)
        False
        >>> _ = other.load_state_dict(one.state_dict())
        >>> sample_weights(one) == sample_weights(other)
        True
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.is_meta or not tensor.numel():
            continue
        flat = tensor.detach().reshape(-1)
        chosen = np.linspace(0, len(flat) - 1, min(_VALUES, len(flat))).astype(np.int64)
        values = flat[torch.from_numpy(chosen).to(flat.device)].cpu().contiguous()
        digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_weights(model: Any, described: Mapping[str, Any]) -> None:
    """Refuse a model whose weights are not those that an atlas is of.

    Weights are compared where the atlas says what they were, and where the class and the dtype are
    those of the atlas: a base model under another head, or the same model at another precision, has
    other names or values. Otherwise nothing is refused.

    Args:
        model: a transformers model.
        described: the `model` of an atlas.

    Raises:
        InputError: the weights are others.
    """
    known = described.get("weights")
    same_sort = described.get("class") == type(model).__name__ and described.get("dtype") == str(
        model.dtype
    ).removeprefix("torch.")
    if isinstance(known, str) and same_sort and known != sample_weights(model):
        raise InputError(
            f"the atlas is of other weights than this {type(model).__name__} has: of another model "
            "with the same heads, or of this one before it was trained or changed. Classify it "
            "anew."
        )
