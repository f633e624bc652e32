"""Calls that reach every branch of the fused kernels, and how close to the oracle they must be."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headatlas.kernels.api import Mask, Match, ProbeOut, Scores, Weights, attention_probe
from headatlas.kernels.reference import probe as reference
from headatlas.kernels.values import Request

_HERE = torch.arange(37)
HIDDEN = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Variant:
    """Shapes and options of a call; tensors are drawn when it is built."""

    heads: int = 2
    kv_heads: int = 2
    n_query: int = 37
    n_key: int = 37
    d_key: int = 16
    d_value: int = 16
    batch: int = 1
    mask: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    spread: float = 1.0

    def build(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Request:
        random = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random)

        shape = self.batch, self.n_query, self.n_key
        # as models deliver them: heads and positions swapped, so nothing is contiguous
        q = self.spread * normal(self.batch, self.n_query, self.heads, self.d_key)
        k = normal(self.batch, self.n_key, self.kv_heads, self.d_key)
        v = normal(self.batch, self.kv_heads, self.d_value, self.n_key)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(2, 3)
        scores = {
            name: value(normal, self) if callable(value) else value
            for name, value in self.scores.items()
        }
        scores = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in scores.items()}
        q, k, v = (x.to(device, dtype) for x in (q, k, v))
        return Request(
            q=q, k=k, v=v, scores=Scores(**scores), matches=detectors(*shape, random),
            weights=Weights(dtype=torch.float32), entropy=True, top=True, received=True,
        )  # fmt: skip


def detectors(batch: int, n_query: int, n_key: int, random: torch.Generator) -> tuple[Match, ...]:
    """Few keys, key-only labels, and six dense ones: more than one sweep compares."""
    tokens = torch.randint(0, 5, (batch, n_key), generator=random)
    here = torch.arange(n_key).expand(batch, n_key)
    late = torch.arange(n_key - n_query, n_key).expand(batch, n_query)
    asked = torch.randint(0, 5, (batch, n_query), generator=random)
    hashes = torch.tensor([-(2**63), 2**63 - 1, 5, 6, 7])
    return (
        Match(late - 1, here),
        Match(asked, tokens),
        Match(late // 3, here // 3, strict=True),
        Match(torch.full_like(asked, 3), tokens),
        Match(asked % 2, tokens % 2, strict=True),
        Match(hashes[asked], hashes[tokens]),
        Match(asked % 3, tokens % 3),
        Match(asked % 2 - 1, tokens % 2 - 1),
        Match(asked, tokens, strict=True),
    )


def _biased(normal, variant: Variant) -> Tensor:
    bias = normal(1, variant.heads, variant.n_query, variant.n_key)
    bias[:, :, :, 5:9] = -torch.inf
    bias[:, 0, 7] = -torch.inf  # a dead row
    bias[:, 0, 11, 3:] = HIDDEN  # as Hugging Face's masks hide
    return bias


def _row_bias(normal, variant: Variant) -> Tensor:
    return normal(variant.batch, 1, 1, variant.n_key)


def _sinks(normal, variant: Variant) -> Tensor:
    return 9 * normal(variant.heads)


VARIANTS: dict[str, Variant] = {
    "mha": Variant(),
    "gqa, bidirectional, Nq < Nk": Variant(
        heads=4, n_query=21, batch=2, mask={"causal": False}
    ),
    "mqa, Nq < Nk": Variant(heads=3, kv_heads=1, n_query=20, n_key=45),
    "one query": Variant(n_query=1, n_key=33),
    "one key": Variant(n_query=1, n_key=1),
    "window": Variant(n_query=61, n_key=61, mask={"window": 17}),
    "window of one": Variant(mask={"window": 1}),
    "softcap": Variant(scores={"softcap": 2.0}),
    "bias": Variant(scores={"bias": _biased}),
    "bias of keys": Variant(batch=2, scores={"bias": _row_bias}, mask={"causal": False}),
    "softcap, bias, sinks, window": Variant(
        scores={"softcap": 3.0, "bias": _biased, "sinks": _sinks}, mask={"window": 20}
    ),
    "sinks": Variant(scores={"sinks": _sinks}),
    "left padding": Variant(batch=2, mask={"k_range": torch.tensor([[19, 37], [0, 37]])}),
    "right padding": Variant(
        batch=2, mask={"causal": False, "k_range": torch.tensor([[0, 23], [0, 37]])}
    ),
    "nothing visible, with sinks": Variant(
        mask={"k_range": torch.tensor([[0, 0]])}, scores={"sinks": _sinks}
    ),
    "a range per row": Variant(
        mask={"causal": False, "k_range": torch.stack([_HERE % 9, _HERE], 1)[None]}
    ),
    "q_pos": Variant(
        n_query=9, mask={"q_pos": torch.tensor([[36, 3, -2, 40, 17, 17, 0, 35, 20]]), "window": 9}
    ),
    "d 8": Variant(d_key=8, d_value=4),
    "d 80": Variant(d_key=80, d_value=80),
    "d 96": Variant(d_key=96, d_value=96),
    "d 256": Variant(d_key=256, d_value=256, heads=1, kv_heads=1, n_query=20, n_key=20),
    "MLA 192/128": Variant(d_key=192, d_value=128),
    "MLA 576/512": Variant(heads=2, kv_heads=1, d_key=576, d_value=512, n_query=18, n_key=20),
    "peaked": Variant(spread=40.0),
    "scale below 0": Variant(scores={"scale": -0.4}),
    "scale 0": Variant(scores={"scale": 0.0}),
    "scale below 0, softcap": Variant(scores={"scale": -0.4, "softcap": 2.0}),
}  # fmt: skip


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Every tensor that is allocated without values holds NaN, or the largest integer."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = filled


def ask(request: Request, mask: Mask, backend: str) -> ProbeOut:
    """The call through the front."""
    return attention_probe(
        request.q, request.k, request.v, mask=mask, scores=request.scores,
        matches=request.matches, weights=request.weights, entropy=request.entropy,
        top=request.top, received=request.received, lse=request.lse, backend=backend,
    )  # fmt: skip


def plain(request: Request, mask: Mask) -> ProbeOut:
    """The call as one writes it down: products and softmax in float32, whatever the inputs are.

    P is rounded to the type of v before the product with it. Its error against float64 is what
    the precision of the inputs allows.
    """
    lo, hi = mask.intervals(*request.sizes, request.q.device)
    q, k = request.q.float(), request.k.float().repeat_interleave(request.group, 1)
    s = q @ k.mT * request.scale
    scores = request.scores
    if scores.softcap is not None:
        s = scores.softcap * torch.tanh(s / scores.softcap)
    if scores.bias is not None:
        s = s + scores.bias.float()
        s = s.masked_fill(s < -1e30, -torch.inf)
    keys = torch.arange(s.shape[-1], device=s.device)
    seen = (keys >= lo[..., None]) & (keys < hi[..., None])
    s = s.masked_fill(~seen[:, None], -torch.inf)
    whole = s
    if scores.sinks is not None:
        sinks = scores.sinks.float()[None, :, None, None].expand(*s.shape[:3], 1)
        whole = torch.cat([s, sinks], -1)
    lse = whole.logsumexp(-1)
    A = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    v = request.value.repeat_interleave(request.group, 1)
    mass = []
    for match in request.matches:
        equal = match.q_label[:, :, None] == match.k_label[:, None]
        if match.strict:
            here = mask.positions(*request.sizes, torch.device("cpu"))
            equal = equal & (torch.arange(s.shape[-1]) != here[..., None])
        mass.append((A * equal.to(A.device)[:, None]).sum(-1))
    sink_mass = None if scores.sinks is None else torch.exp(scores.sinks.float()[:, None] - lse)
    entropy = torch.special.entr(A).sum(-1)
    return ProbeOut(
        out=(A.to(v.dtype).float() @ v.float()).to(v.dtype),
        lse=lse,
        mass=torch.stack(mass, -1),
        entropy=entropy if sink_mass is None else entropy + torch.special.entr(sink_mass),
        top_weight=A.amax(-1),
        sink_mass=sink_mass,
        weights=A,
        received=A.sum(2),
    )


def check(request: Request, mask: Mask, got: ProbeOut) -> None:
    """Compare with float64; the error may be twice that of `plain`, or a few roundings.

    A score of size S is rounded to S 2⁻²⁴ by the product, the scale and the maximum each, which exp
    turns into a relative error; a few more roundings come with the sums: 2⁻²² (1 + S) (1 + |x|) for
    x in float32, and one unit of the output's own type for `out`. The entropy sums A ln A, and
    |ln A| stays below 2 S + ln N.
    """
    hidden = request.scores.bias
    if hidden is not None:  # the oracle adds −3e38 as it is: see `Scores.bias`
        scores = dataclasses.replace(
            request.scores, bias=hidden.masked_fill(hidden < -1e30, -torch.inf)
        )
        request = dataclasses.replace(request, scores=scores)
    wanted, usual = reference(request, mask), plain(request, mask)
    size = 1 + float(
        request.q.double().norm(dim=-1).max() * request.k.double().norm(dim=-1).max()
    ) * abs(request.scale)
    for name in ("out", "lse", "mass", "entropy", "top_weight", "sink_mass", "weights", "received"):
        mine, exact, rough = (getattr(x, name) for x in (got, wanted, usual))
        if exact is None:
            assert mine is None, name
            continue
        assert (mine.shape, mine.dtype) == (exact.shape, exact.dtype), name
        finite = exact.isfinite()
        assert torch.equal(mine[~finite], exact[~finite]), name
        error = (mine.double() - exact.double())[finite].abs()
        allowed = (
            2 * (rough.double() - exact.double())[finite].abs().max() if error.numel() else 0.0
        )
        unit = 2.0**-22 * size * (2 * size + 4 if name == "entropy" else 1)
        if name == "out":
            unit += torch.finfo(mine.dtype).eps
        few = unit * (1 + exact[finite].double().abs())
        assert bool((error <= allowed + few).all()), (name, float(error.max()), float(allowed))
    assert got.top_key is not None
    assert wanted.top_key is not None
    assert wanted.weights is not None
    assert torch.equal(got.top_key < 0, wanted.top_key < 0)
    chosen = wanted.weights.gather(-1, got.top_key.clamp(min=0)[..., None])[..., 0]
    # equal scores may round apart: what was chosen must be as large
    assert bool((chosen >= wanted.weights.amax(-1) * (1 - 1e-4)).all())
