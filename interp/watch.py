"""Watch modules run: the first tensor each receives and the tensor it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from .undo import uninterrupted

_WATCHING: ContextVar[tuple[object, ...]] = ContextVar("headatlas_watching", default=())


@contextmanager
def watch_calls(
    modules: Iterable[nn.Module], see: Callable[[nn.Module, Tensor, Tensor], None]
) -> Iterator[None]:
    """Call `see(module, input, output)` each time one of `modules` maps a tensor to a tensor.

    Only what runs in the context of the block counts: other threads may run the modules meanwhile.

    Args:
        modules: modules to watch, each once.
        see: gets the module, its first positional argument and its output, both as they are.

    Returns:
        A context manager; no hook outlives it, also after an exception or a request to stop.

    Example:
        >>> import torch
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with watch_calls([layer], lambda module, x, y: seen.append((x.shape, y.shape))):
        ...     _ = layer(torch.zeros(5, 2))
        >>> [(tuple(x), tuple(y)) for x, y in seen]
        [((5, 2), (5, 3))]
    """
    mark, before, watched = object(), _WATCHING.get(), tuple(modules)

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if mark not in _WATCHING.get():
            return
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            see(module, args[0], output)

    def unwatch() -> None:
        # found by value: a request to stop may come before a handle is stored
        for module in watched:
            for key in [key for key, found in module._forward_hooks.items() if found is hook]:
                module._forward_hooks.pop(key, None)
        _WATCHING.set(before)

    try:
        _WATCHING.set((*before, mark))
        for module in watched:
            module.register_forward_hook(hook)
        yield
    finally:
        uninterrupted(unwatch)
