"""Run the later blocks of a model alone, from the states that a whole run left before each block.

A change in block l leaves what comes before it as it was. `keep_states` records what enters each
block of a run, and `resumed` lets a later forward pass of the same inputs begin at block l: the
blocks before it hand the kept state on and compute nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError
from .sites import Site


class UnfitBlocksError(InputError):
    """A model's blocks pass on more than one tensor of states, so none can be left out."""


_ACTIVE: ContextVar[frozenset[object]] = ContextVar("headatlas_resume", default=frozenset())


_LOCK = threading.RLock()


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a model, in the order of its list of layers.

    Args:
        modules: one per layer.
        of: index of the block that holds each attention site.
    """

    modules: tuple[nn.Module, ...]
    of: dict[Site, int]


@dataclass(eq=False)
class States:
    """What entered each block of a run.

    Attributes:
        entering: the states [batch, pos, d_model], one per block, in call order.
        rest: what each block returns beside its state: None for a bare tensor, else how many
            further entries its tuple has.
    """

    entering: list[Tensor] = field(default_factory=list)
    rest: list[int | None] = field(default_factory=list)


def find_blocks(model: nn.Module, sites: Sequence[Site]) -> Blocks | None:
    """The list of layers that holds all attention sites; None if no single list does.

    Layers that run several times in a forward pass are none.

    It is the outermost `ModuleList` on the way to a site.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from headatlas.interp.sites import attention_sites
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=2, n_head=2))
        >>> blocks = find_blocks(model, attention_sites(model))
        >>> [type(block).__name__ for block in blocks.modules], [*blocks.of.values()]
        (['GPT2Block', 'GPT2Block'], [0, 1])
    """
    if any(site.call for site in sites):
        return None
    modules = dict(model.named_modules())
    lists, places = set[str](), dict[Site, int]()
    for site in sites:
        parts = site.module.split(".")
        depth = next(
            (
                n
                for n in range(len(parts))
                if isinstance(modules[".".join(parts[:n])], nn.ModuleList)
            ),
            None,
        )
        if depth is None:
            return None
        lists.add(".".join(parts[:depth]))
        places[site] = int(parts[depth])
    if len(lists) != 1:
        return None
    return Blocks(tuple(modules[lists.pop()]), places)  # type: ignore[arg-type]


@contextmanager
def keep_states(blocks: Blocks) -> Iterator[States]:
    """Record what enters each block of a model in the one forward pass made inside the block.

    Yields:
        The states, filled while the model runs.

    Raises:
        UnfitBlocksError: in the forward pass: a block reads or returns something else than one
            tensor of states.
    """
    states = States()

    def record(index: int, own: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            states.entering.append(_state(args, kwargs))
            out = own(*args, **kwargs)
            states.rest.append(_rest(blocks.modules[index], out))
            return out

        return forward

    with _overridden(blocks.modules, record):
        yield states


@contextmanager
def resumed(blocks: Blocks, start: int, state: Tensor, states: States) -> Iterator[None]:
    """Let forward passes inside the block begin at block `start`, which reads `state`.

    The model is given the same inputs as in the whole run, perhaps repeated along the batch; it
    embeds them and makes its masks as ever. On exit, also by an exception, the blocks are as they
    were. Other threads that run the model meanwhile run all of it.

    Args:
        blocks: the model's.
        start: the first block that computes.
        state: what enters it [batch, pos, d_model].
        states: of the whole run, which tell what the blocks return.

    Raises:
        InputError: there is no such block.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from headatlas.interp.sites import attention_sites
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=2, n_head=2)).eval()
        >>> blocks = find_blocks(model, attention_sites(model))
        >>> with torch.no_grad(), keep_states(blocks) as states:
        ...     whole = model(torch.tensor([[1, 2, 3]])).logits
        >>> with torch.no_grad(), resumed(blocks, 1, states.entering[1], states):
        ...     torch.equal(model(torch.tensor([[1, 2, 3]])).logits, whole)
        True
    """
    if not 0 <= start < len(states.entering):
        raise InputError(f"the run kept states of {len(states.entering)} blocks; got {start}.")

    def replay(index: int, own: Callable[..., Any]) -> Callable[..., Any]:
        rest = states.rest[index]

        def skip(*_args: Any, **_kwargs: Any) -> Any:
            return state if rest is None else (state, *([None] * rest))

        def begin(*args: Any, **kwargs: Any) -> Any:
            if args:
                return own(state, *args[1:], **kwargs)
            return own(**{**kwargs, "hidden_states": state})

        return skip if index < start else begin

    with _overridden(blocks.modules[: start + 1], replay):
        yield


def _state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    state = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(state, Tensor):
        raise UnfitBlocksError("this model's blocks do not read one tensor of states.")
    return state


def _rest(block: nn.Module, out: Any) -> int | None:
    """How many entries a block returns beside its state, all of them empty."""
    if isinstance(out, Tensor):
        return None
    is_state = isinstance(out, tuple) and bool(out) and isinstance(out[0], Tensor)
    if is_state and all(entry is None for entry in out[1:]):
        return len(out) - 1
    raise UnfitBlocksError(f"{type(block).__name__} returns more than one tensor of states.")


@contextmanager
def _overridden(
    modules: Sequence[nn.Module], make: Callable[[int, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Give each module another `forward` for this thread; others get its own.

    Threads take turns: blocks that overlapped without nesting would give back each other's.
    """
    with _LOCK:
        yield from _override(modules, make)


def _override(
    modules: Sequence[nn.Module], make: Callable[[int, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    block, before = object(), [module.__dict__.get("forward") for module in modules]
    try:
        for index, module in enumerate(modules):
            module.forward = _guarded(block, module.forward, make(index, module.forward))
        _ACTIVE.set(_ACTIVE.get() | {block})
        yield
    finally:
        try:  # right here: a request to stop may come at the start of any function
            _give_back(modules, before, block)
        except BaseException:
            _give_back(modules, before, block)
            raise


def _guarded(block: object, own: Callable[..., Any], other: Callable[..., Any]) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return (other if block in _ACTIVE.get() else own)(*args, **kwargs)

    return forward


def _give_back(modules: Sequence[nn.Module], before: Sequence[Any], block: object) -> None:
    _ACTIVE.set(_ACTIVE.get() - {block})
    for module, forward in zip(modules, before, strict=True):
        if forward is not None:
            module.forward = forward
        else:
            module.__dict__.pop("forward", None)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs agree to rounding, finite throughout.

    max |a − b| ≤ 64 ε · max |b| in float32 and wider, where sums are long beside ε; 4 ε in narrow
    types, whose sums are kept in float32.
    """
    if one.shape != other.shape:
        return False
    eps, wide = torch.finfo(other.dtype).eps, torch.finfo(torch.float32).eps
    limit = 64 * wide if eps <= wide else 4 * eps
    distance = (one.double() - other.double()).abs().max()
    return bool(distance <= limit * other.double().abs().max())
