"""One interface for all ways of choosing which heads to remove, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.sites import Site, unbridged
from ...interp.texts import Documents
from ..ablate.evaluate import Progress, evaluate
from ..arguments import whole_number
from ..atlas import HeadAtlas
from ..causal.decoder import check_decoder
from .gate_result import reached_share
from .gates import Gates
from .importance import GateGradients, magnitude, michel, taylor
from .settings import GateTraining
from .train import train_gates

METHODS = {
    "random": "any head is as likely as another",
    "layer_random": "random heads, as many per layer as another method removes, or evenly",
    "magnitude": "least ‖W_O[h]‖ first",
    "michel": "least mean |gradient by the head's gate| first, a tenth of the heads per step",
    "taylor": "least mean squared gradient by the head's gate first, a tenth per step",
    "greedy": "the head whose removal raises the measured loss least, one after the other",
    "functional": "heads without a label first, then weak, then strong ones; ties by magnitude",
    "l0": "lowest log α of trained hard-concrete gates first",
}
"""The methods, and how each orders heads: those to be removed first come first."""

RANDOM = ("random", "layer_random")
"""Methods whose order is drawn."""

LABELLED_GRADES = ("weak", "strong")

_FEW = 64  # heads that greedy choice can try one after the other
_SINK = "first_position"  # a head that rests there does nothing


def order_heads(
    model: Any,
    documents: Documents,
    method: str,
    *,
    n: int,
    like: Sequence[HeadId] | None = None,
    atlas: HeadAtlas | None = None,
    config: GateTraining | None = None,
    step: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[HeadId, ...]:
    """Which heads to remove, the first to go first.

    Whatever a method learns from data it learns from `documents`, the same for all. Those that
    choose in steps measure anew with the heads removed that were chosen before. Except for `l0`,
    which is trained for its n, the order for a smaller n is the beginning of that for a larger.

    Args:
        model: a transformers decoder with a language-model head. It is not changed.
        documents: what `read_documents` gives.
        method: one of `METHODS`.
        n: how many heads.
        like: for `layer_random`: heads in the order in which another method removes them, at least
            n; the i-th removed here is of the layer of the i-th there. None: evenly over layers.
        atlas: the labels, for `functional`.
        config: for `l0`; its `target` or `lam` is replaced by the target n. None: the defaults.
        step: heads chosen before gradients or losses are measured again. None: a tenth of the
            heads; for `greedy` one, in a model of up to 64.
        seed: of `random` and `layer_random`, and of the gates' training where `config` is None.
        progress: called with (stage, done, total).

    Returns:
        n heads.

    Raises:
        InputError: no such method, a model that is no decoder, n beyond its heads, `functional`
            without an atlas of the model, or `like` with too few heads.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.interp.texts import read_documents
        >>> model, tokenizer = ha.load("tiny")
        >>> text = read_documents(["a cat sat on a mat"], model, tokenizer, n=1, seq_len=16)
        >>> michel = order_heads(model, text, "michel", n=4)
        >>> drawn = order_heads(model, text, "layer_random", n=4, like=michel)
        >>> [head.layer for head in michel] == [head.layer for head in drawn]
        True

    Reference:
        Michel 2019; Molchanov 2019 (Taylor); Voita 2019, Louizos 2018 (L0).
    """
    model = unbridged(model)
    check_methods([method])
    sites = check_decoder(model)
    every = tuple(head for site in sites for head in site.heads)
    n = whole_number("n", n, 0)
    if n > len(every):
        raise InputError(f"n={n}, but the model has {len(every)} heads.")
    steps = None if step is None else whole_number("step", step, 1)
    task = _Task(model, documents, sites, every, n, steps, progress)
    if method == "random":
        return _random(task, seed)
    if method == "layer_random":
        return _layer_random(task, like, seed)
    if method == "functional":
        return _functional(task, atlas)
    if method == "l0":
        return _l0(task, config, seed)
    return _MEASURED[method](task)


def check_methods(methods: Sequence[Any]) -> tuple[str, ...]:
    """The methods, each once.

    Raises:
        InputError: none, or one that is not among `METHODS`.
    """
    for method in methods:
        if not isinstance(method, str) or method not in METHODS:
            raise InputError(f"methods are among {', '.join(METHODS)}; got {method!r}.")
    if not methods:
        raise InputError(f"no method is named; choose among {', '.join(METHODS)}.")
    return tuple(dict.fromkeys(methods))


@dataclass(frozen=True)
class _Task:
    """What to choose from, and how much."""

    model: Any
    documents: Documents
    sites: tuple[Site, ...]
    every: tuple[HeadId, ...]
    n: int
    step: int | None
    progress: Progress | None

    @property
    def tenth(self) -> int:
        """A tenth of the heads, one at least."""
        return max(1, round(len(self.every) / 10))

    def report(self, method: str, done: int) -> None:
        if self.progress is not None:
            self.progress(f"rank heads: {method}", done, self.n)


def _random(task: _Task, seed: int) -> tuple[HeadId, ...]:
    rng = np.random.default_rng((whole_number("seed", seed, 0), 60))
    return tuple(task.every[place] for place in rng.permutation(len(task.every))[: task.n])


def _layer_random(task: _Task, like: Sequence[HeadId] | None, seed: int) -> tuple[HeadId, ...]:
    rng = np.random.default_rng((whole_number("seed", seed, 0), 61))
    pools = {
        (site.stack, site.layer): [site.heads[place] for place in rng.permutation(site.n_heads)]
        for site in task.sites
    }
    if like is not None:
        if len(like) < task.n or len(set(like)) != len(like) or not set(like) <= set(task.every):
            raise InputError(
                f"like holds {len(like)} heads; give {task.n} or more of the model's, each once."
            )
        return tuple(pools[head.site, head.layer].pop() for head in like[: task.n])
    found: list[HeadId] = []
    while len(found) < task.n:  # one head of each layer a round
        layers = [layer for layer, pool in pools.items() if pool]
        found += [pools[layers[place]].pop() for place in rng.permutation(len(layers))]
    return tuple(found[: task.n])


def _magnitude(task: _Task) -> tuple[HeadId, ...]:
    norms = magnitude(task.model)
    return tuple(sorted(task.every, key=lambda head: (norms[head], head))[: task.n])


def _functional(task: _Task, atlas: HeadAtlas | None) -> tuple[HeadId, ...]:
    ranks, norms = grades_of(atlas, task.every), magnitude(task.model)
    return tuple(
        sorted(task.every, key=lambda head: (ranks.get(head, 0), norms[head], head))[: task.n]
    )


def grades_of(atlas: Any, heads: Sequence[HeadId]) -> dict[HeadId, int]:
    """The best grade of each labelled head, 1 for weak and 2 for strong; a sink is no label.

    Raises:
        InputError: no atlas, or one of other heads.
    """
    if not isinstance(atlas, HeadAtlas):
        raise InputError(
            "the functional heads are told by an atlas: pass atlas=classify(model, tokenizer); "
            f"got {type(atlas).__name__}."
        )
    if set(atlas) != set(heads):
        raise InputError(
            f"the atlas is of {len(atlas)} heads and the model has {len(heads)}; classify this "
            "model, all heads of it."
        )
    labels = atlas.labels(exclude=_SINK if _SINK in atlas.kinds else ())
    return {
        head: max(LABELLED_GRADES.index(grade) + 1 for grade in kinds.values())
        for head, kinds in labels.items()
    }


def _by_gradients(
    name: str, score: Callable[[np.ndarray, tuple[HeadId, ...], list[HeadId]], np.ndarray]
) -> Callable[[_Task], tuple[HeadId, ...]]:
    def order(task: _Task) -> tuple[HeadId, ...]:
        gradients = GateGradients(task.model, task.documents.prompts)
        found: list[HeadId] = []
        step = task.step or task.tenth
        while len(found) < task.n:
            scores = score(gradients.at(found), gradients.heads, found)
            left = [place for place, head in enumerate(gradients.heads) if head not in found]
            left.sort(key=lambda place: (scores[place], place))
            found += [gradients.heads[place] for place in left[:step]]
            task.report(name, min(len(found), task.n))
        return tuple(found[: task.n])

    return order


def _greedy(task: _Task) -> tuple[HeadId, ...]:
    step = task.step or (1 if len(task.every) <= _FEW else task.tenth)
    found: list[HeadId] = []
    while len(found) < task.n:
        left = [head for head in task.every if head not in found]
        losses = evaluate(task.model, task.documents, [[*found, head] for head in left]).loss_nats
        best = sorted(range(len(left)), key=lambda place: (losses[place], place))
        found += [left[place] for place in best[:step]]
        task.report("greedy", min(len(found), task.n))
    return tuple(found[: task.n])


def _l0(task: _Task, config: GateTraining | None, seed: int) -> tuple[HeadId, ...]:
    if task.n in (0, len(task.every)):  # nothing to learn
        return task.every[: task.n]
    share = task.n / len(task.every)
    wanted = GateTraining(target=share, seed=seed) if config is None else replace(
        config, target=share, lam=None
    )  # fmt: skip
    if wanted.per == "group":
        reached = reached_share(Gates(task.sites, "group"), share)
        if reached != share:
            raise InputError(
                f"whole groups of {len(task.every)} heads do not add up to {task.n}; the nearest "
                f"number is {round(reached * len(task.every))}."
            )
    result = train_gates(task.model, task.documents, config=wanted, progress=task.progress)
    return result.removed(task.n)


_MEASURED: dict[str, Callable[[_Task], tuple[HeadId, ...]]] = {
    "magnitude": _magnitude,
    "michel": _by_gradients("michel", michel),
    "taylor": _by_gradients("taylor", lambda gradients, _heads, _removed: taylor(gradients)),
    "greedy": _greedy,
}
