"""Which heads do the same: similarity of patterns and of outputs between all pairs of heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...interp.attach import AttentionCall, attach
from ...interp.errors import InputError
from ...interp.forward import run_base
from ...interp.heads import HeadId
from ...interp.hook_names import choose_heads
from ...interp.probes import Prompts
from ...interp.sites import Site, attention_sites, unbridged
from ...interp.tokens import Tokens
from ...interp.weights import head_weights
from ...kernels.api import Weights
from ..arguments import whole_number
from ..score import one_direction

Progress = Callable[[str, int, int], None]
_MEASURES = ("pattern", "first", "output")


@dataclass(frozen=True, eq=False)
class Redundancy:
    """Similarity of all pairs of heads; see `redundancy`.

    Attributes:
        heads: the heads, in the order of the arrays' axes.
        pattern: mean overlap Σ_j √(A_a[i, j] A_b[i, j]) of their rows, 0 to 1.
        first: the part of it on the first key of each document, the usual sink.
        output: correlation of what they write, −1 to 1; NaN for a head that writes a constant.
        n: rows that were compared.
        documents: documents they are from.
    """

    heads: tuple[HeadId, ...]
    pattern: Float[np.ndarray, "head head"]
    first: Float[np.ndarray, "head head"]
    output: Float[np.ndarray, "head head"]
    n: int
    documents: int

    def __repr__(self) -> str:
        return (
            f"<redundancy of {len(self.heads)} heads over {self.n} rows of "
            f"{self.documents} documents>"
        )

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Every pair once: address, other, pattern, first and output; the first has the address."""
        i, j = np.triu_indices(len(self.heads), 1)
        return pd.DataFrame(
            {
                "site": [self.heads[a].site for a in i],
                "layer": [self.heads[a].layer for a in i],
                "head": [self.heads[a].head for a in i],
                "one": [str(self.heads[a]) for a in i],
                "other": [str(self.heads[b]) for b in j],
                **{name: getattr(self, name)[i, j] for name in _MEASURES},
            }
        )

    def pairs(
        self, *, by: str = "output", top: int | None = 20, head: str | HeadId | None = None
    ) -> pd.DataFrame:
        """The most similar pairs first.

        Args:
            by: "output" or "pattern"; "off_first" orders by pattern less what lies on the first
                key.
            top: how many; None: all.
            head: only pairs of this head.

        Raises:
            InputError: an unknown order or head.
        """
        if by not in ("output", "pattern", "off_first"):
            raise InputError(
                f"pairs are ordered by 'output', 'pattern' or 'off_first'; got {by!r}."
            )
        rows = self.rows
        if head is not None:
            known = HeadId.parse(head)
            if known not in self.heads:
                raise InputError(f"{known} was not compared; heads={list(self.heads)[:4]} … were.")
            rows = rows.loc[(rows["one"] == str(known)) | (rows["other"] == str(known))]
        rows = rows.assign(off_first=rows["pattern"] - rows["first"])
        rows = rows.sort_values(by, ascending=False, kind="stable")
        rows = rows if top is None else rows.head(whole_number("top", top, 1))
        return rows.loc[:, ["one", "other", *_MEASURES]].reset_index(drop=True)

    def between(self, one: str | HeadId, other: str | HeadId) -> dict[str, float]:
        """pattern, first and output of one pair.

        Raises:
            InputError: a head that was not compared.
        """
        places = []
        for head in (one, other):
            known = HeadId.parse(head)
            if known not in self.heads:
                raise InputError(f"{known} was not compared; heads={list(self.heads)[:4]} … were.")
            places.append(self.heads.index(known))
        return {name: float(getattr(self, name)[places[0], places[1]]) for name in _MEASURES}


