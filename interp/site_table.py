"""Which attention site a call is: by its module and, where layers share weights, by its turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .errors import InputError
from .sites import Site
from .watch import watch_modules

_EVERY = -1  # in the place of a module's id: all of them
# how often each module ran since its model began to run, one count per table
_TURNS: ContextVar[Mapping[int, Counter[int]]] = ContextVar("headatlas_turns", default={})  # noqa: B039


class SiteTable:
    """The sites of a model, looked up call by call.

    A module that runs several times in a forward pass has a site for each time. Its turns are
    counted from the begin of its base model's forward, so that a run that was broken off leaves
    nothing behind; each thread counts for itself.

    Args:
        model: the model.
        sites: its sites.

    Attributes:
        modules: the modules that attend, each once.
        inline: those of them whose class computes attention itself.
    """

    def __init__(self, model: PreTrainedModel, sites: Sequence[Site]) -> None:
        modules: dict[str, nn.Module] = dict(model.named_modules())
        self._base = model.base_model
        self._sites: dict[int, dict[int, Site]] = {}
        for site in sites:
            self._sites.setdefault(id(modules[site.module]), {})[site.call] = site
        self.modules = [modules[site.module] for site in sites if not site.call]
        self.inline = [modules[s.module] for s in sites if s.inline and not s.call]
        self._shared = {key for key, own in self._sites.items() if len(own) > 1}
        # by the site before, among modules with several: another order would move the layers
        self._order = [site for site in sites if id(modules[site.module]) in self._shared]

    def __call__(self, module: nn.Module, *_: Any) -> Site | None:
        """The site of the call that `module` makes now, None where it has none.

        Raises:
            InputError: a module with several sites runs outside of its model, or once too often.
        """
        own = self._sites.get(id(module))
        if own is None:
            return None
        if id(module) not in self._shared:
            return own[0]
        turns = _TURNS.get().get(id(self))
        if turns is None:
            raise InputError(
                f"{own[0].label} runs several times in a forward pass, with a site for each, and "
                "which of them this is shows only while the whole model runs. Run the model itself."
            )
        turn = turns[id(module)]
        turns[id(module)] += 1
        place = turns[_EVERY]
        turns[_EVERY] += 1
        if turn in own and (place >= len(self._order) or self._order[place] != own[turn]):
            raise InputError(
                f"{own[0].label} attends here in another order among the modules that run several "
                "times than when the model was surveyed, so its layers cannot be told apart. This "
                "way of running the model is not supported."
            )
        if turn not in own:
            raise InputError(
                f"{own[0].label} attends more often here than when the model was surveyed, so "
                "observers and edits would miss it. This way of running the model is not supported."
            )
        return own[turn]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the turns of modules with several sites inside the block."""
        if not self._shared:
            yield
            return
        with watch_modules([self._base], self._end, begin=self._begin, always=True):
            yield

    def _begin(self, _: nn.Module) -> None:
        _TURNS.set({**_TURNS.get(), id(self): Counter()})

    def _end(self, *_: Any) -> None:
        _TURNS.set({key: turns for key, turns in _TURNS.get().items() if key != id(self)})
