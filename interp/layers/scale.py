"""Why scores are scaled: what the softmax does to dot products of many dimensions, and without."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...kernels.api import Mask, Scores
from ..attach import attach
from ..attention_call import AttentionCall
from ..by_site import BySite
from ..errors import InputError
from ..inputs import Readable, read_inputs
from ..pattern import masked_scores, softmax_rows
from ..sites import Site, unbridged
from .hooks import attach_layers


@dataclass(frozen=True)
class Softmax:
    """What the softmax makes of the scores at one scale.

    The variance is over scores, whatever their row; the others are means over the rows that see
    two keys or more.

    Attributes:
        logit_variance: variance of scale · q·k over all pairs of a query and a key that it sees,
            mean over heads.
        max_weight: the largest weight of a row; 1 is a saturated softmax.
        entropy_share: entropy of a row over the log of the number of its outcomes; 1 is uniform.
        gradient_norm: Frobenius norm of ∂A/∂S = diag(A) − A Aᵀ: the root mean square of what
            reaches the scores from gradients of variance 1 at the weights.
        gradient_trace: Σ_j ∂A_j/∂S_j = Σ_j A_j (1 − A_j), the Jacobian's trace norm: how much
            gradient passes in all directions together, 1 − 1/n for n equal weights and 0 where
            one key has all the weight.
    """

    logit_variance: float
    max_weight: float
    entropy_share: float
    gradient_norm: float
    gradient_trace: float


@dataclass(frozen=True)
class ScaleDiagnostic:
    """The softmax of one layer without its scale and with it.

    Attributes:
        d_key: width of a query or key.
        scale: the layer's factor on q·k.
        unscaled: with factor 1.
        scaled: with the layer's own.
    """

    d_key: int
    scale: float
    unscaled: Softmax
    scaled: Softmax

    def __repr__(self) -> str:
        rows = [("1", self.unscaled), (f"{self.scale:.4g}", self.scaled)]
        lines = [
            f"{factor:>8}  {s.logit_variance:14.4g}  {s.max_weight:10.3f}  "
            f"{s.entropy_share:13.3f}  {s.gradient_norm:13.3f}  {s.gradient_trace:14.3f}"
            for factor, s in rows
        ]
        names = ("logit variance", "max weight", "entropy share", "gradient norm", "gradient trace")
        head = "  ".join(["   scale", *names])
        return "\n".join([f"d_key = {self.d_key}", head, *lines])


class ScaleDiagnostics(BySite[ScaleDiagnostic]):
    """The `ScaleDiagnostic` of each layer; prints as a table, "without its scale → with it".

    Keys are sites, module names or, in a model of one stack, layer numbers (see `BySite`).
    """

    what = "scores"

    def __repr__(self) -> str:
        head = ["layer", "d_key", "scale", *(f.name.replace("_", " ") for f in fields(Softmax))]
        rows = [head, *(_table_row(site, found) for site, found in self.items())]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        padded = ([c.rjust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
        return "\n".join("  ".join(cells) for cells in padded)


def _table_row(site: Site, found: ScaleDiagnostic) -> list[str]:
    pairs = zip(astuple(found.unscaled), astuple(found.scaled), strict=True)
    figures = [f"{without:.3g} → {scaled:.3g}" for without, scaled in pairs]
    return [f"{site.prefix}L{site.layer}", str(found.d_key), f"{found.scale:.4g}", *figures]


def scale_diagnostic(
    q: Float[Tensor, "batch head query d_key"],
    k: Float[Tensor, "batch kv_head key d_key"],
    *,
    mask: Mask = Mask(),  # noqa: B008 (frozen)
    scores: Scores = Scores(),  # noqa: B008
) -> ScaleDiagnostic:
    """Variance of the scores, saturation and gradients of the softmax, without and with the scale.

    Components of q and k that are independent with mean 0 and variance 1 give q·k the variance
    d_key: logits of standard deviation √d_key put most of the weight on one key, whose place then
    hardly depends on the others: the trace of the softmax's gradient falls towards 0. The factor
    1/√d_key brings the variance to 1.

    Scores are written out, [batch, head, query, key]. Softcap, bias and sinks act in both.

    Args:
        q: queries as attention receives them.
        k: keys.
        mask: which keys a query sees.
        scores: the layer's scale, softcap, bias and sinks.

    Returns:
        A `ScaleDiagnostic`.

    Raises:
        InputError: no query sees two keys.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> q, k = torch.randn(2, 1, 8, 128, 64, generator=generator)
        >>> scale_diagnostic(q, k, mask=Mask(causal=False))
        d_key = 64
           scale  logit variance  max weight  entropy share  gradient norm  gradient trace
               1           63.98       0.758          0.142          0.231           0.333
           0.125          0.9997       0.069          0.899          0.136           0.979

    Reference: Vaswani et al. 2017, section 3.2.1 and footnote 4.
    """
    q, k = q.detach(), k.detach()
    own = q.shape[-1] ** -0.5 if scores.scale is None else scores.scale
    dots = masked_scores(q, k, mask, Scores(scale=1.0))
    if scores.bias is not None:
        dots = dots.masked_fill(scores.bias == float("-inf"), float("-inf"))
    variance = _variance(dots)
    parts = []
    for scale in (1.0, own):
        s = masked_scores(q, k, mask, replace(scores, scale=scale))
        parts.append(Softmax(variance * scale**2, *_rows(s, scores.sinks)))
    return ScaleDiagnostic(q.shape[-1], own, *parts)


def diagnose_scales(
    model: nn.Module,
    inputs: Readable,
    mask: Bool[Tensor, "batch pos"] | None = None,
) -> ScaleDiagnostics:
    """`scale_diagnostic` of every attention layer of a model, from one run on `inputs`.

    Padding counts nowhere, neither as key nor as query.

    Args:
        model: a transformers model, or a `HookedAttention` or a module that holds some.
        inputs: `Tokens`, a tokenizer's output of tensors, or token ids [batch, pos]; for modules of
            our own the states that they read, such as [batch, pos, d_model].
        mask: True where a token stands; None means everywhere, or what `inputs` says itself. Only
            for transformers models and a single `HookedAttention`.

    Returns:
        `ScaleDiagnostics`: by site, module name or layer number; prints as a table.

    Raises:
        InputError: the model has no attention that can be hooked, no query sees two keys, or a mask
            beside inputs that bring their own.

    Example:
        >>> from headatlas.interp.layers.attention import HookedAttention
        >>> from headatlas.interp.layers.config import AttentionConfig
        >>> layer = HookedAttention(AttentionConfig(d_model=256, n_heads=1))
        >>> x = torch.randn(1, 64, 256, generator=torch.Generator().manual_seed(0))
        >>> found = diagnose_scales(layer, x)[0]
        >>> found.unscaled.max_weight > 0.8 > 0.3 > found.scaled.max_weight
        True
    """
    model = unbridged(model)
    if mask is not None and not isinstance(inputs, Tensor):
        raise InputError(f"a {type(inputs).__name__} brings its own mask: leave mask out.")
    found: dict[Site, ScaleDiagnostic] = {}
    if isinstance(model, PreTrainedModel):
        given = inputs if mask is None else {"input_ids": inputs, "attention_mask": mask}
        read = read_inputs(model, given)
    elif isinstance(inputs, Tensor):
        read = None
    else:
        raise InputError(
            "layers read states, a tensor such as [batch, pos, d_model]; got "
            f"{type(inputs).__name__}."
        )

    def see(call: AttentionCall) -> None:
        call.site.check_queries("the scale of q·k")
        live = mask if read is None else read.live(call.site, keys=False)
        seen = call.mask if live is None else _without_padding(call, live)
        found[call.site] = scale_diagnostic(call.q, call.k, mask=seen, scores=call.scores)

    with torch.no_grad(), _attachment(model)(model, observers=[see]):
        if read is not None:
            read.run(model)  # pyright: ignore[reportArgumentType]
        elif mask is None:
            model(inputs)
        else:
            model(inputs, padding=mask)
    return ScaleDiagnostics(found)


def _attachment(model: nn.Module) -> Callable[..., AbstractContextManager[Any]]:
    return attach if isinstance(model, PreTrainedModel) else attach_layers


def _without_padding(call: AttentionCall, live: Bool[Tensor, "batch query"]) -> Mask:
    """The call's mask with nothing to see for queries at padding."""
    q, k = call.q, call.k
    lo, hi = call.mask.intervals(q.shape[0], q.shape[2], k.shape[2], q.device)
    hi = torch.where(live.to(q.device), hi, lo)
    return Mask(causal=False, k_range=torch.stack([lo, hi], -1))


