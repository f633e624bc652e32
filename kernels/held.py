"""A setting that holds inside a block, in this thread, and is as it was afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")


@contextlib.contextmanager
def held(setting: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set a context variable inside, also when the block ends with an error.

    Args:
        setting: The variable.
        value: What it holds.

    Example:
        >>> size = ContextVar("size", default=1)
        >>> with held(size, 2):
        ...     size.get()
        2
        >>> size.get()
        1
    """
    token = setting.set(value)
    try:
        yield
    finally:
        setting.reset(token)
