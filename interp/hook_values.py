"""What is kept under each hook name: its shape before the model runs, its value as it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..kernels.api import Mask, Weights
from .attach import AttentionCall
from .errors import InputError
from .hook_names import PER_HEAD, Wanted
from .pattern import masked_scores
from .projections import head_matrices
from .sites import Site
from .sources import SiteSources, Source, sources


@dataclass(frozen=True)
class Lengths:
    """How many sequences, and how many tokens the encoder (or the only stack) and decoder read."""

    batch: int
    encoder: int
    decoder: int

    def queries(self, site: Site) -> int:
        """Query positions at a site."""
        return self.encoder if site.stack in ("", "enc") else self.decoder

    def keys(self, site: Site) -> int:
        """Key positions at a site."""
        return self.decoder if site.stack == "dec" else self.encoder


class Reader:
    """Computes what was asked for from attention calls and the projections before them.

    Args:
        model: the model that will run.
        wanted: what to compute.
        rotary: whether q and k are rotated, so that those before it come from the projections.
        rows: query positions to keep; None: all.

    Raises:
        InputError: something asked for does not exist in this model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        wanted: Sequence[Wanted],
        *,
        rotary: bool,
        rows: Sequence[int] | None,
    ) -> None:
        self.rows = None if rows is None else list(rows)
        kinds = ("q", "k", "result") if rotary else ("result",)
        traced = [want for want in wanted if want.kind in kinds]
        known: Mapping[Site, SiteSources] = sources(model) if traced else {}
        named: dict[str, nn.Module] = dict(model.named_modules()) if traced else {}
        self.matrices: dict[Site, Tensor] = {}
        self.sources: dict[str, Source] = {}
        for want in traced:
            if want.kind == "result":
                self.matrices[want.site] = _output(want.site, known[want.site], named)
            else:
                source: Source = getattr(known[want.site], want.kind)
                self.sources[want.name] = _checked(want, source)
        used = {p.input.projection for source in self.sources.values() for p in source.parts}
        self.modules = {named[name]: name for name in sorted(used)}
        self._outputs: dict[str, Tensor] = {}

    def see(self, module: nn.Module, _: Tensor, output: Tensor) -> None:
        """Keep what a projection gave until its attention has run."""
        self._outputs[self.modules[module]] = output

    def forget(self) -> None:
        """Let go of the projections' outputs: their attention has run."""
        self._outputs.clear()

    def shape(self, want: Wanted, lengths: Lengths) -> tuple[int, ...]:
        """The shape its tensor will have."""
        site = want.site
        n_heads = site.n_heads if want.heads is None else len(want.heads)
        n_query = lengths.queries(site) if self.rows is None else len(self.rows)
        if want.kind in ("pattern", "attn_scores"):
            return lengths.batch, n_heads, n_query, lengths.keys(site)
        if want.kind == "sink":
            return lengths.batch, n_heads, n_query
        if want.kind == "result":
            return lengths.batch, n_query, n_heads, self.matrices[site].shape[2]
        width = site.d_value if want.kind in ("z", "v") else site.d_head
        if want.kind in PER_HEAD:
            return lengths.batch, n_query, n_heads, width
        return lengths.batch, lengths.keys(site), site.n_kv_heads, width

    def value(self, call: AttentionCall, want: Wanted) -> Tensor:
        """Its tensor in this call."""
        if want.kind == "pattern":
            return self._pattern(call, want.heads)
        if want.kind == "attn_scores":
            return self._scores(call, want.heads)
        rows = slice(None) if self.rows is None else self.rows
        heads = slice(None) if want.heads is None else list(want.heads)
        if want.kind == "sink":
            return _sink(call)[:, heads][:, :, rows].to(call.v.dtype)
        if want.kind == "result":
            z = call.z[:, heads][:, :, rows]
            weight = self.matrices[want.site][heads].to(z.dtype)  # as autocast would have it
            return torch.einsum("bhpv,hvd->bphd", z, weight)
        if want.name in self.sources:
            tensor = self.sources[want.name].gather(self._outputs, call.q.shape[0])
        else:
            tensor = getattr(call, want.kind.removeprefix("rot_")).transpose(1, 2)
        if want.kind in PER_HEAD:
            tensor = tensor[:, rows][:, :, heads]
        return tensor.contiguous()

    def _pattern(self, call: AttentionCall, heads: tuple[int, ...] | None) -> Tensor:
        if self.rows is None:
            return call.weights(heads)
        if call.edited:
            return call.weights(heads)[:, :, self.rows]
        rows = torch.tensor(self.rows, device=call.q.device).expand(call.q.shape[0], -1)
        weights = call.probe(weights=Weights(heads=heads, rows=rows)).weights
        if weights is None:
            raise InputError(f"{call.site.module} gave no weights.")
        return weights

    def _scores(self, call: AttentionCall, heads: tuple[int, ...] | None) -> Tensor:
        """Scores of the chosen heads and rows only, unless edits have written all of them out."""
        if call.edited:
            s = call.score_matrix if heads is None else call.score_matrix[:, list(heads)]
            return (s if self.rows is None else s[:, :, self.rows]).to(call.q.dtype)
        q, k, mask, scores = call.q, call.k, call.mask, call.scores
        if heads is not None:
            chosen = list(heads)
            group = q.shape[1] // k.shape[1]
            q, k = q[:, chosen], k[:, [head // group for head in chosen]]
            if scores.bias is not None and scores.bias.shape[1] > 1:
                scores = replace(scores, bias=scores.bias[:, chosen])
        if self.rows is not None:
            lo, hi = mask.intervals(q.shape[0], q.shape[2], k.shape[2], q.device)
            edges = torch.stack([lo[:, self.rows], hi[:, self.rows]], -1)
            mask, q = Mask(causal=False, k_range=edges), q[:, :, self.rows]
            if scores.bias is not None:
                scores = replace(scores, bias=scores.bias[:, :, self.rows])
        return masked_scores(q, k, mask, scores).to(call.q.dtype)


def _sink(call: AttentionCall) -> Tensor:
    share = call.sink
    if share is None:
        raise InputError(f"{call.site.label} attends here without the sink that it had at first.")
    return share


def _output(site: Site, found: SiteSources, named: Mapping[str, nn.Module]) -> Tensor:
    if found.output is None:
        raise InputError(
            f"hook_result does not exist at {site.module}: {found.no_output}, so heads have no "
            "separate contribution. Leave result out of names_filter."
        )
    return head_matrices(named[found.output], site)


def _checked(want: Wanted, source: Source) -> Source:
    if source.missing:
        raise InputError(
            f"hook_{want.kind} does not exist at {want.site.module}: what attention receives was "
            f"not found before its rotation; {source.missing}. Leave {want.kind} out of "
            f"names_filter, or ask for rot_{want.kind}."
        )
    return source
