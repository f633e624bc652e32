"""Prune the built-in model: 26 of its 32 heads, with fine-tuning, and all methods without.

    python -m tests.bench.prune_tiny [--steps 400] [--recover 1600] [--out DIR]

It learns from text like that which it was trained on and from the second copies of random tokens,
of a seed that its own training did not use;
losses are of text of a third seed, and of second copies of random tokens of a fourth. The pruned
model is saved, loaded, and measured again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headatlas as ha
from headatlas.circuits.ablate.evaluate import evaluate
from headatlas.circuits.prune.prune import prune_heads
from headatlas.circuits.prune.prune_result import PruneResult
from headatlas.circuits.prune.remove.files import load_pruned
from headatlas.circuits.prune.remove.pruning import pruning_of
from headatlas.circuits.prune.settings import GateTraining
from headatlas.circuits.prune.survivors import labels_after
from headatlas.circuits.prune.train import train_gates
from headatlas.circuits.prune.working_copy import with_weights
from headatlas.interp.builtin.corpus import Corpus, prose
from headatlas.interp.grammar import Grammar
from headatlas.interp.probes import Prompts
from headatlas.interp.texts import Documents

SHARES = (0.25, 0.5, 0.75, 26 / 32)
METHODS = ("l0", "michel", "taylor", "greedy", "magnitude", "functional", "random", "layer_random")
TRAIN_SEED, TEXT_SEED = 101, 202  # the built-in model's own training has 0
LENGTH = 128


def training_documents(model, tokenizer, rows: int) -> Documents:
    """Half text as the model was trained on, half random tokens whose second copies count."""
    texts = [document.text + "\n\n" for document in Grammar(TRAIN_SEED).documents(4000)]
    corpus = Corpus(_ids(tokenizer, texts), _ids(tokenizer, [prose()]), len(tokenizer))
    ((ids, _),) = corpus.batches([(rows // 2, LENGTH, 0.0)], seed=TRAIN_SEED)
    text = _documents(ids, f"text as in training, seed {TRAIN_SEED}")
    return text + ha.repeated_probe(
        model, tokenizer, prompts=rows // 2, seq_len=LENGTH, seed=TRAIN_SEED
    )


def held_out_documents(tokenizer, rows: int) -> Documents:
    """Windows of running text of the grammar, of a seed that nothing was trained on."""
    texts = [document.text + "\n\n" for document in Grammar(TEXT_SEED).documents(800)]
    stream = _ids(tokenizer, texts)[: rows * (LENGTH - 1)].reshape(rows, LENGTH - 1)
    ids = np.concatenate([np.zeros((rows, 1), np.int64), stream], axis=1)
    return _documents(ids, f"text of the grammar, seed {TEXT_SEED}")


def _ids(tokenizer, texts: list[str]) -> np.ndarray:
    parts = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    return np.concatenate([np.asarray(part.ids, np.int64) for part in parts])


def _documents(ids: np.ndarray, origin: str) -> Documents:
    return Documents(Prompts("text", ids.astype(np.int64), np.ones_like(ids, bool), True), origin)


def markdown(arguments: list[str] | None = None) -> dict[str, str]:
    """The table of the pruned model, `curve` and `kinds`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--recover", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--tuned-only", action="store_true", help="leave the other methods out")
    parser.add_argument("--out", type=Path, help="a folder that is taken up again")
    options = parser.parse_args(arguments or [])
    torch.set_num_threads(options.threads)
    model, tokenizer = ha.load("tiny")
    subject = Subject(
        model, tokenizer, ha.classify(model, tokenizer),
        training_documents(model, tokenizer, 8192),
        held_out_documents(tokenizer, options.documents),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        place = options.out or Path(scratch)
        figures = {"": _tuned(subject, options, place)}
        if options.tuned_only:
            return figures
        frozen = _frozen(subject, place / "frozen")
    return {**figures, "curve": curve_table(frozen), "kinds": kinds_table(frozen)}


@dataclass(frozen=True, eq=False)
class Subject:
    """What is pruned, learnt from, and measured on."""

    model: Any
    tokenizer: Any
    atlas: ha.HeadAtlas
    train: Documents
    text: Documents

    def pruned(self, train: Documents, **asked: Any) -> PruneResult:
        """Prune it, measured on the held-out text."""
        return prune_heads(
            self.model, self.tokenizer, train, eval_texts=self.text, atlas=self.atlas,
            train_documents=None, eval_documents=len(self.text), seq_len=LENGTH, progress=_note,
            **asked,
        )  # fmt: skip


def _tuned(subject: Subject, options: argparse.Namespace, place: Path) -> str:
    """Most heads cut and the rest trained, and beside it what such training does to all heads."""
    began = time.process_time()
    config = GateTraining(
        target=SHARES[-1], steps=options.steps, recover=options.recover, batch=options.batch,
        finetune="full", draws="document", model_lr=2e-3, lr_warmup=0.05, every=100,
    )  # fmt: skip
    tuned = subject.pruned(
        subject.train, sparsity=SHARES[-1], config=config, folder=place / "tuned"
    )
    spent = time.process_time() - began
    updates = options.steps + options.recover
    alike = train_gates(
        subject.model, subject.train, checkpoint=place / "whole.safetensors", progress=_note,
        config=replace(config, target=None, lam=0.0, steps=1, recover=updates - 1),
    )  # fmt: skip
    left = [str(head) for head in tuned.heads if head not in tuned.removed()]
    said = (
        f"{len(tuned.removed())} of {len(tuned.heads)} heads removed "
        f"({len(tuned.removed()) / len(tuned.heads):.0%}), left: {', '.join(left)}; "
        f"{options.steps} updates of gates and weights, {options.recover} of weights, of "
        f"{options.batch} × {LENGTH} tokens; {spent:.0f} CPU s."
    )
    whole = with_weights(subject.model, alike.weights or {})
    return f"{said}\n\n{_reloaded(subject, whole, place / 'tuned')}"


def _frozen(subject: Subject, folder: Path) -> PruneResult:
    """All methods without fine-tuning, on the same few documents."""
    chosen = np.random.default_rng(TRAIN_SEED).permutation(len(subject.train))[:256]
    few = Documents(subject.train.prompts.select(chosen), subject.train.origin)
    config = GateTraining(target=0.5, steps=300, batch=16, draws="document")
    return subject.pruned(few, method=METHODS, sparsity=SHARES, config=config, folder=folder)


def _reloaded(subject: Subject, trained: Any, folder: Path) -> str:
    """The model as it comes back from its folder, measured again, beside the whole one."""
    model, tokenizer = subject.model, subject.tokenizer
    smaller, _ = load_pruned(folder / "model")
    probe = ha.repeated_probe(model, tokenizer, prompts=len(subject.text), seq_len=LENGTH)
    lines = [
        "| held out | as it ships, nats/token | pruned, reloaded | change | whole, trained alike |",
        "|---|---|---|---|---|",
    ]
    for name, read in (("text", subject.text), ("second copies", probe)):
        one = evaluate(smaller, read, [()], reference=model)
        before, after = one.base_loss_nats, float(one.loss_nats[0])
        alike = float(evaluate(trained, read, [()], reference=model).loss_nats[0])
        lines.append(
            f"| {name} | {before:.4f} | {after:.4f} | {after / before - 1:+.1%} | {alike:.4f} |"
        )
    lines += ["", "| of a sequence | before | after | ratio |", "|---|---|---|---|"]
    report = ha.removal_report(model, smaller, seq_len=LENGTH).table()
    lines += [f"| {' | '.join(map(str, row))} |" for row in report.to_numpy(object).tolist()]
    pruning = pruning_of(smaller)
    if pruning is not None:
        after = labels_after(subject.atlas, ha.classify(smaller, tokenizer), pruning)
        lines += ["", "| kind | heads before | left | left with the label | heads after |"]
        lines += ["|---|---|---|---|---|"]
        lines += [f"| {' | '.join(map(str, row))} |" for row in after.to_numpy(object).tolist()]
    return "\n".join(lines)


def curve_table(result: PruneResult) -> str:
    """Methods down, sparsities across: Δ loss on text with its interval, and at second copies."""
    values = list(dict.fromkeys(cut.asked for cut in result.cuts))
    rows = result.curve.to_dict("records")
    lines = [
        f"| Δ loss, nats/token | {' | '.join(f'{value:.0%}' for value in values)} |",
        "|---" * (len(values) + 1) + "|",
    ]
    for method in result.methods:
        cells = []
        for value in values:
            own = [row for row in rows if row["method"] == method and row["asked"] == value]
            cells.append(_cell(own))
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(own: list) -> str:
    """One cut with its interval, or the mean of several draws with their range."""
    deltas = [row["delta_loss_nats"] for row in own]
    low, high = own[0]["delta_low"], own[0]["delta_high"]
    if len(own) > 1:
        low, high = min(deltas), max(deltas)
    second = np.mean([row["second_copy_delta_loss_nats"] for row in own])
    return f"{np.mean(deltas):+.3f} [{low:+.3f}, {high:+.3f}]; second copies {second:+.3f}"


def kinds_table(result: PruneResult) -> str:
    """Kinds down, sparsities across: how many heads the first method keeps."""
    rows = result.survivors(method=result.methods[0]).to_dict("records")
    values = list(dict.fromkeys(row["asked"] for row in rows))
    lines = [
        f"| heads that {result.methods[0]} keeps | before "
        f"| {' | '.join(f'−{value:.0%}' for value in values)} |",
        "|---" * (len(values) + 2) + "|",
    ]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        left = " | ".join(f"{row['n_surviving']:g}" for row in own)
        lines.append(f"| {kind} | {own[0]['n_labelled']} | {left} |")
    return "\n".join(lines)


def _note(stage: str, done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{stage} {done} of {total}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    print("\n\n".join(markdown(sys.argv[1:]).values()))