def _variance(dots: Tensor) -> float:
    """Variance over the visible entries of each head, mean over heads."""
    per_head = dots.transpose(0, 1).flatten(1)
    found = [row[row.isfinite()].var(correction=0) for row in per_head]
    return float(torch.stack(found).mean())


def _rows(s: Tensor, sinks: Tensor | None) -> tuple[float, float, float, float]:
    """Means over rows of two outcomes or more: largest weight, entropy share, Jacobian norms."""
    if sinks is not None:  # the sink is one more outcome
        column = sinks.detach().to(s.dtype)[None, :, None, None].expand(*s.shape[:3], 1)
        s = torch.cat([s, column], -1)
    rows = s.flatten(0, 2)
    count = rows.isfinite().sum(-1)
    rows, count = rows[count >= 2], count[count >= 2]
    if not len(rows):
        raise InputError("no query sees two keys or more, so there is no softmax to look at.")
    a = softmax_rows(rows[None, None])[0][0, 0]
    share = torch.special.entr(a).sum(-1) / count.to(a.dtype).log()
    # ‖diag(a) − a aᵀ‖² = Σ a_i² (1 − a_i)² + Σ_{i≠j} a_i² a_j², whose pairs are counted with the
    # largest weight apart: where it is nearly 1, a difference of sums of all would be rounding
    best, place = a.max(-1, keepdim=True)
    others = a.square().scatter(-1, place, 0.0)
    rest = others.sum(-1)
    pairs = 2 * best[..., 0].square() * rest + (rest.square() - others.square().sum(-1))
    norm = ((a * (1 - a)).square().sum(-1) + pairs.clamp(min=0)).sqrt()
    means = [x.mean() for x in (best, share, norm, (a * (1 - a)).sum(-1))]
    return float(means[0]), float(means[1]), float(means[2]), float(means[3])
