"""What an atlas says of how it was made: the model, the versions, the settings."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from headatlas import __version__

from ..interp.model_names import name_of
from ..interp.probes import Prompts
from ..interp.sites import Site, hook_drift
from ..interp.switch import configs, own_implementations
from .atlas_check import printable
from .battery import Battery
from .grade import Rule
from .kinds import Kind
from .same_weights import sample_weights
from .settle import Settled
from .signal_battery import SignalBattery
from .words.kind import WordKind
from .words.prompts import SET, WordPrompts

NOT_GROWN = "a fixed number of documents; only those of kinds on tokens are added to"
"""What an atlas's settings say of parsed documents where others were added until labels settled."""


def describe(model: Any, sites: tuple[Site, ...]) -> dict[str, Any]:
    """The model: name, class, size, dtype, a sample of its weights, how far hooks move it."""
    return {
        "name": printable(name_of(model)),
        "class": type(model).__name__,
        "layers": len(sites),
        "heads": sum(site.n_heads for site in sites),
        "kv_heads": sum(site.n_kv_heads for site in sites),
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": sample_weights(model),
        "implementation": _implementation(model),
        "hook_drift": hook_drift(model),
    }


def _implementation(model: Any) -> str:
    """The model's own attention implementation, also while it is attached."""
    own = zip(configs(model), own_implementations(model), strict=True)
    return str(next(name for config, name in own if config is model.config))


def versions() -> dict[str, str]:
    """Of what the result depends on."""
    return {
        "headatlas": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def settings(
    battery: Battery | SignalBattery,
    rule: Rule,
    kinds: tuple[Kind | WordKind, ...],
    sets: Mapping[str, Prompts | WordPrompts],
    settled: Settled | None,
) -> dict[str, Any]:
    """What was scored on what; enough to do it again."""
    text = battery.text
    legacy = {k.name: k.legacy.rule for k in kinds if isinstance(k, Kind) and k.legacy}
    return {
        "seed": battery.seed,
        "kinds": [kind.name for kind in kinds],
        "definitions": {kind.name: kind.definition for kind in kinds},
        "legacy_rules": legacy,
        "prompts": {
            name: _count_documents(name, found, settled) for name, found in sets.items()
        },
        **_settled(settled, sets),
        **_parsed(battery, sets),
        **_signals(battery, sets),
        "seq_len": {name: int(documents.ids.shape[1]) for name, documents in sets.items()},
        "bos": any(documents.bos for documents in sets.values()),
        "null_draws": battery.null_draws,
        "text_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
        "rule": {
            "margin": rule.margin, "strong": rule.strong, "level": rule.level,
            "resamples": rule.resamples,
        },
    }  # fmt: skip


def _settled(settled: Settled | None, sets: Mapping[str, Prompts | WordPrompts]) -> dict[str, Any]:
    """The rounds that were added, and which set took no part in them."""
    if settled is None:
        return {}
    fixed = {SET: NOT_GROWN} if SET in sets else {}
    return {"settled": {**settled.settings(), **fixed}}


def _parsed(
    battery: Battery | SignalBattery, sets: Mapping[str, Prompts | WordPrompts]
) -> dict[str, Any]:
    """How much was read of the parsed documents, and where they are from."""
    found = sets.get(SET)
    if not isinstance(found, WordPrompts):
        return {}
    origin = "built-in grammar" if battery.treebank is None else "given"
    words = int((found.n_tokens > 0).sum())
    return {"parsed": {"documents": found.n_units, "words": words, "origin": origin}}


def _signals(
    battery: Battery | SignalBattery, sets: Mapping[str, Prompts | WordPrompts]
) -> dict[str, Any]:
    """What the images or sounds were."""
    return battery.origin(sets) if isinstance(battery, SignalBattery) else {}


def _count_documents(name: str, found: Prompts | WordPrompts, settled: Settled | None) -> int:
    """How many documents of a set were scored; of parsed ones, how many there are to resample."""
    if isinstance(found, WordPrompts):
        return found.n_units
    return len(settled.sums[name].rows) if settled and name in settled.sums else len(found)
