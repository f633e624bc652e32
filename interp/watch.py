"""Watch modules run: the first tensor each receives and the tensor it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

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
        A context manager; no hook outlives it, also after an exception.

    Example:
        >>> import torch
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with watch_calls([layer], lambda module, x, y: seen.append((x.shape, y.shape))):
        ...     _ = layer(torch.zeros(5, 2))
        >>> [(tuple(x), tuple(y)) for x, y in seen]
        [((5, 2), (5, 3))]
    """

    mark = object()

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if mark not in _WATCHING.get():
            return
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            see(module, args[0], output)

    handles = []
    token = _WATCHING.set((*_WATCHING.get(), mark))
    try:
        for module in modules:
            handles.append(module.register_forward_hook(hook))
        yield
    finally:
        _WATCHING.reset(token)
        for handle in handles:
            handle.remove()
