"""What every head's attention is like on a text: how spread out, how much on the first token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from ..kernels.api import Match
from .attach import AttentionCall, attach
from .errors import InputError
from .given_text import read_given
from .inputs import Inputs, Readable
from .sites import check_model

_NUMBERS = ("entropy_nats", "sink", "sink_logit", "top_weight")


def head_statistics(
    model: nn.Module,
    tokenizer: Any,
    text_or_ids: str | Sequence[str] | Readable,
    *,
    prepend_bos: bool | None = None,
) -> pd.DataFrame:
    """Entropy, sink and largest weight of every head, as means over the rows of a text.

    With A[i, j] the weight of key j in the softmax of query i, and s[i] the mass that a learned
    sink takes,

        entropy_nats = mean_i ( −Σ_j A[i, j] ln A[i, j] − s[i] ln s[i] )
        sink         = mean_i A[i, first token]
        sink_logit   = mean_i s[i]
        top_weight   = mean_i max_j A[i, j]

    The mean goes over all queries that are tokens and see a key, of all texts alike; padding
    counts nowhere. The patterns are never written out: memory grows with the text's length, not
    with its square.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer; may be None when ids are passed.
        text_or_ids: a text, several texts, `Tokens`, a tokenizer's output of tensors, or token ids
            [batch, pos] without padding.
        prepend_bos: whether texts start with a BOS token, which is then the first token; None
            leaves it to the tokenizer.

    Returns:
        One row per head, in the order of the model's sites: site, layer, head, entropy_nats, sink,
        sink_logit (NaN in models without learned sinks), top_weight.

    Raises:
        InputError: no text, ids outside the vocabulary, or a model that cannot be hooked.

    Example:
        >>> import headatlas as ha
        >>> found = head_statistics(*ha.load("tiny"), "The cat sat on the mat.")
        >>> found.columns.to_list()
        ['site', 'layer', 'head', 'entropy_nats', 'sink', 'sink_logit', 'top_weight']
        >>> bool(((found["sink"] >= 0) & (found["sink"] <= found["top_weight"])).all())
        True

    Reference:
        Xiao et al. 2023 (sinks); Clark et al. 2019 (entropy of heads).
    """
    model = check_model(model)
    inputs, _ = read_given(model, tokenizer, text_or_ids, prepend_bos)
    found: list[tuple[Any, Tensor]] = []

    def watch(call: AttentionCall) -> None:
        found.append((call.site, _means(call, inputs)))

    with attach(model, observers=[watch]):
        inputs.run(model)
    rows: list[dict[str, Any]] = [
        {"site": head.site, "layer": head.layer, "head": head.head}
        | dict(zip(_NUMBERS, means.tolist(), strict=True))
        for site, by_head in found
        for head, means in zip(site.heads, by_head, strict=True)
    ]
    return pd.DataFrame(rows)


def _means(call: AttentionCall, inputs: Inputs) -> Tensor:
    """The four numbers of each head of a call, [head, number]."""
    queries, keys = (inputs.live(call.site, keys=which) for which in (False, True))
    batch, _, n_query, _ = call.q.shape
    first = torch.full((batch, call.k.shape[2]), -2, device=call.q.device)
    first[torch.arange(batch, device=first.device), keys.int().argmax(1)] = 0
    looks = torch.zeros((batch, n_query), dtype=first.dtype, device=first.device)
    out = call.probe(matches=(Match(looks, first),), entropy=True, top=True)
    mass, entropy, top, top_key = map(_known, (out.mass, out.entropy, out.top_weight, out.top_key))
    sinks = torch.full_like(entropy, math.nan) if out.sink_mass is None else out.sink_mass
    rows = queries[:, None] & (top_key >= 0)
    parts = torch.stack([entropy, mass[..., 0], sinks, top], dim=-1).double()
    counts = rows.sum((0, 2))
    sums = torch.where(rows[..., None], parts, 0.0).sum((0, 2))
    return (sums / counts[:, None]).cpu()


def _known(part: Tensor | None) -> Tensor:
    if part is None:
        raise InputError("the attention probe left out a statistic that it was asked for.")
    return part
