"""What a kept number depends on, as SHA-256: weights, documents, tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..interp.probes import Prompts

_BOOKKEEPING = frozenset({
    "_name_or_path", "architectures", "transformers_version", "use_cache", "return_dict",
    "output_attentions", "output_hidden_states", "dtype", "torch_dtype",
})  # fmt: skip


def fingerprint_model(model: nn.Module) -> str:
    """SHA-256 of a model's class and config, and of the names, types and bytes of its weights."""
    config = getattr(model, "config", None)
    # angles, windows and caps leave no trace in the weights
    told = "" if config is None else json.dumps(_facts(config.to_dict()), sort_keys=True)
    return fingerprint_tensors(type(model).__name__ + told, model.state_dict())


def _facts(config: Any) -> Any:
    """A config without what changes no output: where it came from, and what is returned."""
    if isinstance(config, dict):
        return {str(k): _facts(v) for k, v in config.items() if k not in _BOOKKEEPING}
    if isinstance(config, list | tuple):
        return [_facts(entry) for entry in config]
    return config if isinstance(config, str | int | float | bool | None) else str(config)


def fingerprint_tensors(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text, and of the names, types, shapes and bytes of tensors.

    Example:
        >>> one, two = {"w": torch.zeros(2)}, {"w": torch.zeros(2, 1)}
        >>> fingerprint_tensors("", one) == fingerprint_tensors("", two)
        False
    """
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()


def fingerprint_prompts(prompts: Prompts) -> str:
    """SHA-256 of the tokens of documents, padding included, and of which predictions count."""
    digest = hashlib.sha256()
    arrays = [prompts.ids, prompts.mask]
    for array in arrays if prompts.counted is None else [*arrays, prompts.counted]:
        digest.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).data)
    return digest.hexdigest()
