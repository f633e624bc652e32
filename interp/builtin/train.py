"""Train the built-in model: `python -m headatlas.interp.builtin.train --out DIR`.

A Llama of 4 layers, 8 query heads over 4 key-value heads and 0.86 million parameters learns text
that the package generates. About half of what it reads are random tokens with repeated spans:
nothing but previous-token and induction heads can predict those.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from . import corpus


@dataclass(frozen=True)
class Stage:
    """A part of the training.

    Args:
        part: its share of all steps.
        lengths: lengths of its sequences, one after the other from batch to batch.
        random: share of sequences of random tokens with repeats.
        tokens: tokens per batch.
    """

    part: float
    lengths: tuple[int, ...]
    random: float
    tokens: int


# Short and nothing but repeats at first: text learnt earlier drowns the signal that forms the
# previous-token and induction heads, and long sequences thin it out. They form within the first
# stage, at a sudden drop of the loss.
STAGES = (
    Stage(0.4, (64,), 1.0, 2048),
    Stage(0.1, (128,), 0.7, 4096),
    Stage(0.5, (256, 256, 256, 256, 128, 256, 256, 512), 0.48, 4096),
)


@dataclass(frozen=True)
class Recipe:
    """How `tiny` is trained; every field changes the weights.

    Args:
        seed: of the text, the initial weights and the batches.
        steps: optimiser steps.
        matrix_rate: AdamW's peak learning rate of the layers' matrices.
        rate: the peak learning rate of the embedding and the gains.
        weight_decay: of the matrices.
        warm_up: steps until both rates peak; then they fall to a fiftieth by a cosine.
        documents: how many documents the text is cut from.
    """

    seed: int = 0
    steps: int = 2300
    matrix_rate: float = 1.5e-3
    rate: float = 4e-3
    weight_decay: float = 0.1
    warm_up: int = 40
    documents: int = 8000

    def slope(self, step: int) -> float:
        """The part of the peak learning rates that a step uses."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))

    def shapes(self) -> list[tuple[int, int, float]]:
        """(rows, length, share of random tokens) of every batch."""
        found = []
        for step in range(self.steps):
            stage = self.stage(step)
            length = stage.lengths[step % len(stage.lengths)]
            found.append((stage.tokens // length, length, stage.random))
        return found

    def stage(self, step: int) -> Stage:
        """The stage a step belongs to."""
        end = 0.0
        for stage in STAGES:
            end += stage.part
            if step < end * self.steps:
                return stage
        return STAGES[-1]


def make_model(vocab: int, *, seed: int) -> LlamaForCausalLM:
    """The untrained model.

    Embeddings are large beside what the layers add at first, so that tokens stay distinct, and
    share one direction: it gives rotary heads something constant to turn, and the softmax ignores
    it. The last gain starts near zero, so that the first predictions are uniform; otherwise the
    layers would first learn to drown the embeddings in a constant.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        embedding = model.model.embed_tokens.weight
        embedding.normal_(0, 0.5).add_(0.35 * torch.randn(128))
        model.model.norm.weight.fill_(0.01)
    return model


def make_optimiser(model: LlamaForCausalLM, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW with one group for the layers' matrices and one for embedding and gains."""
    embedding = model.model.embed_tokens.weight
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    rest = [embedding, *(p for p in model.parameters() if p.ndim == 1)]
    groups = [
        {"params": matrices, "peak": recipe.matrix_rate, "weight_decay": recipe.weight_decay},
        {"params": rest, "peak": recipe.rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98))


def weighted_loss(model: LlamaForCausalLM, ids: Tensor, weights: Tensor) -> tuple[Tensor, float]:
    """Next-token loss in nats with a weight per predicted token, and its mean on repeats alone."""
    logits = model(input_ids=ids).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    weight = weights[:, 1:].flatten()
    repeated = losses.detach()[weight > 1]
    copies = repeated.mean().item() if len(repeated) else math.nan
    return (losses * weight).sum() / weight.sum(), copies


def train(
    recipe: Recipe,
    out: Path,
    *,
    checkpoints: int | None = None,
    until: int | None = None,
    progress: Progress | None = None,
) -> LlamaForCausalLM:
    """Train `tiny` and save it with its tokenizer.

    Args:
        recipe: seed, steps and rates.
        out: folder for the model; its files appear when training is done.
        checkpoints: also save `out/checkpoints/step-00500` and so on, every so many steps.
        until: stop after this many of the recipe's steps, with the weights that they leave.
        progress: where loss, speed and remaining time are shown.

    Returns:
        The trained model.
    """
    tokenizer, text = corpus.build(recipe.seed, n_documents=recipe.documents)
    model = make_model(text.vocab, seed=recipe.seed)
    optimiser = make_optimiser(model, recipe)
    meter = Meter(progress, recipe.steps)
    for step, (ids, weights) in enumerate(text.batches(recipe.shapes(), seed=recipe.seed)):
        if checkpoints and step % checkpoints == 0:
            save(model, tokenizer, out / "checkpoints" / f"step-{step:05d}")
        if step == until:
            break
        loss, copies = weighted_loss(
            model, torch.from_numpy(ids), torch.from_numpy(weights).float()
        )
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * recipe.slope(step)
        optimiser.step()
        meter.show(loss.item(), copies, ids.size)
    save(model, tokenizer, out)
    return model


class Meter:
    """Shows the smoothed loss, the loss on repeats and the speed of training."""

    def __init__(self, progress: Progress | None, steps: int) -> None:
        self.progress, self.began, self.seen = progress, time.perf_counter(), 0
        self.loss = self.copies = math.nan
        self.task = progress.add_task("training", total=steps, note="") if progress else None

    def show(self, loss: float, copies: float, tokens: int) -> None:
        """Take in one batch."""
        self.seen += tokens
        self.loss = loss if math.isnan(self.loss) else 0.95 * self.loss + 0.05 * loss
        if not math.isnan(copies):
            before = copies if math.isnan(self.copies) else self.copies
            self.copies = 0.95 * before + 0.05 * copies
        if self.progress is None or self.task is None:
            return
        speed = self.seen / (time.perf_counter() - self.began)
        note = f"loss {self.loss:.3f} · repeats {self.copies:.3f} nats · {speed:,.0f} tokens/s"
        self.progress.update(self.task, advance=1, note=note)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write model and tokenizer as an ordinary folder; each file appears whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for file in sorted(Path(folder).iterdir()):
            file.chmod(0o644)
            file.replace(out / file.name)


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train the built-in model.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--documents", type=int, default=Recipe.documents)
    parser.add_argument(
        "--checkpoints", type=int, metavar="EVERY", help="steps between checkpoints"
    )
    parser.add_argument("--until", type=int, metavar="STEP", help="stop after this many steps")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    recipe = Recipe(seed=options.seed, steps=options.steps, documents=options.documents)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} · {task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, refresh_per_second=1) as progress:
        train(
            recipe, options.out, checkpoints=options.checkpoints, until=options.until,
            progress=progress,
        )  # fmt: skip


if __name__ == "__main__":
    main()
