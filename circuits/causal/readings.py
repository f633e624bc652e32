"""Measures read off a forward pass: losses of chosen rows, label mass of chosen heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...interp.attach import AttentionCall
from ...interp.heads import HeadId
from ...kernels.api import Match
from ..label_vectors import NO_KEY, NO_QUERY, Labels
from .measures import MassMeasure, RowMeasure

_ROWS = 128  # of the size of the vocabulary, which are held a few times over meanwhile


def row_means(
    measures: Sequence[RowMeasure],
    documents: slice,
    ids: Int[Tensor, "document pos"],
    logits_at: Callable[[Tensor, Tensor], Float[Tensor, "row vocab"]],
    reference: Float[Tensor, "row vocab"] | None = None,
) -> dict[RowMeasure, Float[np.ndarray, " document"]]:
    """Means per document of measures of the next token; 0 where nothing is measured.

    Args:
        measures: which rows, and which quantity.
        documents: which documents `ids` holds.
        ids: their tokens.
        logits_at: the logits at (document, pos), which are asked for once.
        reference: log-probabilities at the same rows, which `kl` is measured from.
    """
    if not measures:
        return {}
    wanted, document, pos = rows_read(measures, documents, ids)
    logits = logits_at(document, pos).float()
    target = ids[document, pos + 1]
    chosen = logits.gather(1, target[:, None])[:, 0]
    quantities = {"loss": lambda: logits.logsumexp(1) - chosen,
                  "logit": lambda: chosen - logits.mean(1),
                  "kl": lambda: _divergence(reference, logits)}  # fmt: skip
    values = {name: quantities[name]() for name in {m.quantity for m in measures}}
    found = {}
    for measure in measures:
        rows = measure.rows[documents]
        spread = np.zeros(rows.shape)
        spread[wanted] = values[measure.quantity].double().cpu().numpy()
        found[measure] = (spread * rows).sum(1) / np.maximum(rows.sum(1), 1)
    return found


def rows_read(
    measures: Sequence[RowMeasure], documents: slice, ids: Int[Tensor, "document pos"]
) -> tuple[Bool[np.ndarray, "document pos"], Int[Tensor, " row"], Int[Tensor, " row"]]:
    """The rows that some measure reads: marked, and as indices of document and position."""
    wanted = np.logical_or.reduce([measure.rows[documents] for measure in measures])
    document, pos = (torch.from_numpy(x).to(ids.device) for x in np.nonzero(wanted))
    return wanted, document, pos


def _divergence(
    reference: Float[Tensor, "row vocab"] | None, logits: Float[Tensor, "row vocab"]
) -> Float[Tensor, " row"]:
    """KL(reference ‖ model) of each row in nats, a few rows at a time; rounding gives none below 0.

    Σ p (log p − log q), which for p = q to rounding is a sum of both signs.
    """
    if reference is None:
        raise RuntimeError("a divergence was asked for without a reference")
    found = []
    for p, own in zip(reference.split(_ROWS), logits.split(_ROWS), strict=True):
        terms = p.exp() * (p - own.log_softmax(1))
        found.append(terms.masked_fill_(p == float("-inf"), 0).sum(1).clamp_min(0))  # 0 log 0 = 0
    return torch.cat(found)


def head_masses(
    measure: MassMeasure, call: AttentionCall, heads: Iterable[HeadId], documents: slice, size: int
) -> dict[HeadId, Float[np.ndarray, "copy document"]]:
    """Summed label mass of heads of one call, per copy of its documents.

    Args:
        measure: the labels.
        call: of a batch of copies of the documents.
        heads: those of the call's site.
        documents: which documents the batch holds.
        size: how many.
    """
    copies = len(call.q) // size
    mass = call.probe([match_of(pair, documents, copies, call.q) for pair in measure.labels]).mass
    if mass is None:
        raise RuntimeError("the probe returned no mass for its matches")
    signs = mass.new_tensor([pair.sign for pair in measure.labels])
    total = (mass.sum(2) * signs).sum(-1).double().cpu().numpy()  # [sequence, head]
    return {head: total[:, head.head].reshape(copies, -1) for head in heads}


def match_of(labels: Labels, documents: slice, copies: int, like: Tensor) -> Match:
    """A pair of label vectors of some documents, repeated, where `like` is."""
    q, k = (
        torch.from_numpy(np.ascontiguousarray(x[documents])).to(like.device).repeat(copies, 1)
        for x in (labels.q, labels.k)
    )
    return Match(q.clamp_min(NO_QUERY), torch.where(k < 0, NO_KEY, k), labels.strict)
