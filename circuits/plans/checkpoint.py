"""Loading a checkpoint of a plan, and saying exactly which one it was."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from typing import Any

import torch

from ...interp.errors import InputError
from ...interp.load import load
from ..fingerprint import fingerprint_model
from ..provenance import versions
from .plan import Plan, Unit


@dataclass(frozen=True, eq=False)
class Loaded:
    """A checkpoint in memory.

    Args:
        model: in eval mode.
        tokenizer: or None.
        provenance: what it is, what it runs on, and with which versions.
    """

    model: Any
    tokenizer: Any
    provenance: dict[str, Any]


def load_checkpoint(plan: Plan, unit: Unit) -> Loaded:
    """Load the checkpoint of a unit: a folder in that of the model, a folder, or a revision.

    Raises:
        InputError: nothing of that name, or it cannot be loaded.
    """
    options: dict[str, Any] = {"dtype": getattr(torch, plan.dtype), "device": plan.device}
    place = plan.path(unit.model)
    here = place.is_dir() or place.suffix.lower() == ".gguf"
    source: Any = place if here else unit.model
    if unit.checkpoint:
        inside, beside = place / unit.checkpoint, plan.path(unit.checkpoint)
        if inside.is_dir():
            source = inside
        elif beside.is_dir() or beside.suffix.lower() == ".gguf":
            source = beside
        elif here:
            raise InputError(
                f"no checkpoint {unit.checkpoint!r}: neither a folder in {str(place)!r} nor one "
                f"beside the plan ({str(beside)!r})."
            )
        else:
            options["revision"] = unit.checkpoint
    model, tokenizer = load(source, **options)
    return Loaded(model, tokenizer, _provenance(plan, unit, model, tokenizer))


def _provenance(plan: Plan, unit: Unit, model: Any, tokenizer: Any) -> dict[str, Any]:
    config = model.config
    return {
        "model": unit.model,
        "checkpoint": unit.checkpoint,
        "revision": getattr(config, "_commit_hash", None),
        "weights_sha256": fingerprint_model(model),
        "tokenizer": None if tokenizer is None else _tokenizer(tokenizer),
        "dtype": plan.dtype,
        "device": plan.device,
        "implementation": str(config._attn_implementation),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": versions(),
        "plan_sha256": plan.sha256,
    }


def _tokenizer(tokenizer: Any) -> dict[str, str]:
    words = sorted((str(word), int(index)) for word, index in tokenizer.get_vocab().items())
    return {
        "class": type(tokenizer).__name__,
        "vocab_sha256": hashlib.sha256(repr(words).encode()).hexdigest(),
    }
