"""Train the built-in model: `python -m headatlas.interp.builtin.train --out DIR`.

A Llama of 4 layers, 8 query heads over 4 key-value heads and 0.86 million parameters learns text
that the package generates. Half of what it reads are random tokens with repeated spans: nothing
but previous-token and induction heads can predict those.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from . import corpus


@dataclass(frozen=True)
class Recipe:
    """How `tiny` is trained; every field changes the weights.

    Args:
        seed: of the text, the initial weights and the batches.
        steps: optimiser steps.
        learning_rate: its peak, after `warm_up` steps; it falls to a twentieth by a cosine.
        embedding_share: the embedding's learning rate over that of the rest; its random rows are
            nearly orthogonal, which is what heads tell tokens apart by, and a high rate spoils it.
        weight_decay: AdamW's, on matrices other than the embedding.
        tokens: tokens per batch.
        documents: how many documents the text is cut from.
    """

    seed: int = 0
    steps: int = 2000
    learning_rate: float = 3e-3
    warm_up: int = 100
    embedding_share: float = 0.2
    weight_decay: float = 0.05
    tokens: int = 6144
    documents: int = 12000

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))

    def shapes(self) -> list[tuple[int, int]]:
        """(rows, length) of every batch: short at first, 256 later, every eighth of 512."""
        lengths = [
            128 if step < self.steps // 4 else 512 if step % 8 == 7 else 256
            for step in range(self.steps)
        ]
        return [(self.tokens // length, length) for length in lengths]


def make_model(vocab: int, *, seed: int) -> LlamaForCausalLM:
    """The untrained model."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=16,
        initializer_range=0.08,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


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
    recipe: Recipe, out: Path, *, checkpoints: int | None = None, progress: Progress | None = None
) -> LlamaForCausalLM:
    """Train `tiny` and save it with its tokenizer.

    Args:
        recipe: seed, steps and rates.
        out: folder for the model; it appears when training is done.
        checkpoints: also save `out/checkpoints/step-00500` and so on, every so many steps.
        progress: where loss, speed and remaining time are shown.

    Returns:
        The trained model.
    """
    tokenizer, text = corpus.build(recipe.seed, n_documents=recipe.documents)
    model = make_model(text.vocab, seed=recipe.seed)
    optimiser = _optimiser(model, recipe)
    shapes = recipe.shapes()
    task = progress.add_task("training", total=recipe.steps, note="") if progress else None
    began, seen = time.perf_counter(), 0
    average: float | None = None
    for step, (ids, weights) in enumerate(text.batches(shapes, seed=recipe.seed)):
        if checkpoints and step % checkpoints == 0:
            save(model, tokenizer, out / "checkpoints" / f"step-{step:05d}")
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step) * group["share"]
        loss, copies = weighted_loss(
            model, torch.from_numpy(ids), torch.from_numpy(weights).float()
        )
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        seen += ids.size
        average = copies if average is None else 0.95 * average + 0.05 * copies
        if progress and task is not None:
            speed = seen / (time.perf_counter() - began)
            note = f"loss {loss.item():.3f} · repeats {average:.3f} nats · {speed:,.0f} tokens/s"
            progress.update(task, advance=1, note=note)
    save(model, tokenizer, out)
    return model


def _optimiser(model: LlamaForCausalLM, recipe: Recipe) -> torch.optim.AdamW:
    embedding = model.get_input_embeddings().weight
    matrices = [p for p in model.parameters() if p.ndim > 1 and p is not embedding]
    gains = [p for p in model.parameters() if p.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay, "share": 1.0},
        {"params": gains, "weight_decay": 0.0, "share": 1.0},
        {"params": [embedding], "weight_decay": 0.0, "share": recipe.embedding_share},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98))


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write model and tokenizer as an ordinary folder; each file appears whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for file in _files(Path(folder)):
            shutil.move(file, out / file.name)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.iterdir()) if file.is_file())


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train the built-in model.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--documents", type=int, default=Recipe.documents)
    parser.add_argument("--checkpoints", type=int, metavar="EVERY", help="steps between checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    recipe = Recipe(options.seed, options.steps, documents=options.documents)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} · {task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, refresh_per_second=1) as progress:
        train(recipe, options.out, checkpoints=options.checkpoints, progress=progress)


if __name__ == "__main__":
    main()
