"""The attention probe: attention plus any statistic of its pattern, without the N × N pattern.

from headatlas.kernels.api import Mask, Match, Scores, Weights, attention_probe
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, autocast

from .check import check_kinds, check_request
from .masks import Mask
from .values import Match, ProbeOut, Request, Scores, Weights

__all__ = ["Mask", "Match", "ProbeOut", "Scores", "Weights", "attention_probe"]

# name -> module with a function probe(request, mask); None: known, but not in this release
_BACKENDS = {"reference": "reference", "cpu": "cpu", "triton": None}


def attention_probe(
    q: Float[Tensor, "batch head query d_key"],
    k: Float[Tensor, "batch kv_head key d_key"],
    v: Float[Tensor, "batch kv_head key d_value"] | None,
    *,
    mask: Mask = Mask(),  # noqa: B008 (frozen: the shared default only remembers intervals)
    scores: Scores = Scores(),  # noqa: B008
    matches: Sequence[Match] = (),
    weights: Weights | None = None,
    entropy: bool = False,
    top: bool = False,
    lse: Float[Tensor, "batch head query"] | None = None,
    backend: str = "auto",
) -> ProbeOut:
    """Attention and, on request, statistics of its pattern A in O(N) memory per head.

        out = A v,   A[i, j] = exp(s[i, j] - lse[i]),   s as in `Scores`, visible keys as in `Mask`
        mass[i, m] = sum_j A[i, j] [q_label_m[i] == k_label_m[j]]
        entropy[i] = -sum_j A[i, j] ln A[i, j] - p_sink ln p_sink

    Query head h reads key/value head h // (head / kv_head). `out` carries gradients to q, k, v,
    the bias and the sinks; the statistics carry none.

    Args:
        q: Queries.
        k: Keys; fewer heads than q under grouped-query attention.
        v: Values; may be None when lse is given. d_value may differ from d_key.
        mask: Which keys each query sees.
        scores: Scale, softcap, bias and sinks.
        matches: Label pairs whose mass to sum.
        weights: Heads and rows whose weights to write out.
        entropy: Compute the row entropy, nats.
        top: Compute each row's largest weight and its key.
        lse: The known log-sum-exp of these scores (sink included; NaN where they are NaN): then
            only statistics are computed and `out` is None.
        backend: "cpu" (torch operators, any device), "reference" (float64, O(N²) memory) or
            "auto", which is "cpu". A named backend never falls back to another. On a GPU "auto"
            runs the same torch operators in row chunks; they are not tuned for it.

    Returns:
        A `ProbeOut`; what was not asked for is None.

    Raises:
        ValueError: Arguments do not fit together, or an unknown backend.
        TypeError: A tensor holds the wrong kind of values, or an argument is no `Mask`, `Scores`,
            `Weights` or sequence of `Match`.
        NotImplementedError: backend "triton", which this release does not have.

    Example:
        >>> import torch
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> here = torch.arange(4)[None]
        >>> previous = Match(q_label=here - 1, k_label=here)
        >>> attention_probe(x, x, x, matches=[previous]).mass[0, 0, :, 0]
        tensor([0.0000, 0.5000, 0.3333, 0.2500])

    Reference: Vaswani et al. 2017, equation 1; Ainslie et al. 2023 for grouped heads.
    """
    check_kinds(mask, scores, matches, weights)
    request = Request(
        q=q,
        k=k,
        v=v,
        scores=scores,
        matches=tuple(matches),
        weights=weights,
        entropy=entropy,
        top=top,
        lse=lse,
    )
    run = _backend(backend)
    check_request(request, mask)
    # statistics are computed in a dtype of their own, which autocast would narrow in products
    with autocast(q.device.type, enabled=False):
        return run(request, mask)


def _backend(name: str):
    name = "cpu" if name == "auto" else name
    if name not in _BACKENDS:
        raise ValueError(f"unknown backend {name!r}; choose from {['auto', *sorted(_BACKENDS)]}.")
    module = _BACKENDS[name]
    if module is None:
        raise NotImplementedError(
            f"backend {name!r} is not part of this release. Use 'auto', 'cpu' or 'reference'."
        )
    return importlib.import_module(f".{module}", __package__).probe
