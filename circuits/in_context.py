"""How much better a model predicts late tokens than early ones, and what each head adds to that."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..interp.attach import AttentionCall, Edit, attach
from ..interp.errors import InputError
from ..interp.forward import run_whole
from ..interp.grammar import Grammar
from ..interp.heads import HeadId
from ..interp.intervention import as_heads
from ..interp.probes import MIN_PROMPTS, natural_prompts
from ..interp.sites import Site, attention_sites, unbridged
from ..interp.tokens import bos_token, context_length, tokenize
from .arguments import whole_number
from .bootstrap import Sample, halves, simultaneous_bounds
from .grade import Rule
from .score import one_direction

_EARLY, _LATE, _WHOLE, _AROUND = 50, 500, 512, 10  # Olsson 2022's tokens, in documents of 512
_SHORTEST = 64
_ABLATIONS = ("zero", "mean")


@dataclass(frozen=True, eq=False)
class InContext:
    """The in-context-learning score of a model, and the effect of each head on it.

    Args:
        score: mean over documents of loss late less loss early, in nats; negative where context
            helps.
        early: tokens of the document whose loss is early, first and one past the last.
        late: likewise.
        rows: one row per head: site, layer, head, effect (change of the score under ablation, in
            nats; positive where the head helps), low, high, p, early and late (change of either
            loss), n (documents).
        documents: how many.
        seq_len: tokens per document.
        ablation: `zero` or `mean`.
    """

    score: float
    early: tuple[int, int]
    late: tuple[int, int]
    rows: pd.DataFrame
    documents: int
    seq_len: int
    ablation: str

    def __repr__(self) -> str:
        shown = "no head ablated" if self.rows.empty else f"{len(self.rows)} heads ablated"
        return (
            f"<in-context score {self.score:+.3f} nats: loss at tokens {_span(self.late)} less "
            f"that at {_span(self.early)}, over {self.documents} documents of {self.seq_len} "
            f"tokens; {shown} ({self.ablation})>"
        )


@torch.no_grad()
def in_context_scores(
    model: Any,
    tokenizer: Any,
    *,
    heads: Any = None,
    documents: int = 16,
    seq_len: int | None = None,
    text: str | None = None,
    prepend_bos: bool | None = None,
    ablation: str = "mean",
    rule: Rule | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> InContext:
    """Loss late in a document less loss early, and its change when a head is ablated.

    With ℓ_t the loss of token t (the first has number 0), averaged over documents,

        score = mean of ℓ_t over 490 ≤ t < 510  −  mean of ℓ_t over 40 ≤ t < 60.

    Olsson 2022 takes the single tokens 500 and 50 of many documents; the twenty around each serve
    a few. Documents shorter than 512 tokens scale both spans (the result says them).

    effect[h] = score with head h ablated − score. Every attention pattern is held at that of the
    whole model, so the effect is what the head does through its output alone, not through the
    patterns of later heads (Olsson's pattern-preserving ablation). Its output z becomes zero, or
    its mean over the documents' tokens. The copies of a document, a different head ablated in
    each, run as one batch.

    Args:
        model: a transformers model with an LM head whose queries see earlier keys only.
        tokenizer: its tokenizer.
        heads: the heads to ablate, as addresses such as "L3H2"; None: all; an empty list: none.
        documents: how many, at least 16.
        seq_len: tokens per document, 64 or more; None takes 512, or the model's context.
        text: running text; None generates documents of one topic each.
        prepend_bos: True, False, or None for the tokenizer's habit.
        ablation: `zero` or `mean`.
        rule: level and resamples of the interval.
        seed: seed of the text and of the bootstrap.
        progress: called with ("in-context", runs done, runs to do).

    Returns:
        The score and the effects, with simultaneous intervals over the heads.

    Raises:
        InputError: a model with attention to both sides or without logits, an unknown head, or
            settings that do not fit.

    Example:
        >>> import headatlas as ha
        >>> model, tokenizer = ha.load("tiny")
        >>> found = in_context_scores(model, tokenizer, heads=["L1H0"], seq_len=64)
        >>> len(found.rows), found.early, found.late
        (1, (5, 7), (61, 63))

    Reference:
        Olsson 2022, "Model analysis table" (in-context-learning score) and pattern-preserving
        ablation.
    """
    model = unbridged(model)
    if ablation not in _ABLATIONS:
        raise InputError(f"ablation is one of {', '.join(_ABLATIONS)}; got {ablation!r}.")
    sites = attention_sites(model)
    if not one_direction(sites):
        raise InputError("the in-context score is about prediction: the queries see both sides.")
    chosen = _chosen(sites, heads)
    length = _length(model, seq_len)
    count = whole_number("documents", documents, MIN_PROMPTS)
    ids = _documents(tokenizer, count, length, text, prepend_bos, seed)
    spans = _spans(length)
    task = _Task(model, spans, _means(model, ids, sites) if ablation == "mean" else None)
    plain, ablated = np.zeros((len(ids), 2)), np.zeros((len(ids), len(chosen), 2))
    step = max(1, 4096 // length)
    runs, done = len(ids) * (1 + -(-len(chosen) // step)), 0
    for number, row in enumerate(ids):
        patterns, losses = task.whole(row)
        plain[number] = losses
        done += 1
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            ablated[number, start : start + step] = task.without(row, part, patterns)
            done += 1
            if progress is not None:
                progress("in-context", done, runs)
    change = ablated - plain[:, None]
    frame = _frame(chosen, change, Rule() if rule is None else rule, seed)
    score = float((plain[:, 1] - plain[:, 0]).mean())
    return InContext(score, *spans, frame, len(ids), length, ablation)


@dataclass(frozen=True, eq=False)
class _Task:
    """Early and late loss of a document under a model."""

    model: Any
    spans: tuple[tuple[int, int], tuple[int, int]]
    means: dict[Site, Tensor] | None  # [head, d_value]

    def whole(self, row: np.ndarray) -> tuple[dict[Site, Tensor], np.ndarray]:
        """The patterns [1, head, query, key] and the losses [early, late] of the model as it is."""
        patterns: dict[Site, Tensor] = {}

        def observe(call: AttentionCall) -> None:
            patterns[call.site] = call.pattern

        with attach(self.model, observers=[observe]):
            losses = self._losses(row, 1)
        return patterns, losses[0]

    def without(
        self, row: np.ndarray, heads: Sequence[HeadId], patterns: dict[Site, Tensor]
    ) -> np.ndarray:
        """The losses [head, early | late] with one head ablated in each copy of the document."""

        def freeze(call: AttentionCall, pattern: Tensor) -> Tensor:
            return patterns[call.site].expand_as(pattern)

        def ablate(call: AttentionCall, z: Tensor) -> Tensor:
            for copy, head in enumerate(heads):
                if (head.site, head.layer) == (call.site.stack, call.site.layer):
                    mean = None if self.means is None else self.means[call.site][head.head]
                    z[copy, head.head] = 0 if mean is None else mean.to(z)
            return z

        with attach(self.model, edits=[Edit("pattern", freeze), Edit("z", ablate)]):
            return self._losses(row, len(heads))

    def _losses(self, row: np.ndarray, copies: int) -> np.ndarray:
        """Loss early and late of each copy, [copy, 2], in nats."""
        ids = torch.from_numpy(row)[None].to(self.model.device)
        targets = torch.cat([torch.arange(*span) for span in self.spans]).to(ids.device)
        kept = self._kept(targets - 1)
        logits = run_whole(self.model, ids.expand(copies, -1), **kept).logits
        rows = logits if kept else logits[:, targets - 1]
        log_p = torch.log_softmax(rows.double(), -1)
        wanted = ids[0, targets].expand(copies, -1)[..., None]
        loss = -log_p.gather(-1, wanted)[..., 0].cpu().numpy()
        n_early = self.spans[0][1] - self.spans[0][0]
        return np.stack([loss[:, :n_early].mean(1), loss[:, n_early:].mean(1)], 1)

    def _kept(self, rows: Tensor) -> dict[str, Any]:
        """Logits of these rows alone, where the model can give them so."""
        takes = inspect.signature(self.model.forward).parameters
        return {"logits_to_keep": rows} if "logits_to_keep" in takes else {}


def _means(model: Any, ids: np.ndarray, sites: Sequence[Site]) -> dict[Site, Tensor]:
    """Mean output of each head over all tokens, [head, d_value]."""
    sums = {site: torch.zeros(site.n_heads, site.d_value, dtype=torch.float64) for site in sites}

    def observe(call: AttentionCall) -> None:
        sums[call.site] += call.z[0].sum(1, dtype=torch.float64).cpu()

    with attach(model, observers=[observe]):
        for row in ids:
            run_whole(model, torch.from_numpy(row)[None].to(model.device))
    return {site: total / ids.size for site, total in sums.items()}


def _documents(
    tokenizer: Any, count: int, length: int, text: str | None, prepend_bos: bool | None, seed: int
) -> np.ndarray:
    """Documents of `length` tokens each, [document, pos]."""
    bos = bos_token(tokenizer, prepend_bos) is not None
    if text is not None:
        return natural_prompts(tokenizer, count, length, text=text, prepend_bos=bos).ids
    grammar, texts = Grammar(seed), []
    for _ in range(count):
        texts.append(grammar.document(length // 4).text)  # a sentence has more than four tokens
    tokens = tokenize(tokenizer, texts, prepend_bos=bos, seq_len=length)
    if not bool(tokens.mask.all()):
        raise InputError(
            f"under this tokenizer the generated documents are shorter than {length} tokens; pass "
            "a text, or a smaller seq_len."
        )
    return tokens.ids.numpy()


def _spans(length: int) -> tuple[tuple[int, int], tuple[int, int]]:
    scale = min(1.0, length / _WHOLE)
    around = max(1, round(_AROUND * scale))
    early, late = (round(place * scale) for place in (_EARLY, _LATE))
    return (early - around, early + around), (late - around, late + around)


def _length(model: Any, seq_len: int | None) -> int:
    context = context_length(model)
    length = min(_WHOLE, context or _WHOLE)
    if seq_len is not None:
        length = whole_number("seq_len", seq_len, _SHORTEST)
    if length < _SHORTEST or (context is not None and length > context):
        raise InputError(
            f"the in-context score needs {_SHORTEST} tokens or more, within the model's context "
            f"of {context}; got {length}."
        )
    return length


def _chosen(sites: Sequence[Site], heads: Any) -> list[HeadId]:
    every = [head for site in sites for head in site.heads]
    if heads is None:
        return every
    if isinstance(heads, list | tuple) and not heads:
        return []
    named = as_heads(heads) or ()
    for head in named:
        if head not in every:
            raise InputError(f"the model has no query head {head}.")
    return [head for head in every if head in named]


def _frame(heads: Sequence[HeadId], change: np.ndarray, rule: Rule, seed: int) -> pd.DataFrame:
    columns = ["site", "layer", "head", "effect", "low", "high", "p", "early", "late", "n"]
    if not heads:
        return pd.DataFrame(columns=columns)
    effect = change[:, :, 1] - change[:, :, 0]  # [document, head]
    mean = effect.mean(0)
    half = halves(len(effect), seed=seed)
    sample = Sample("in-context", mean, effect - mean, half)
    bounds = simultaneous_bounds([sample], level=rule.level, resamples=rule.resamples, seed=seed)
    losses = change.mean(0)
    values = [
        (h.site, h.layer, h.head, float(mean[i]), float(bounds.low[i]), float(bounds.high[i]),
         float(bounds.p[i]), float(losses[i, 0]), float(losses[i, 1]), len(effect))
        for i, h in enumerate(heads)
    ]  # fmt: skip
    return pd.DataFrame(values, columns=columns)


def _span(span: tuple[int, int]) -> str:
    return f"{span[0]}–{span[1] - 1}"