@torch.no_grad()
def redundancy(
    model: Any,
    prompts: Prompts | Tokens,
    *,
    heads: Sequence[str | HeadId] | None = None,
    rows: int = 32,
    seed: int = 0,
    progress: Progress | None = None,
) -> Redundancy:
    """How alike the patterns and the outputs of heads are, over sampled rows of some documents.

    For heads a and b, over rows i (positions; never the first of a document in a causal model,
    where every pattern is the same):

        pattern = mean_i Σ_j √(A_a[i, j] A_b[i, j])
        output  = Σ_i (o_a − ō_a)·(o_b − ō_b) / √(Σ_i |o_a − ō_a|² Σ_i |o_b − ō_b|²)

    with o = z W_O, the head's result. pattern is the Bhattacharyya overlap: as the Jensen–Shannon
    distance 0 and 1 at the extremes, and, unlike it, a product of matrices for all pairs at once.
    Two heads that rest on the same sink overlap there: `first` says how much. An output near −1
    is a head that takes back what the other writes. Heads that are alike need not replace each
    other: ablate both to see.

    Documents run one by one; only the sampled rows of one document are ever held.

    Args:
        model: a transformers model of one stack.
        prompts: documents; padding is allowed on either side.
        heads: compare these only; None: all.
        rows: rows sampled per document, at most.
        seed: seed of the sample.
        progress: called with ("redundancy", documents done, documents).

    Raises:
        InputError: no such head, fewer than two heads, documents without rows, several stacks, or
            heads whose W_O was not found.

    Example:
        >>> import numpy as np
        >>> import headatlas as ha
        >>> from headatlas.interp.probes import random_prompts
        >>> model, tokenizer = ha.load("tiny")
        >>> found = redundancy(model, random_prompts(np.arange(100, 900), 2, 48))
        >>> found
        <redundancy of 32 heads over 64 rows of 2 documents>
        >>> sorted(found.between("L1H0", "L2H3"))
        ['first', 'output', 'pattern']

    Reference: Kornblith et al. 2019 (similarity of representations, the centred case);
        Bhattacharyya 1943.
    """
    model = unbridged(model)
    sites = attention_sites(model)
    causal = one_direction(sites)
    n_rows, seed = whole_number("rows", rows, 1), whole_number("seed", seed, 0)
    chosen = choose_heads(sites, heads) if heads is not None else None
    every = [head for site in sites for head in site.heads]
    kept = tuple(head for head in every if chosen is None or head in chosen)
    if len(kept) < 2:
        raise InputError(f"redundancy compares two heads or more; got {len(kept)}.")
    ids, mask = _documents(prompts)
    sums = _Sums(model, kept, sites)
    for number in range(len(ids)):
        places = _sampled(mask[number], n_rows, causal, np.random.default_rng((seed, 43, number)))
        if places.size:
            columns = np.flatnonzero(mask[number])
            own = slice(int(columns[0]), int(columns[-1]) + 1)
            sums.add(model, ids[number, own], torch.from_numpy(places - own.start))
        if progress is not None:
            progress("redundancy", number + 1, len(ids))
    return sums.result()


def _documents(prompts: Prompts | Tokens) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(prompts, Prompts):
        return prompts.ids, prompts.mask
    if isinstance(prompts, Tokens):
        return prompts.ids.numpy(), prompts.mask.numpy()
    raise InputError(f"prompts are Prompts or Tokens (of tokenize); got {type(prompts).__name__}.")


def _sampled(mask: np.ndarray, n_rows: int, causal: bool, rng: np.random.Generator) -> np.ndarray:
    places = np.flatnonzero(mask)[1 if causal else 0 :]
    return np.sort(rng.choice(places, min(n_rows, len(places)), replace=False))


class _Sums:
    """What is summed over the rows of all documents."""

    def __init__(self, model: Any, heads: Sequence[HeadId], sites: Sequence[Site]) -> None:
        weights = head_weights(model)
        self.heads, self.documents, self.n = tuple(heads), 0, 0
        self.own: Mapping[Site, list[int]] = {
            site: [h.head for h in heads if (h.site, h.layer) == (site.stack, site.layer)]
            for site in sites
        }
        self.out = {site: weights[site].W_O[own].float() for site, own in self.own.items() if own}
        d_model = next(iter(self.out.values())).shape[2]
        device = next(iter(self.out.values())).device

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        count = len(self.heads)
        self.pattern, self.first, self.output = (zeros(count, count) for _ in range(3))
        self.mean = zeros(count, d_model)

    def add(self, model: Any, ids: np.ndarray, rows: Tensor) -> None:
        """Run one document and add its rows."""
        patterns: list[Tensor] = []
        results: list[Tensor] = []

        def observe(call: AttentionCall) -> None:
            own = self.own[call.site]
            if own:
                places = rows.to(call.z.device)
                weights = Weights(heads=tuple(own), rows=places[None], dtype=torch.float32)
                found = call.probe(weights=weights).weights
                if found is None:
                    raise RuntimeError("the probe wrote no weights though asked to")
                patterns.append(found[0].sqrt())
                z = call.z[0, own][:, places].detach().float()
                results.append(z @ self.out[call.site])

        with attach(model, observers=[observe]):
            run_base(model, torch.from_numpy(ids).to(model.device)[None])
        roots, written = torch.cat(patterns), torch.cat(results)
        flat, first = roots.flatten(1), roots[:, :, 0]
        self.pattern += (flat @ flat.T).double()
        self.first += (first @ first.T).double()
        self.output += (written.flatten(1) @ written.flatten(1).T).double()
        self.mean += written.sum(1).double()
        self.n, self.documents = self.n + len(rows), self.documents + 1

    def result(self) -> Redundancy:
        """The means and correlations."""
        if self.n < 2:
            raise InputError(f"the documents have {self.n} rows to compare; give longer ones.")
        centred = self.output - self.mean @ self.mean.T / self.n
        size = centred.diagonal().clamp(min=0)
        floor = 1e-6 * self.output.diagonal()
        size = torch.where(size > floor, size, torch.nan).sqrt()
        correlation = (centred / (size[:, None] * size)).clamp(-1, 1)
        return Redundancy(
            self.heads, (self.pattern / self.n).cpu().numpy(), (self.first / self.n).cpu().numpy(),
            correlation.cpu().numpy(), self.n, self.documents,
        )  # fmt: skip
