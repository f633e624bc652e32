"""Tables of evaluations: pooled figures with paired bootstrap intervals over documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from ...interp.probes import MIN_PROMPTS
from ..bootstrap import Sample, halves, simultaneous_bounds
from .evaluation import Evaluation

FIGURES = (
    "n", "n_documents", "base_loss_nats", "loss_nats",
    "delta_loss_nats", "delta_low", "delta_high",
    "perplexity_ratio", "ratio_low", "ratio_high", "kl_nats", "kl_low", "kl_high",
)  # fmt: skip
"""Columns of a table: tokens, documents, losses, and figures with the ends of their intervals."""


def with_intervals(
    evaluations: Sequence[Evaluation], *, level: float = 0.95, seed: int = 0
) -> list[pd.DataFrame]:
    """The figures of evaluations of the same documents, one table each, with one row per set.

    Documents are resampled in pairs, each with its loss with and without the heads; the intervals
    of Δ loss (and likewise those of KL) hold for all sets of all evaluations at once with the
    given level. The ends of the perplexity ratio are the exponentials of those of Δ loss. Fewer
    than 16 documents in which something is measured give no interval: its ends are NaN.

    Args:
        evaluations: of the same documents.
        level: simultaneous coverage.
        seed: of the resampling.

    Example:
        >>> from headatlas.interp.probes import Prompts
        >>> from headatlas.interp.texts import Documents
        >>> ids = np.arange(40).reshape(20, 2)
        >>> documents = Documents(Prompts("text", ids, ids >= 0, bos=False), "a text")
        >>> base, n = np.ones(20), np.ones(20, int)
        >>> loss = np.linspace(1, 2, 20)[None]
        >>> one = Evaluation(documents, ((),), "zero", n, base, loss, 0 * loss, resumed=True)
        >>> (table,) = with_intervals([one])
        >>> table[["delta_low", "delta_loss_nats", "delta_high"]].round(1).to_numpy().tolist()
        [[0.4, 0.5, 0.7]]

    Reference:
        Westfall and Young 1993 (max-T); Efron and Tibshirani 1993 (bootstrap-t).
    """
    first = evaluations[0]
    seen = first.n > 0  # a document in which nothing is measured says nothing
    weights = first.weights[seen]
    share = len(weights) * weights[:, None]
    ends = {}
    for name, values in (
        ("delta", np.concatenate([one.loss - one.base for one in evaluations])),
        ("kl", np.concatenate([one.kl for one in evaluations])),
    ):
        estimate = values[:, seen] @ weights
        ends[name] = _bounds(estimate, share * (values[:, seen].T - estimate), level, seed)
    tables, start = [], 0
    for one in evaluations:
        own = slice(start, start + len(one.removed))
        tables.append(_table(one, *(end[:, own] for end in ends.values())))
        start = own.stop
    return tables


def _bounds(
    estimate: Float[np.ndarray, " hypothesis"],
    influence: Float[np.ndarray, "document hypothesis"],
    level: float,
    seed: int,
) -> Float[np.ndarray, "end hypothesis"]:
    if len(influence) < MIN_PROMPTS:
        return np.full((2, len(estimate)), np.nan)
    sample = Sample("ablated", estimate, influence, halves(len(influence), seed=seed))
    bounds = simultaneous_bounds([sample], level=level, seed=seed)
    still = ~influence.any(0)  # such as no head removed: the same in every document
    return np.stack([np.where(still, estimate, end) for end in (bounds.low, bounds.high)])


def _table(one: Evaluation, delta: np.ndarray, kl: np.ndarray) -> pd.DataFrame:
    columns: dict[str, Any] = {
        "n": int(one.n.sum()),
        "n_documents": int((one.n > 0).sum()),
        "base_loss_nats": one.base_loss_nats,
        "loss_nats": one.loss_nats,
        "delta_loss_nats": one.delta_loss_nats,
        "delta_low": delta[0],
        "delta_high": delta[1],
        "perplexity_ratio": one.perplexity_ratio,
        "ratio_low": np.exp(delta[0]),
        "ratio_high": np.exp(delta[1]),
        "kl_nats": one.kl_nats,
        "kl_low": np.maximum(kl[0], 0),
        "kl_high": kl[1],
    }
    return pd.DataFrame(columns, columns=list(FIGURES))
