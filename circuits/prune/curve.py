"""Losses of cuts, and the tables made of them: the curve, and how methods differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ...interp.heads import HeadId
from ...interp.probes import MIN_PROMPTS
from ...interp.texts import Documents
from ..ablate.evaluation import Evaluation
from ..ablate.intervals import FIGURES, with_intervals
from ..bootstrap import Sample, halves, simultaneous_bounds

WHOLE = "whole"
"""What the row of the whole model is called."""

CUT_COLUMNS = ("method", "draw", "asked", "sparsity", "n_removed", "finetuned")
SECOND = "second_copy_"
_OF_SECOND = tuple(name for name in FIGURES if name != "n_documents")
CURVE_COLUMNS = (*CUT_COLUMNS, *FIGURES, *(f"{SECOND}{name}" for name in _OF_SECOND))
DIFFERENCE_COLUMNS = (
    "asked", "method", "other", "draws", "documents", "difference_nats", "low", "high",
)  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """Heads to remove together.

    Args:
        method: which of `METHODS` chose them.
        draw: number of the draw, of random methods.
        asked: the sparsity that was asked for, or the λ of the gates.
        heads: the heads, in order of removal.
        finetuned: whether the model's weights were trained along.
    """

    method: str
    draw: int
    asked: float
    heads: tuple[HeadId, ...]
    finetuned: bool = False


@dataclass(frozen=True, eq=False)
class Losses:
    """Losses of the whole model and of cuts, on the documents of one sort.

    Args:
        documents: what was read.
        n: predicted tokens, per document.
        base: loss of the whole model in nats/token, per document.
        loss: of each cut.
        kl: KL(whole ‖ cut) in nats/token.
    """

    documents: Documents
    n: Int[np.ndarray, " document"]
    base: Float[np.ndarray, " document"]
    loss: Float[np.ndarray, "cut document"]
    kl: Float[np.ndarray, "cut document"]

    def evaluation(self, cuts: Sequence[Cut]) -> Evaluation:
        """The same, with the whole model as a first set."""
        return Evaluation(
            self.documents, ((), *(cut.heads for cut in cuts)), "zero", self.n, self.base,
            np.concatenate([self.base[None], self.loss]),
            np.concatenate([np.zeros_like(self.base[None]), self.kl]),
            resumed=True,
        )  # fmt: skip


def curve_of(
    cuts: Sequence[Cut], text: Losses, repeated: Losses, n_heads: int, level: float, seed: int
) -> pd.DataFrame:
    """One row per cut, after one for the whole model, with the columns `CURVE_COLUMNS`.

    Intervals are of a paired bootstrap over documents against the whole model, and hold for all
    rows at once with the given level.
    """
    rows = [Cut(WHOLE, 0, 0.0, ()), *cuts]
    said = pd.DataFrame(
        [
            (cut.method, cut.draw, cut.asked, len(cut.heads) / n_heads, len(cut.heads),
             cut.finetuned)
            for cut in rows
        ],
        columns=list(CUT_COLUMNS),
    )  # fmt: skip
    with np.errstate(over="ignore"):  # a perplexity may be beyond all bounds
        (own,) = with_intervals([text.evaluation(cuts)], level=level, seed=seed)
        (second,) = with_intervals([repeated.evaluation(cuts)], level=level, seed=seed)
    second = second[list(_OF_SECOND)].add_prefix(SECOND)
    return pd.concat([said, own, second], axis=1)


def differences_of(
    cuts: Sequence[Cut], losses: dict[str, Losses], level: float, seed: int
) -> pd.DataFrame:
    """How the first method's loss differs from every other's, at each cut that was asked for.

        difference = Σ_d n_d (loss of the method − mean loss of the other's draws)[d] / Σ_d n_d

    below 0 where the first method does better; paired by document, intervals simultaneous.

    Args:
        cuts: those of the curve.
        losses: theirs, by sort of documents.
        level: coverage.
        seed: of the bootstrap.

    Returns:
        A frame with the columns `DIFFERENCE_COLUMNS`.
    """
    places: dict[tuple[str, float], list[int]] = {}
    for place, cut in enumerate(cuts):
        places.setdefault((cut.method, cut.asked), []).append(place)
    first = cuts[0].method if cuts else ""
    pairs = [
        (asked, other, places[first, asked], own)
        for (other, asked), own in places.items()
        if other != first and (first, asked) in places
    ]
    tables = [pd.DataFrame(columns=list(DIFFERENCE_COLUMNS))]
    for name, found in losses.items():
        if pairs:
            tables.append(_differences(first, pairs, name, found, level, seed))
    return pd.concat(tables[-len(losses) :] if pairs else tables, ignore_index=True)


def _differences(
    first: str,
    pairs: Sequence[tuple[float, str, list[int], list[int]]],
    name: str,
    found: Losses,
    level: float,
    seed: int,
) -> pd.DataFrame:
    values = np.stack(
        [found.loss[own].mean(0) - found.loss[others].mean(0) for *_, own, others in pairs]
    )
    seen = found.n > 0
    values, weights = values[:, seen], found.n[seen] / found.n.sum()
    estimate, n = values @ weights, len(weights)
    low = high = np.full(len(pairs), np.nan)
    if n >= MIN_PROMPTS:
        influence = n * weights[:, None] * (values.T - estimate)
        sample = Sample("differences", estimate, influence, halves(n, seed=seed))
        bounds = simultaneous_bounds([sample], level=level, seed=seed)
        same = ~influence.any(0)  # as for the same heads chosen twice
        low, high = (np.where(same, estimate, end) for end in (bounds.low, bounds.high))
    rows = [
        (asked, first, other, len(others), name, *numbers)
        for (asked, other, _, others), *numbers in zip(pairs, estimate, low, high, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(DIFFERENCE_COLUMNS))
