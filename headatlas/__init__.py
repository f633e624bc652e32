"""Headatlas: what each attention head of a transformer does, with evidence.

The front door is flat and lazy: `import headatlas` loads nothing heavy, and each name below is
imported from its room on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> the room that defines it
_HOMES = {
    "HeadAtlas": "circuits.atlas",
    "classify": "circuits.classify",
    "score": "circuits.score",
    "KINDS": "circuits.kinds",
    "Kind": "circuits.kinds",
    "Labels": "circuits.label_vectors",
    "register": "circuits.kinds",
    "load": "interp.load",
    "attach": "interp.attach",
    "Edit": "interp.attach",
    "attention_sites": "interp.sites",
    "HeadId": "interp.heads",
    "capture": "interp.capture",
    "plot_pattern": "interp.plots",
    "attention_probe": "kernels.api",
    "Match": "kernels.api",
    "Weights": "kernels.api",
}

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from .circuits.atlas import HeadAtlas as HeadAtlas
    from .circuits.classify import classify as classify
    from .circuits.kinds import KINDS as KINDS
    from .circuits.kinds import Kind as Kind
    from .circuits.kinds import register as register
    from .circuits.label_vectors import Labels as Labels
    from .circuits.score import score as score
    from .interp.attach import Edit as Edit
    from .interp.attach import attach as attach
    from .interp.capture import capture as capture
    from .interp.heads import HeadId as HeadId
    from .interp.load import load as load
    from .interp.plots import plot_pattern as plot_pattern
    from .interp.sites import attention_sites as attention_sites
    from .kernels.api import Match as Match
    from .kernels.api import Weights as Weights
    from .kernels.api import attention_probe as attention_probe


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'headatlas' has no attribute {name!r}; it has {sorted(_HOMES)}"
        )
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
