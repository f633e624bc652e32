"""Who sees and edits a model's attention at this moment: one frame per block, in this context.

`attach` enters a frame for the length of its block. It lives in a context variable, so threads and
nested blocks keep to themselves.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakSet

from torch import Tensor, nn

from .attention_call import AttentionCall, Edit, Observer
from .call_checks import refuse_checkpointing
from .errors import InputError
from .sites import Site
from .switch import asks_unheld


@dataclass(frozen=True, eq=False)
class Frame:
    """What one `attach` asked for: whose modules, who watches, what is edited."""

    site_of: Callable[..., Site | None]  # of a module and, in a survey, its q, k and v
    observers: tuple[Observer, ...]
    edits: tuple[Edit, ...]
    model: nn.Module

    @cached_property
    def modules(self) -> frozenset[int]:
        """Ids of the model's modules."""
        return frozenset(id(module) for module in self.model.modules())

    @property
    def acts(self) -> bool:
        """Whether a forward pass that it does not reach would go unnoticed."""
        return bool(self.observers or self.edits)


_FRAMES: ContextVar[tuple[Frame, ...]] = ContextVar("headatlas_frames", default=())

Views = Sequence[tuple[Frame, Site]]
"""The frames that see a call, outermost first, and what each calls the module."""


@contextmanager
def entered(frame: Frame) -> Iterator[None]:
    """`frame` on top of this context, for the length of the block."""
    with _announced(frame):
        try:
            _FRAMES.set((*_FRAMES.get(), frame))
            yield
        finally:
            try:  # right here: a request to stop may come at the start of any function
                _leave(frame)
            except BaseException:
                _leave(frame)
                raise


def _leave(frame: Frame, before: tuple[Frame, ...] = ()) -> None:
    """Take `frame` off this context and put back what it stood for; a second time does nothing.

    It goes by the frame alone: a block that is stopped at its end may end later than those after.
    """
    frames = _FRAMES.get()
    if frame in frames:
        at = frames.index(frame)
        _FRAMES.set((*frames[:at], *before, *frames[at + 1 :]))


@contextmanager
def unobserved(model: nn.Module) -> Iterator[None]:
    """Run `model` for ourselves: observers and edits of blocks around this one rest."""
    before, alone = _FRAMES.get(), Frame(lambda *_: None, (), (), model)
    try:
        _FRAMES.set((alone,))
        yield
    finally:
        try:  # right here: a request to stop may come at the start of any function
            _leave(alone, before)
        except BaseException:
            _leave(alone, before)
            raise


# Modules whose attention stays within each token, among its layers say: a survey found them so.
WITHIN_TOKENS: WeakSet[nn.Module] = WeakSet()

# Models in which what a query without keys gives goes on to tokens: a survey found them so.
FULL_ROWS: WeakSet[nn.Module] = WeakSet()

_LOCK = threading.RLock()

# The frames of all threads that observe or edit something at this moment.
_ACTING: list[Frame] = []


def is_edited(model: nn.Module) -> bool:
    """Whether some block edits the model's attention at this moment."""
    modules = {id(module) for module in model.modules()}
    return any(frame.edits and not frame.modules.isdisjoint(modules) for frame in _ACTING)


@contextmanager
def _announced(frame: Frame) -> Iterator[None]:
    if not frame.acts:
        yield
        return
    try:
        with _LOCK:
            _ACTING.append(frame)
        yield
    finally:
        try:  # right here: a request to stop may come at the start of any function
            _retire(frame)
        except BaseException:
            _retire(frame)
            raise


def _retire(frame: Frame) -> None:
    with _LOCK:
        _ACTING[:] = [other for other in _ACTING if other is not frame]


def views_of(module: nn.Module, *tensors: Tensor) -> Views:
    """Who sees a call of `module`.

    Raises:
        InputError: nobody does, though somebody observes or edits its model.
    """
    views = [(frame, frame.site_of(module, *tensors)) for frame in _FRAMES.get()]
    seen = [(frame, site) for frame, site in views if site is not None]
    if not seen and module not in WITHIN_TOKENS:
        _refuse_unseen(module)
    if module.training:
        refuse_checkpointing([frame.model for frame, _ in seen])
    return seen


def edits_of(views: Views) -> list[tuple[Edit, Site | None]]:
    """Their edits of this call, in the order in which they act."""
    return [(edit, site) for frame, site in views for edit in frame.edits if edit.acts_at(site)]


def show(call: AttentionCall, views: Views) -> None:
    """Give the finished call to their observers, each under the name its frame knows."""
    for frame, site in views:
        shown = copy.copy(call).at(site)
        for observer in frame.observers:
            observer(shown)


def _refuse_unseen(module: nn.Module) -> None:
    """Refuse a call that no frame of this context sees, unless it is plainly meant so."""
    kind = type(module).__name__
    mine = [frame for frame in _FRAMES.get() if id(module) in frame.modules]
    if any(frame.acts for frame in mine):
        raise InputError(
            f"{kind} attends here but did not when the model was surveyed, so observers and edits "
            "would miss it. This way of running the model is not supported."
        )
    if mine:
        return
    with _LOCK:
        elsewhere = any(id(module) in frame.modules for frame in _ACTING)
    if elsewhere:
        raise InputError(
            f"{kind} runs in a thread (or context) without an attach block of its own, while "
            "another one observes or edits the model. Start the thread with "
            "contextvars.copy_context().run to take the block along, or attach(model) inside it."
        )
    if asks_unheld(getattr(module, "config", None)):
        raise InputError(
            f"{kind} belongs to a copy made inside an attach block, which the block does not see. "
            "Copy the model outside, or call set_attn_implementation('sdpa') on the copy."
        )
