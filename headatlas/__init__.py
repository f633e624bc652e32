"""Headatlas: what each attention head of a transformer does, with evidence.

The front door is flat and lazy: `import headatlas` loads nothing heavy, and each name below is
imported from its room on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> the file that defines it
_HOMES = {
    "HeadAtlas": "circuits.atlas",
    "classify": "circuits.classify",
    "score": "circuits.score",
    "KINDS": "circuits.kinds",
    "Kind": "circuits.kind",
    "Labels": "circuits.label_vectors",
    "register": "circuits.kinds",
    "load": "interp.load",
    "cost": "circuits.cost.report",
    "attach": "interp.attach",
    "Edit": "interp.attach",
    "interventions": "interp.interventions",
    "Intervention": "interp.intervention",
    "run": "interp.intervene",
    "intervene": "interp.intervene",
    "head_weights": "interp.weights",
    "HookedAttention": "interp.layers.attention",
    "tokenize": "interp.tokens",
    "attention_sites": "interp.sites",
    "HeadId": "interp.heads",
    "KvHeadId": "interp.heads",
    "capture": "interp.capture",
    "load_cache": "interp.capture",
    "plot_pattern": "interp.plots",
    "attention_probe": "kernels.api",
    "Match": "kernels.api",
    "Weights": "kernels.api",
}

_WHOLE = frozenset({"interventions"})  # the file itself

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from .circuits.atlas import HeadAtlas as HeadAtlas
    from .circuits.classify import classify as classify
    from .circuits.cost.report import cost as cost
    from .circuits.kind import Kind as Kind
    from .circuits.kinds import KINDS as KINDS
    from .circuits.kinds import register as register
    from .circuits.label_vectors import Labels as Labels
    from .circuits.score import score as score
    from .interp import interventions as interventions
    from .interp.attach import Edit as Edit
    from .interp.attach import attach as attach
    from .interp.capture import capture as capture
    from .interp.capture import load_cache as load_cache
    from .interp.heads import HeadId as HeadId
    from .interp.heads import KvHeadId as KvHeadId
    from .interp.intervene import intervene as intervene
    from .interp.intervene import run as run
    from .interp.intervention import Intervention as Intervention
    from .interp.layers.attention import HookedAttention as HookedAttention
    from .interp.load import load as load
    from .interp.plots import plot_pattern as plot_pattern
    from .interp.sites import attention_sites as attention_sites
    from .interp.tokens import tokenize as tokenize
    from .interp.weights import head_weights as head_weights
    from .kernels.api import Match as Match
    from .kernels.api import Weights as Weights
    from .kernels.api import attention_probe as attention_probe


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'headatlas' has no attribute {name!r}; it has {sorted(_HOMES)}"
        )
    home = importlib.import_module(f".{_HOMES[name]}", __name__)
    value = home if name in _WHOLE else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
