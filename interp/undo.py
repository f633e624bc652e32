"""Undo a change to shared state, also when a request to stop arrives in the middle of it."""

from __future__ import annotations

from collections.abc import Callable


def uninterrupted(restore: Callable[[], None]) -> None:
    """Do what undoes a change; a request to stop that arrives meanwhile waits until it is undone.

    Args:
        restore: may be started again at any point of it.

    Example:
        >>> uninterrupted(lambda: print("restored"))
        restored
    """
    try:
        restore()
    except BaseException:
        restore()
        raise
