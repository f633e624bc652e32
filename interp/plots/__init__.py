"""Pictures of heads, as plotly figures that can be trusted and passed on.

Each name is imported from its file on first use, so that plotly, which takes its time, is loaded
only where a figure is wanted.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# name -> the file that defines it
_HOMES = {
    "check_figure_suffix": "files",
    "pattern_image": "image",
    "plot_composition": "composition",
    "plot_difference": "difference",
    "plot_head_map": "head_map",
    "plot_offsets": "offsets",
    "plot_pattern": "pattern",
    "plot_split": "split",
    "write_figure": "files",
    "write_pattern_image": "image",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from .composition import plot_composition as plot_composition
    from .difference import plot_difference as plot_difference
    from .files import check_figure_suffix as check_figure_suffix
    from .files import write_figure as write_figure
    from .head_map import plot_head_map as plot_head_map
    from .image import pattern_image as pattern_image
    from .image import write_pattern_image as write_pattern_image
    from .offsets import plot_offsets as plot_offsets
    from .pattern import plot_pattern as plot_pattern
    from .split import plot_split as plot_split


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {__all__}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
