"""Observers and edits on attention layers of our own, as `attach` puts them on a model's.

What is asked for lives in a context variable, which each layer reads when it attends, so threads
and nested blocks keep to themselves. A hook on the model around the layers, for the length of the
block, tells its forward passes apart.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from torch import nn

from ..attention_call import AttentionCall, Edit, Observer
from ..errors import InputError
from ..hook_requests import check_sites, read_requests
from ..sites import Site
from ..watch import watch_modules


@dataclass(eq=False)
class _Frame:
    """What one `attach_layers` asked for. `model` keeps the ids in `sites` taken.

    A block may end in another context than it began in, where its frame stays: `over` ends it.
    """

    model: nn.Module
    sites: Mapping[int, Site]
    observers: tuple[Observer, ...]
    edits: tuple[Edit, ...]
    over: bool = False


_FRAMES: ContextVar[tuple[_Frame, ...]] = ContextVar("headatlas_layer_frames", default=())

# Which layers each block saw begin a sequence, in the forward pass of its model that is under way.
_USES: ContextVar[tuple[tuple[_Frame, list[Site]], ...]] = ContextVar("headatlas_uses", default=())


@contextmanager
def attach_layers(
    model: nn.Module, *, observers: Sequence[Observer] = (), edits: Sequence[Edit] = ()
) -> Iterator[tuple[Site, ...]]:
    """Let `observers` see, and `edits` change, the attention of every `HookedAttention` in `model`.

    Edits act as in `attach`: those of q, k and v first (after RoPE and QK-norm; all keys so far in
    decoding), then of the scores, the pattern, z; within a target in the order given, those of an
    outer block first. Those for a site also act where its layer decodes with absorbed latents, on
    what there is then (see `HookedAttention.decode`). The cache is never edited. Observers come
    after all edits and only look: what they wrote into a call's tensors would end up in the layer's
    output and in the caller's cache.

    Under `torch.autocast` q, k and v come in its dtype, and edits and observers run with it off, as
    in `attach`. As there, do not wrap the layers in `torch.utils.checkpoint`: the backward pass
    would run them again without the edits, and gradients would be silently wrong.

    Only forward passes inside the block and in its own context take part: a thread started inside
    runs the plain layer, unless `contextvars.copy_context().run` takes the block along.

    Args:
        model: a `HookedAttention`, or a module that holds some.
        observers: functions called with each `AttentionCall`.
        edits: changes to make.

    Returns:
        A context manager that yields the layers' sites, numbered in the order of named_modules.

    Raises:
        InputError: the model holds no `HookedAttention`; an observer that is no function; an edit
            that is no `Edit` or names a site that the model does not have; at the end of a forward
            pass in the block, that it called a layer more than once, other than to go on decoding.

    Example:
        >>> import torch
        >>> from headatlas.interp.layers.attention import HookedAttention
        >>> from headatlas.interp.layers.config import AttentionConfig
        >>> layer, seen = HookedAttention(AttentionConfig(d_model=8, n_heads=2)), []
        >>> with attach_layers(layer, observers=[lambda call: seen.append(call.pattern.shape)]):
        ...     _ = layer(torch.zeros(1, 3, 8))
        >>> seen
        [torch.Size([1, 2, 3, 3])]
    """
    from .attention import HookedAttention  # which reads the frames from here

    if not isinstance(model, nn.Module):
        raise InputError(
            f"expected a HookedAttention, or a module that holds some; got {type(model).__name__}."
        )
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, HookedAttention)]
    if not found:
        raise InputError(
            f"{type(model).__name__} holds no HookedAttention. "
            "For a transformers model, use attach."
        )
    sites = tuple(replace(m.site, module=name, layer=i) for i, (name, m) in enumerate(found))
    table = {id(layer): site for (_, layer), site in zip(found, sites, strict=True)}
    requests = read_requests(observers, edits)
    absorbed = (m.absorbed_site(site) for (_, m), site in zip(found, sites, strict=True))
    check_sites(requests[1], (*sites, *absorbed), "those that attach_layers(model) yields")
    frame = _Frame(model, table, *requests)
    roots = [] if isinstance(model, HookedAttention) else [model]
    with watch_modules(roots, lambda *_: _check_uses(frame), begin=lambda _: _count_anew(frame)):
        try:
            _FRAMES.set((*_FRAMES.get(), frame))
            yield sites
        finally:
            try:  # right here: a request to stop may come at the start of any function
                _end(frame)
            except BaseException:
                _end(frame)
                raise


def _end(frame: _Frame) -> None:
    frame.over = True
    _FRAMES.set(tuple(other for other in _FRAMES.get() if other is not frame))
    _USES.set(_others(frame))


def _count_anew(frame: _Frame) -> None:
    _USES.set((*_others(frame), (frame, [])))


def _note_use(frame: _Frame, site: Site) -> None:
    for other, used in _USES.get():
        if other is frame:
            used.append(site)


def _others(frame: _Frame) -> tuple[tuple[_Frame, list[Site]], ...]:
    return tuple(entry for entry in _USES.get() if entry[0] is not frame)


def _check_uses(frame: _Frame) -> None:
    """Refuse, at the end of a forward pass, that a layer began more than one sequence in it."""
    uses = next((used for other, used in _USES.get() if other is frame), [])
    _USES.set(_others(frame))
    twice = [site.module for site in frame.sites.values() if uses.count(site) > 1]
    if twice:
        raise InputError(
            f"{type(frame.model).__name__} calls {', '.join(twice[:3])} more than once in a "
            "forward pass, so a head there has no single address. Attach to the layer itself, "
            "around each of its calls."
        )


def attend(layer: nn.Module, call: AttentionCall, seen_as: Callable[[Site], Site]) -> None:
    """Compute `call` with the edits of the blocks around, then show it to their observers.

    Args:
        layer: whose call it is.
        call: not computed yet.
        seen_as: what the call's form makes of the layer's site.
    """
    own = call.site
    frames = [f for f in _FRAMES.get() if id(layer) in f.sites and not f.over]
    edits: list[tuple[Edit, Site | None]] = []
    for frame in frames:
        plain = frame.sites[id(layer)]
        seen = seen_as(plain)
        if call.where.query == 0:  # later ones go on decoding, with the same address
            _note_use(frame, plain)
        edits += [(e, seen) for e in frame.edits if e.acts_at(plain) or e.acts_at(seen)]
    call.compute(edits)
    call.at(own)
    for frame in frames:
        shown = copy.copy(call).at(seen_as(frame.sites[id(layer)]))
        for observer in frame.observers:
            observer(shown)
