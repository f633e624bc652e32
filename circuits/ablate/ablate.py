"""Remove heads from a model and see what its predictions lose, on text and on repeated tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...interp.errors import InputError
from ...interp.heads import HeadId, Heads
from ...interp.sites import unbridged
from ...interp.texts import Documents
from ..causal.sweep import sweep_values
from ..causal.sweep_file import Checkpoint, beside, fingerprint_sweep, refuse_edited
from ..fingerprint import fingerprint_model
from .evaluate import Progress, evaluate, measured_rows, measures_of, trials_of
from .evaluation import Evaluation
from .intervals import with_intervals
from .plan import DOCUMENTS, Plan, make_plan, named_heads
from .result import Ablation, AblationSweep, merged_rows
from .said import REPEATED, TEXT


def ablate_heads(
    model: Any,
    tokenizer: Any,
    heads: Heads,
    texts: Any = None,
    *,
    method: str = "mean",
    prompts: int = DOCUMENTS,
    seq_len: int | None = None,
    prepend_bos: bool | None = None,
    level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> Ablation:
    """Remove some heads together, and measure loss, perplexity and divergence.

        Δ loss = Σ_d n_d (loss without them − loss)[d] / Σ_d n_d        nats/token
        perplexity ratio = exp(Δ loss)
        KL = mean over tokens of KL(whole ‖ ablated)                    nats/token

    on text, and beside it at the second copies of repeated random tokens, which a model predicts
    by induction. Intervals are of a paired bootstrap over documents. `mean` puts the mean of a
    head's output over the other documents, by position, in its place (Wang 2022); `zero` does harm
    of its own, because the layers after it expect that mean; `resample` takes the output at
    another document's same position.

    Args:
        model: a transformers decoder with a language-model head.
        tokenizer: its tokenizer; None will do for ids.
        heads: addresses such as "L18H6", or "L18KV2" for all query heads of a group.
        texts: what `read_documents` takes (a text file, a list of strings, ids, a Hugging Face
            dataset); None: text that the model writes itself, seeded; or `Documents`, which are
            read whole as they are, whatever `prompts`, `seq_len` and `prepend_bos`.
        method: `mean`, `zero` or `resample`.
        prompts: documents of either sort; text gives at most as many. Second copies take 16 at
            least, and are measured on so many where fewer are asked for (`caveats` says so).
        seq_len: tokens per document; None: 64, or the model's context. Second copies take 16 at
            least, likewise.
        prepend_bos: True, False, or None for the tokenizer's habit: without a tokenizer no BOS.
        level: coverage of the intervals.
        seed: of text, random tokens, `resample` and bootstrap.
        progress: called with (stage, done, total).

    Returns:
        The figures, with those of each document.

    Raises:
        InputError: no decoder with a head, heads that it does not have, text that cannot be read,
            or a single document where others are needed.

    Example:
        >>> import headatlas as ha
        >>> found = ablate_heads(*ha.load("tiny"), ["L1H1"], ["a cat sat.", "a dog ran."])
        >>> found.delta_loss_nats < found.delta_second_copy_nats
        True

    Reference:
        Michel 2019; Wang 2022; Olsson 2022 (second copies).
    """
    model = unbridged(model)
    plan = make_plan(model, method, prompts, seq_len, prepend_bos, level, seed)
    if len(plan.methods) > 1:
        raise InputError(f"heads are removed one way at a time here; got {method!r}.")
    chosen = named_heads(heads, plan.sites)
    evaluations = {
        documents: {
            method: evaluate(
                model, read, [chosen], ablation=method, seed=seed, progress=progress
            )
        }
        for documents, read in plan.read(model, tokenizer, texts).items()
    }  # fmt: skip
    tables = []
    for documents, by_method in evaluations.items():
        (table,) = with_intervals([*by_method.values()], level=level, seed=seed)
        origin = by_method[method].documents.origin
        said = {"heads": " ".join(map(str, chosen)), "documents": documents, "origin": origin}
        tables.append(({**said, "method": method}, table))
    caveats = plan.caveats(evaluations)
    return Ablation(
        chosen, method, merged_rows(tables), evaluations, caveats, plan.settings(evaluations)
    )


def ablation_sweep(
    model: Any,
    tokenizer: Any,
    texts: Any = None,
    *,
    heads: Heads | None = None,
    methods: str | Sequence[str] = ("mean",),
    prompts: int = DOCUMENTS,
    seq_len: int | None = None,
    prepend_bos: bool | None = None,
    level: float = 0.95,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> AblationSweep:
    """Remove each head by itself, and measure loss, perplexity and divergence.

    As `ablate_heads`, for one head after the other; intervals hold for all heads and methods at
    once, for each sort of documents.

    Args:
        model: a transformers decoder with a language-model head.
        tokenizer: its tokenizer; None will do for ids.
        texts: as in `ablate_heads`.
        heads: which heads; None: every one.
        methods: one or several of `mean`, `zero`, `resample`.
        prompts: documents of either sort; text gives at most as many. Second copies take 16 at
            least, as in `ablate_heads`.
        seq_len: tokens per document; None: 64, or the model's context. Second copies take 16 at
            least.
        prepend_bos: True, False, or None for the tokenizer's habit: without a tokenizer no BOS.
        level: simultaneous coverage of the intervals.
        seed: of text, random tokens, `resample` and bootstrap.
        checkpoint: a `.safetensors` path. Finished layers are kept in a file of that name with
            -text or -repeated behind it, and an interrupted sweep goes on from there.
        progress: called with (stage, heads done, heads).

    Returns:
        The figures of every head, with those of each document.

    Raises:
        InputError: as `ablate_heads`, or a checkpoint of something else.

    Example:
        >>> import headatlas as ha
        >>> found = ablation_sweep(*ha.load("tiny"), heads=["L1H1", "L0H0"], prompts=16, seq_len=32)
        >>> found.table()["head"].tolist()
        ['L1H1', 'L0H0']

    Reference:
        Michel 2019 (one head at a time); Voita 2019.
    """
    model = unbridged(model)
    plan = make_plan(model, methods, prompts, seq_len, prepend_bos, level, seed)
    every = tuple(head for site in plan.sites for head in site.heads)
    chosen = every if heads is None else named_heads(heads, plan.sites)
    kept: dict[str, tuple[Path, str]] = {}
    if checkpoint is not None:
        refuse_edited(model)
        check_checkpoint(checkpoint)
        weights = fingerprint_model(model)
        kept = {name: (beside(checkpoint, name), weights) for name in (TEXT, REPEATED)}
    evaluations = {
        name: _swept(model, read, name, chosen, plan, kept.get(name), progress)
        for name, read in plan.read(model, tokenizer, texts).items()
    }
    caveats = plan.caveats(evaluations)
    return AblationSweep(
        chosen, plan.methods, _rows(chosen, evaluations, plan), evaluations, caveats,
        plan.settings(evaluations),
    )  # fmt: skip


def check_checkpoint(path: str | Path) -> None:
    """Refuse a checkpoint that cannot be written, before any work is done for it.

    Raises:
        InputError: another suffix than .safetensors, or a folder that cannot be written to.
    """
    for documents in (TEXT, REPEATED):
        Checkpoint(beside(path, documents), "", "")


def _swept(
    model: Any,
    read: Documents,
    documents: str,
    heads: tuple[HeadId, ...],
    plan: Plan,
    kept: tuple[Path, str] | None,
    progress: Progress | None,
) -> dict[str, Evaluation]:
    """One evaluation per method, whose sets are the heads."""
    marked = measured_rows(read.prompts)
    trials = trials_of(model, read.prompts, marked, seed=plan.seed)
    file = None
    if kept is not None:
        measures = measures_of(marked)
        settings = fingerprint_sweep(read.prompts, measures, heads, plan.methods, plan.seed)
        file = Checkpoint(*kept, settings)
    values = sweep_values(trials, heads, plan.methods, file, progress)
    sets = tuple((head,) for head in heads)
    return {
        method: Evaluation(
            read, sets, method, marked.sum(1), trials.base[0], values[:, place, 0],
            values[:, place, 1], trials.resumed,
        )
        for place, method in enumerate(plan.methods)
    }  # fmt: skip


def _rows(
    heads: tuple[HeadId, ...], evaluations: dict[str, dict[str, Evaluation]], plan: Plan
) -> Any:
    tables = []
    for documents, by_method in evaluations.items():
        found = with_intervals([*by_method.values()], level=plan.level, seed=plan.seed)
        for (method, one), table in zip(by_method.items(), found, strict=True):
            said = {
                "site": [head.site for head in heads], "layer": [head.layer for head in heads],
                "head": [head.head for head in heads], "documents": documents,
                "origin": one.documents.origin, "method": method,
            }  # fmt: skip
            tables.append((said, table))
    rows = merged_rows(tables)
    return rows.sort_values(["site", "layer", "head"], kind="stable").reset_index(drop=True)
