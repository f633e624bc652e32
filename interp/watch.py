"""Watch modules run: what each receives and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import ReferenceType, ref

from torch import Tensor, nn

_WATCHING: ContextVar[tuple[object, ...]] = ContextVar("headatlas_watching", default=())


@contextmanager
def watch_modules(
    modules: Iterable[nn.Module],
    see: Callable[[nn.Module, tuple[Any, ...], Any], None],
    *,
    begin: Callable[[nn.Module], None] | None = None,
    always: bool = False,
) -> Iterator[None]:
    """Call `see(module, inputs, output)` each time one of `modules` has run.

    Only what runs in the context of the block counts: other threads may run the modules meanwhile.
    Copies of the modules made inside the block are not watched.

    Args:
        modules: modules to watch, each once.
        see: gets the module, its arguments, those by keyword last, and its output, as they are.
        begin: gets the module each time it is about to run.
        always: call `see` also where a module ends by an exception; its output is then None.

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

    def end(module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any], out: Any) -> None:
        see(module, (*args, *named.values()), out)

    def start(module: nn.Module, *_: Any) -> None:
        if begin is not None:
            begin(module)

    mark, watched = object(), tuple(modules)
    hooks = [_Hook(module, "_forward_hooks", mark, end, always=always) for module in watched]
    if begin is not None:
        hooks += [_Hook(module, "_forward_pre_hooks", mark, start) for module in watched]
    try:
        _WATCHING.set((*_WATCHING.get(), mark))
        for hook in hooks:
            hook.install()
        yield
    finally:
        try:  # right here: a request to stop may come at the start of any function
            _unwatch(hooks, mark)
        except BaseException:
            _unwatch(hooks, mark)
            raise


def _unwatch(hooks: Iterable[_Hook], mark: object) -> None:
    for hook in hooks:
        hook.remove()
    _WATCHING.set(tuple(other for other in _WATCHING.get() if other is not mark))


class _Hook:
    """A hook on one module, which goes along when the module is copied, and goes with it."""

    def __init__(
        self,
        owner: nn.Module,
        table: str,
        mark: object,
        call: Callable[..., None],
        *,
        always: bool = False,
    ) -> None:
        self.owner, self.table, self.mark, self.call = owner, table, mark, call
        self.always = always
        self.twins: list[ReferenceType[nn.Module]] = []

    def __call__(self, module: nn.Module, *event: Any) -> None:
        if module is self.owner and self.mark in _WATCHING.get():
            self.call(module, *event)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        """Itself, having noted which module it is copied to."""
        twins = (memo.get(id(module)) for module in self._modules())
        self.twins += [ref(twin) for twin in twins if isinstance(twin, nn.Module)]
        return self

    def install(self) -> None:
        if self.table == "_forward_hooks":
            self.owner.register_forward_hook(self, with_kwargs=True, always_call=self.always)
        else:
            self.owner.register_forward_pre_hook(self, with_kwargs=True)

    def remove(self) -> None:
        for module in self._modules():
            hooks = getattr(module, self.table)
            # found by value: a request to stop may come before a handle is stored
            for key in [key for key, found in hooks.items() if found is self]:
                # first: it is found by the hook
                getattr(module, f"{self.table}_with_kwargs").pop(key, None)
                module._forward_hooks_always_called.pop(key, None)
                hooks.pop(key, None)

    def _modules(self) -> list[nn.Module]:
        twins = [twin() for twin in self.twins]
        return [self.owner, *(twin for twin in twins if twin is not None)]


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
