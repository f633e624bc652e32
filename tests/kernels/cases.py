"""Random calls of the probe, drawn by hypothesis: shapes, masks, scores, matches of all kinds."""

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from headatlas.kernels.api import Mask, Match, Scores, Weights

CPU = torch.device("cpu")


@dataclass
class Case:
    q: Tensor
    k: Tensor
    v: Tensor
    options: dict


@dataclass
class Sizes:
    batch: int
    heads: int
    n_query: int
    n_key: int
    dtype: torch.dtype
    random: torch.Generator

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.random)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random).to(self.dtype)


@st.composite
def cases(draw, dtypes=(torch.float32, torch.float64, torch.bfloat16)) -> Case:
    n_key = draw(st.sampled_from([1, 2, 7, 13, 65, 257]))
    n_query = draw(st.sampled_from([n_key, n_key, max(1, n_key // 2), 1, n_key + 3]))
    n_kv, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(dtypes))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    sizes = Sizes(batch, n_kv * group, n_query, n_key, dtype, random)
    d_key = draw(st.sampled_from([1, 4, 16]))
    d_value = draw(st.sampled_from([d_key, 3, 24]))
    q = sizes.normal(batch, n_kv * group, n_query, d_key)
    k, v = sizes.normal(batch, n_kv, n_key, d_key), sizes.normal(batch, n_kv, n_key, d_value)
    if draw(st.booleans()):  # as models deliver them: strided views
        q, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, v))
        k = k.mT.contiguous().mT
    mask = draw(masks(sizes))
    options = {
        "mask": mask,
        "scores": draw(scores(sizes)),
        "matches": draw(st.lists(matches(sizes, mask), max_size=6)),
        "weights": draw(st.none() | weights(sizes)),
        "entropy": draw(st.booleans()),
        "top": draw(st.booleans()),
        "received": draw(st.booleans()),
    }
    return Case(q, k, v, options)


@st.composite
def masks(draw, sizes: Sizes) -> Mask:
    batch, n_query, n_key = sizes.batch, sizes.n_query, sizes.n_key
    kind = draw(st.sampled_from(["none", "left", "right", "per sequence", "per row"]))
    k_range = None
    if kind == "left":
        k_range = torch.stack([sizes.integers(0, n_key + 1, batch), torch.full((batch,), n_key)], 1)
    elif kind == "right":
        k_range = torch.stack([torch.zeros(batch).long(), sizes.integers(0, n_key + 1, batch)], 1)
    elif kind != "none":
        shape = (batch,) if kind == "per sequence" else (batch, n_query)
        low = sizes.integers(-2, n_key + 1, *shape)
        k_range = torch.stack([low, low + sizes.integers(-1, n_key + 3, *shape)], -1)
    where = draw(st.sampled_from(["default", "default", "shifted", "anywhere"]))
    q_pos = None
    if where == "shifted":
        q_pos = torch.arange(n_query) + sizes.integers(-2, max(n_key - n_query, 0) + 3, batch, 1)
    elif where == "anywhere":
        q_pos = sizes.integers(-2, n_key + 2, batch, n_query)
    return Mask(
        causal=draw(st.booleans()),
        window=draw(st.sampled_from([None, None, 1, 5, 40])),
        k_range=k_range,
        q_pos=q_pos,
    )


@st.composite
def scores(draw, sizes: Sizes) -> Scores:
    bias = None
    if draw(st.integers(0, 3)) == 0:
        shape = [draw(st.sampled_from([1, n])) for n in (sizes.batch, sizes.heads, sizes.n_query)]
        bias = sizes.normal(*shape, sizes.n_key)
        hidden = torch.rand(bias.shape, generator=sizes.random) < draw(st.sampled_from([0.1, 0.9]))
        bias = bias.masked_fill(hidden, -math.inf)
    return Scores(
        scale=draw(st.sampled_from([None, None, 0.3, -0.2, 0.0, 4.0])),
        softcap=draw(st.sampled_from([None, None, 2.0])),
        bias=bias,
        sinks=draw(st.sampled_from([None, sizes.normal(sizes.heads)])),
    )


@st.composite
def matches(draw, sizes: Sizes, mask: Mask) -> Match:
    batch, n_query, n_key = sizes.batch, sizes.n_query, sizes.n_key
    here = mask.positions(batch, n_query, n_key, CPU)
    keys = torch.arange(n_key).expand(batch, n_key)
    kind = draw(st.sampled_from(["offset", "first", "tokens", "key only", "dense", "hash"]))
    if kind == "offset":
        labels = here - draw(st.integers(-1, 5)), keys
    elif kind == "first":
        labels = torch.zeros_like(here), keys
    elif kind == "tokens":
        labels = sizes.integers(0, 20, batch, n_query), sizes.integers(0, 20, batch, n_key)
    elif kind == "key only":
        looks = torch.where(sizes.integers(0, 3, batch, n_query) > 0, 1, -1)
        labels = looks, sizes.integers(0, 2, batch, n_key)
    elif kind == "dense":
        labels = sizes.integers(0, 2, batch, n_query).int(), sizes.integers(0, 2, batch, n_key)
    else:
        hashes = torch.tensor([-(2**63), 2**63 - 1, 5])
        picks = sizes.integers(0, 3, batch, n_query), sizes.integers(0, 3, batch, n_key)
        labels = hashes[picks[0]], hashes[picks[1]]
    return Match(*labels, strict=draw(st.booleans()))


@st.composite
def weights(draw, sizes: Sizes) -> Weights:
    heads = st.lists(st.integers(0, sizes.heads - 1), min_size=1, max_size=4)
    kind = draw(st.sampled_from(["all", "rows", "pool"]))
    size = st.sampled_from([1, 2, 3, 5, 16, 64, 300])
    pool = (draw(size), draw(size)) if kind == "pool" else None
    rows = sizes.integers(-1, sizes.n_query, sizes.batch, 4) if kind == "rows" else None
    return Weights(
        heads=draw(st.none() | heads.map(tuple)),
        rows=rows,
        dtype=draw(st.sampled_from([None, torch.float32])),
        pool=pool,
        reduce=draw(st.sampled_from(["mean", "max"])) if pool else "mean",
    )
