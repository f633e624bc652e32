"""Several heads removed at once: sets against random sets, and pairs beyond their singles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.probes import Prompts
from ...interp.sites import unbridged
from ..arguments import whole_number
from ..behaviour import AnyBehaviour
from ..bootstrap import Bounds, Sample, halves, simultaneous_bounds
from .arguments import one_ablation
from .measures import Labelled, measure_of
from .stand_in import Removal
from .sweep import Progress, check_behaviours, choose_heads
from .trials import Trials

_MOST_PAIRED = 16
_TRIES = 50  # draws per random set before the sets of that layer profile count as used up


@dataclass(frozen=True, eq=False)
class SetEffect:
    """What removing a set of heads does, beside random sets of the same layer profile.

    Args:
        heads: the set.
        behaviour: name of what was measured.
        ablation: how heads were removed.
        effect: harm of removing the set, with its interval [`low`, `high`].
        low: lower end.
        high: upper end.
        excess: effect less the mean of the random sets, paired by document.
        excess_low: lower end of its interval.
        excess_high: upper end.
        random: harm of each random set.
        p: share of the random sets, this one among them, that do at least as much harm.
        shared_layers: layers with fewer other heads than the set has there ("L2"): their random
            heads are drawn from the whole layer, so that random sets share heads with the set,
            and effects differ less than those of disjoint sets would.
        rows: one row per set: `set` ("chosen" or "random"), `heads`, `shared` (how many of them
            are the chosen set's), `effect`.
    """

    heads: tuple[HeadId, ...]
    behaviour: str
    ablation: str
    effect: float
    low: float
    high: float
    excess: float
    excess_low: float
    excess_high: float
    random: Float[np.ndarray, " set"] = field(repr=False)
    p: float
    shared_layers: tuple[str, ...]
    rows: pd.DataFrame = field(repr=False)


@dataclass(frozen=True, eq=False)
class PairEffects:
    """What pairs of heads do together beyond what each does alone.

    Args:
        behaviour: name of what was measured.
        ablation: how heads were removed.
        rows: one row per pair: the address of the earlier head in `site`, `layer`, `head`, of the
            other in `other`; `effect` and `other_effect` alone; `pair_effect`; `beyond`, pair less
            the sum of the two, with its simultaneous interval [`low`, `high`]; `backup`, whether
            all of that lies above 0.
    """

    behaviour: str
    ablation: str
    rows: pd.DataFrame

    @property
    def backups(self) -> list[tuple[HeadId, HeadId]]:
        """Pairs that stand in for one another, the largest effect beyond the sum first."""
        rows = self.rows.loc[self.rows["backup"]].sort_values("beyond", ascending=False)
        return [
            (HeadId(row["site"], row["layer"], row["head"]), HeadId.parse(row["other"]))
            for row in rows.to_dict("records")
        ]


def set_effect(
    model: Any,
    prompts: Prompts,
    behaviour: AnyBehaviour,
    heads: Iterable[str | HeadId],
    *,
    ablation: str = "mean",
    n_random: int = 50,
    labelled: Labelled | None = None,
    seed: int = 0,
    batch_tokens: int = 2048,
    progress: Progress | None = None,
) -> SetEffect:
    """Remove a set of heads at once, and random sets with as many heads in each layer.

    Random sets draw from the layer's other heads where there are enough of them, else from all of
    the layer (`shared_layers` names those layers); each set once, so that a small profile may give
    fewer than `n_random`.

        p = (1 + #{random sets with harm ≥ that of the set}) / (1 + number of random sets)

    Args:
        model: a transformers decoder with a language-model head.
        prompts: the documents.
        behaviour: what to measure.
        heads: the set.
        ablation: `zero`, `mean` or `resample`.
        n_random: how many random sets, at least 50 for a p of any use.
        labelled: for a `Downstream`, the heads of its kind.
        seed: of the random sets, of `resample` and of the bootstrap.
        batch_tokens: tokens per forward pass.
        progress: called with (stage, sets done, sets).

    Raises:
        InputError: unknown heads, no random set of that profile, or nothing to measure.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.circuits.behaviour import INDUCTION
        >>> from headatlas.circuits.causal.documents import documents
        >>> model, tokenizer = ha.load("tiny")
        >>> prompts = documents(model, tokenizer, prompts=16)
        >>> found = set_effect(model, prompts, INDUCTION, ["L2H2", "L2H1"], n_random=5)
        >>> len(found.random), len(found.rows)
        (5, 6)

    Reference: Wang 2022 (sets of heads); random sets of the same layer profile are this project's.
    """
    model = unbridged(model)
    ablation = one_ablation(ablation)
    n_random = whole_number("n_random", n_random, 1)
    trials, name = _trials(model, prompts, behaviour, labelled, seed, batch_tokens)
    chosen = choose_heads(trials, _listed(heads))
    others = random_sets(chosen, trials.heads, n_random, seed)
    if not others:
        raise InputError("no other set of heads has this layer profile, so there is no reference.")
    harm = _harm(trials, [chosen, *others], ablation, progress)
    weights = trials.measures[0].n / trials.measures[0].n.sum()
    effects = harm @ weights
    paired = np.stack([harm[0], harm[0] - harm[1:].mean(0)])
    bounds = _bounds(paired, weights, prompts.name, seed)
    random = effects[1:]
    rows = pd.DataFrame(
        {
            "set": ["chosen"] + ["random"] * len(others),
            "heads": [" ".join(map(str, one)) for one in (chosen, *others)],
            "shared": [len({*chosen} & {*one}) for one in (chosen, *others)],
            "effect": effects,
        }
    )
    return SetEffect(
        chosen, name, ablation, float(effects[0]), float(bounds.low[0]), float(bounds.high[0]),
        float(effects[0] - random.mean()), float(bounds.low[1]), float(bounds.high[1]), random,
        float((1 + (random >= effects[0]).sum()) / (1 + len(random))),
        tuple(str(pool) for pool in _pools(chosen, trials.heads) if pool.shared), rows,
    )  # fmt: skip


def pairwise_ablation(
    model: Any,
    prompts: Prompts,
    behaviour: AnyBehaviour,
    heads: Iterable[str | HeadId],
    *,
    ablation: str = "mean",
    labelled: Labelled | None = None,
    seed: int = 0,
    batch_tokens: int = 2048,
    progress: Progress | None = None,
) -> PairEffects:
    """Remove chosen heads singly and in pairs: what does a pair do beyond the sum of the two?

        beyond(a, b) = harm(a and b) − harm(a) − harm(b)

    Positive: each makes up for the other's loss, as backup heads do. Negative: they are links of
    one chain, and losing either is losing both.

    Args:
        model: a transformers decoder with a language-model head.
        prompts: the documents.
        behaviour: what to measure.
        heads: 2 to 16 heads.
        ablation: `zero`, `mean` or `resample`.
        labelled: for a `Downstream`, the heads of its kind.
        seed: of `resample` and of the bootstrap.
        batch_tokens: tokens per forward pass.
        progress: called with (stage, removals done, removals).

    Raises:
        InputError: fewer than two heads or more than 16, unknown heads, or nothing to measure.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.circuits.behaviour import INDUCTION
        >>> from headatlas.circuits.causal.documents import documents
        >>> model, tokenizer = ha.load("tiny")
        >>> prompts = documents(model, tokenizer, prompts=16)
        >>> found = pairwise_ablation(model, prompts, INDUCTION, ["L2H2", "L2H1", "L1H1"])
        >>> found.rows["other"].tolist()
        ['L2H1', 'L2H2', 'L2H2']

    Reference: Wang 2022, section 3.4 (backup name movers); McGrath 2023 (self-repair).
    """
    model = unbridged(model)
    ablation = one_ablation(ablation)
    trials, name = _trials(model, prompts, behaviour, labelled, seed, batch_tokens)
    chosen = choose_heads(trials, _listed(heads))
    if not 2 <= len(chosen) <= _MOST_PAIRED:
        raise InputError(f"pairs take 2 to {_MOST_PAIRED} different heads; got {len(chosen)}.")
    pairs = list(combinations(range(len(chosen)), 2))
    sets = [(head,) for head in chosen] + [(chosen[a], chosen[b]) for a, b in pairs]
    harm = _harm(trials, sets, ablation, progress)
    weights = trials.measures[0].n / trials.measures[0].n.sum()
    alone, both = harm[: len(chosen)], harm[len(chosen) :]
    beyond = np.stack([own - alone[a] - alone[b] for own, (a, b) in zip(both, pairs, strict=True)])
    bounds = _bounds(beyond, weights, prompts.name, seed)
    single, together = alone @ weights, both @ weights
    rows = [
        {
            "site": chosen[a].site, "layer": chosen[a].layer, "head": chosen[a].head,
            "other": str(chosen[b]), "behaviour": name, "ablation": ablation,
            "effect": float(single[a]), "other_effect": float(single[b]),
            "pair_effect": float(together[i]), "beyond": float(beyond[i] @ weights),
            "low": float(bounds.low[i]), "high": float(bounds.high[i]),
            "backup": bool(bounds.low[i] > 0),
        }
        for i, (a, b) in enumerate(pairs)
    ]  # fmt: skip
    return PairEffects(name, ablation, pd.DataFrame(rows))


def random_sets(
    heads: Sequence[HeadId], every: Sequence[HeadId], n: int, seed: int
) -> list[tuple[HeadId, ...]]:
    """Up to n different sets with as many heads in each layer as `heads`, other than it.

    A layer's heads are drawn from those not in `heads` if there are enough, else from all.

    Example:
        >>> every = [HeadId("", layer, head) for layer in (0, 1) for head in range(3)]
        >>> random_sets([every[0], every[3]], every, 9, seed=0)[:2]
        [(L0H1, L1H1), (L0H1, L1H2)]
    """
    own, pools = set(heads), _pools(heads, every)
    rng, found = np.random.default_rng((seed, 32)), dict[tuple[HeadId, ...], None]()
    for _ in range(n * _TRIES):
        drawn = [
            pool.heads[place]
            for pool in pools
            for place in sorted(rng.choice(len(pool.heads), pool.wanted, replace=False))
        ]
        if set(drawn) != own:
            found[tuple(drawn)] = None
        if len(found) == n:
            break
    return list(found)


@dataclass(frozen=True)
class _Pool:
    """A layer's heads that random sets draw from, how many, and if the set's are among them."""

    heads: tuple[HeadId, ...]
    wanted: int
    shared: bool

    def __str__(self) -> str:
        return str(self.heads[0]).rpartition("H")[0]


def _pools(heads: Sequence[HeadId], every: Sequence[HeadId]) -> list[_Pool]:
    own, pools = set(heads), []
    for layer in sorted({(head.site, head.layer) for head in heads}):
        there = tuple(head for head in every if (head.site, head.layer) == layer)
        others = tuple(head for head in there if head not in own)
        wanted = len(there) - len(others)
        shared = len(others) < wanted
        pools.append(_Pool(there if shared else others, wanted, shared))
    return pools


def _listed(heads: Any) -> Any:
    if heads is None:
        raise InputError("name the heads of the set.")
    return heads


def _trials(
    model: Any,
    prompts: Prompts,
    behaviour: AnyBehaviour,
    labelled: Labelled | None,
    seed: int,
    batch_tokens: int,
) -> tuple[Trials, str]:
    (one,) = check_behaviours([behaviour])
    measure = measure_of(one, prompts, labelled or {})
    seed = whole_number("seed", seed, 0)
    tokens = whole_number("batch_tokens", batch_tokens, 1)
    return Trials(model, prompts, [measure], seed=seed, batch_tokens=tokens), one.name


def _harm(
    trials: Trials,
    sets: Sequence[tuple[HeadId, ...]],
    ablation: str,
    progress: Progress | None,
) -> Float[np.ndarray, "set document"]:
    """Harm of each set per document; those that begin in one layer are run together."""
    measure, out = trials.measures[0], np.zeros((len(sets), len(trials.prompts)))
    by_layer: dict[int, list[int]] = {}
    for place, heads in enumerate(sets):
        by_layer.setdefault(min(head.layer for head in heads), []).append(place)
    done = 0
    for places in by_layer.values():
        found = trials.run([Removal(ablation, sets[place]) for place in places])
        out[places] = (found[:, 0] - trials.base[0]) * measure.harm
        done += len(places)
        if progress is not None:
            progress("ablate sets", done, len(sets))
    return out


def _bounds(
    values: Float[np.ndarray, "hypothesis document"], weights: np.ndarray, name: str, seed: int
) -> Bounds:
    estimate = values @ weights
    influence = len(weights) * weights[:, None] * (values.T - estimate)
    sample = Sample(name, estimate, influence, halves(len(weights), seed=seed))
    return simultaneous_bounds([sample], seed=seed)
