"""The attention probe: attention plus any statistic of its pattern, without the N × N pattern.

from headatlas.kernels.api import Mask, Match, Scores, Weights, attention_probe
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar

from jaxtyping import Float
from torch import Tensor, autocast

from .check import check_kinds, check_request
from .held import held
from .masks import Mask
from .values import Match, ProbeOut, Request, Scores, Weights

__all__ = ["Mask", "Match", "ProbeOut", "Scores", "Weights", "attention_probe", "use_backend"]

_BACKENDS = ("cpu", "reference", "triton")


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
    received: bool = False,
    lse: Float[Tensor, "batch head query"] | None = None,
    backend: str = "auto",
) -> ProbeOut:
    """Attention and, on request, statistics of its pattern A in O(N) memory per head.

        out = A v,   A[i, j] = exp(s[i, j] - lse[i]),   s as in `Scores`, visible keys as in `Mask`
        mass[i, m] = sum_j A[i, j] [q_label_m[i] == k_label_m[j]]
        entropy[i] = -sum_j A[i, j] ln A[i, j] - p_sink ln p_sink
        received[j] = sum_i A[i, j]

    Query head h reads key/value head h // (head / kv_head). `out` carries gradients to q, k, v,
    the bias and the sinks, once; lse and the statistics carry none.

    Args:
        q: Queries.
        k: Keys; fewer heads than q under grouped-query attention.
        v: Values; may be None when lse is given. d_value may differ from d_key.
        mask: Which keys each query sees.
        scores: Scale, softcap, bias and sinks.
        matches: Label pairs whose mass to sum.
        weights: Heads and rows whose weights to write out, or the grid to pool them into.
        entropy: Compute the row entropy, nats.
        top: Compute each row's largest weight and its key.
        received: Compute the attention that each key receives from all rows together.
        lse: The known log-sum-exp of these scores (sink included; NaN where they are NaN): then
            only statistics are computed and `out` is None.
        backend: "triton" (fused kernels, on NVIDIA GPUs of compute capability 8.0 on), "cpu"
            (torch operators, any device), "reference" (float64, O(N²) memory) or "auto": "triton"
            where its kernels can take the call, else "cpu". A named backend never falls back to
            another.

    Returns:
        A `ProbeOut`; what was not asked for is None. out [batch, head, query, d_value]; lse,
        entropy, top_weight, top_key, sink_mass [batch, head, query]; mass [batch, head, query,
        match]; received [batch, head, key]; weights [batch, chosen head, row, key] or its grid.

    Raises:
        ValueError: Arguments do not fit together, or an unknown backend.
        TypeError: A tensor holds the wrong kind of values, or an argument is no `Mask`, `Scores`,
            `Weights` or sequence of `Match`.
        RuntimeError: backend "triton" where its kernels cannot run; the text says why.

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
    for name, wanted in (("entropy", entropy), ("top", top), ("received", received)):
        if not isinstance(wanted, bool):
            raise TypeError(f"{name} must be True or False; got {wanted!r}.")
    request = Request(
        q=q,
        k=k,
        v=v,
        scores=scores,
        matches=tuple(matches),
        weights=weights,
        entropy=entropy,
        top=top,
        received=received,
        lse=lse,
    )
    check_request(request, mask)
    # statistics are computed in a dtype of their own, which autocast would narrow in products
    with autocast(q.device.type, enabled=False):
        return _run(backend, request, mask)


_automatic: ContextVar[str | None] = ContextVar("automatic", default=None)


def use_backend(name: str) -> AbstractContextManager[None]:
    """Let "auto" mean one backend inside: to compare backends on a whole model.

    It never falls back to another: a call that it cannot take is an error. Enter it outside of what
    torch.compile traces.

    Args:
        name: "cpu", "reference" or "triton".

    Raises:
        ValueError: An unknown backend.

    Example:
        >>> import torch
        >>> x = torch.ones(1, 1, 2, 4)
        >>> with use_backend("reference"):
        ...     attention_probe(x, x, x).lse.exp().round()
        tensor([[[ 7., 15.]]])
    """
    _check_name(name, _BACKENDS)
    return held(_automatic, name)


def _run(name: str, request: Request, mask: Mask) -> ProbeOut:
    _check_name(name, ("auto", *_BACKENDS))
    if name == "auto":
        name = _automatic.get() or ("triton" if _fits_triton(request) else "cpu")
    if name == "triton" and not _has_triton():
        raise RuntimeError(
            "backend 'triton' needs Triton, which is not installed. Run `pip install triton` "
            "(Linux), or use backend='cpu'."
        )
    # written out, so that torch.compile can follow, and imported late, so that Triton is
    if name == "triton":
        from .fused import backend
    elif name == "cpu":
        from . import cpu as backend
    else:
        from . import reference as backend
    return backend.probe(request, mask)


def _check_name(name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ValueError(f"unknown backend {name!r}; choose from {sorted(known)}.")


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _fits_triton(request: Request) -> bool:
    """Whether "auto" takes the Triton kernels: on a GPU that they run on."""
    if request.q.device.type != "cuda" or not _has_triton():
        return False
    from .fused.backend import why_not

    return why_not(request) is None
