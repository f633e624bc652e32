"""Watch modules run: what each receives and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from .undo import uninterrupted

_WATCHING: ContextVar[tuple[object, ...]] = ContextVar("headatlas_watching", default=())


@contextmanager
def watch_modules(
    modules: Iterable[nn.Module], see: Callable[[nn.Module, tuple[Any, ...], Any], None]
) -> Iterator[None]:
    """Call `see(module, inputs, output)` each time one of `modules` has run.

    Only what runs in the context of the block counts: other threads may run the modules meanwhile.

    Args:
        modules: modules to watch, each once.
        see: gets the module, its arguments, those by keyword last, and its output, as they are.

    Returns:
        A context manager; no hook outlives it, also after an exception or a request to stop.

    Example:
        >>> import torch
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with watch_modules([layer], lambda module, xs, y: seen.append((len(xs), y.shape))):
        ...     _ = layer(input=torch.zeros(5, 2))
        >>> seen
        [(1, torch.Size([5, 3]))]
    """
    mark, before, watched = object(), _WATCHING.get(), tuple(modules)

    def hook(
        module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any], output: Any
    ) -> None:
        if mark in _WATCHING.get():
            see(module, (*args, *named.values()), output)

    try:
        _WATCHING.set((*before, mark))
        for module in watched:
            module.register_forward_hook(hook, with_kwargs=True)
        yield
    finally:
        uninterrupted(lambda: _unwatch(watched, hook, before))


def _unwatch(
    watched: Iterable[nn.Module], hook: Callable[..., None], before: tuple[object, ...]
) -> None:
    for module in watched:
        # found by value: a request to stop may come before a handle is stored
        for key in [key for key, found in module._forward_hooks.items() if found is hook]:
            module._forward_hooks_with_kwargs.pop(key, None)  # first: it is found by the hook
            module._forward_hooks.pop(key, None)
    _WATCHING.set(before)


@contextmanager
def watch_calls(
    modules: Iterable[nn.Module], see: Callable[[nn.Module, Tensor, Tensor], None]
) -> Iterator[None]:
    """Call `see(module, input, output)` each time one of `modules` maps a tensor to a tensor.

    Otherwise as `watch_modules`.

    Args:
        modules: modules to watch, each once.
        see: gets the module, its first argument and its output, both as they are.

    Example:
        >>> import torch
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with watch_calls([layer], lambda module, x, y: seen.append((x.shape, y.shape))):
        ...     _ = layer(torch.zeros(5, 2))
        >>> [(tuple(x), tuple(y)) for x, y in seen]
        [((5, 2), (5, 3))]
    """

    def see_tensors(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            see(module, inputs[0], output)

    with watch_modules(modules, see_tensors):
        yield
