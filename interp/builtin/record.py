"""Measure the built-in model's heads by hand: `python -m headatlas.interp.builtin.record DIR`.

The record is what the package's own labels are checked against, so it shares nothing with them:
the weights come from plain eager attention, masks and diagonals are written out here, and heads
are removed by zeroing their slice before the output projection.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..grammar import natural_text
from .corpus import repeats

DELIMITERS = frozenset({".", ",", "?", "!", ";", ":", '"', "\n", "\n\n"})
THRESHOLD = 0.4
Head = tuple[int, int]


@dataclass(frozen=True)
class Settings:
    """What the record is measured on.

    Args:
        seed: of the random tokens and of the text.
        sequences: sequences of each sort.
        length: tokens in each, `<s>` included.
    """

    seed: int = 20
    sequences: int = 24
    length: int = 256


@dataclass(frozen=True, eq=False)
class Battery:
    """Token ids [batch, pos], and the rows [batch, pos] whose next token an earlier copy shows."""

    ids: Tensor
    copied_next: Tensor


def random_battery(settings: Settings, *, vocab: int) -> Battery:
    """`<s>` and uniformly random tokens with spans of random length repeated at random gaps."""
    rng = np.random.default_rng(settings.seed)
    rows, flags = [], []
    for _ in range(settings.sequences):
        ids, copied = repeats(lambda n: rng.integers(3, vocab, n), rng, settings.length - 1)
        rows.append(np.concatenate([[0], ids]))
        flags.append(np.concatenate([copied, [False]]))
    return Battery(torch.from_numpy(np.stack(rows)), torch.from_numpy(np.stack(flags)))


def text_battery(settings: Settings, tokenizer: Any) -> Battery:
    """`<s>` and generated text."""
    rows = []
    for index in range(settings.sequences):
        text = natural_text(settings.length, seed=settings.seed * 1000 + index)
        rows.append(tokenizer(text)["input_ids"][: settings.length])
    ids = torch.tensor(rows)
    return Battery(ids, torch.zeros_like(ids, dtype=torch.bool))


@contextmanager
def without(model: Any, heads: Iterable[Head]) -> Iterator[None]:
    """Zero the output of some heads, `(layer, head)`, before the output projection."""
    width = model.config.head_dim
    handles = []
    for layer, head in heads:

        def cut(_module: Any, args: tuple[Tensor, ...], head: int = head) -> tuple[Tensor, ...]:
            z = args[0].clone()
            z[..., head * width : (head + 1) * width] = 0
            return (z, *args[1:])

        projection = model.model.layers[layer].self_attn.o_proj
        handles.append(projection.register_forward_pre_hook(cut))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def patterns(model: Any, ids: Tensor) -> list[Tensor]:
    """Attention weights [batch, head, query, key] of every layer."""
    return list(model(input_ids=ids, output_attentions=True).attentions)


@torch.no_grad()
def copy_loss(model: Any, battery: Battery) -> float:
    """Mean loss in nats on the tokens that an earlier copy shows."""
    logits = model(input_ids=battery.ids).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), battery.ids[:, 1:], reduction="none"
    )
    return losses[battery.copied_next[:, :-1]].mean().item()


def offset_mass(weights: Tensor, offset: int) -> Tensor:
    """Mean of A[i, i − offset] over the rows that have such a key, by head."""
    return weights.diagonal(offset=-offset, dim1=2, dim2=3).mean(dim=(0, 2))


def row_mass(weights: Tensor, wanted: Tensor, rows: Tensor) -> Tensor:
    """Mean over `rows` [batch, query] of the mass on `wanted` [batch, query, key], by head."""
    mass = (weights * wanted[:, None]).sum(-1)
    return (mass * rows[:, None]).sum(dim=(0, 2)) / rows.sum()


def duplicates(ids: Tensor) -> Tensor:
    """[batch, query, key]: an earlier key that holds the query's own token."""
    same = ids[:, :, None] == ids[:, None, :]
    return same.tril(-1)


def successors(ids: Tensor) -> Tensor:
    """[batch, query, key]: a key whose previous token is the query's own token."""
    shifted = torch.cat([torch.full_like(ids[:, :1], -1), ids[:, :-1]], dim=1)
    return (ids[:, :, None] == shifted[:, None, :]).tril()


def delimiters(ids: Tensor, tokenizer: Any) -> Tensor:
    """[batch, pos]: tokens that are a mark, a quote or a line break."""
    strings = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    mark = torch.tensor([string == "\n\n" or string.strip(" ") in DELIMITERS for string in strings])
    return mark[ids]


def positional_figures(weights: Tensor) -> dict[str, Tensor]:
    """Previous token, best offset of −8…−1, first position and current token, by head."""
    offsets = torch.stack([offset_mass(weights, k) for k in range(1, 9)])
    best, index = offsets.max(dim=0)
    return {
        "previous_token": offsets[0],
        "offset": best,
        "best_offset": -(index + 1).float(),
        "first_position": weights[..., 0].mean(dim=(0, 2)),
        "current_token": offset_mass(weights, 0),
    }


def repeat_figures(weights: Tensor, battery: Battery) -> dict[str, Tensor]:
    """Duplicate-token and induction mass on repeated random tokens, by head."""
    twins = duplicates(battery.ids)
    return {
        "duplicate_token": row_mass(weights, twins, twins.any(-1)),
        "induction": row_mass(weights, successors(battery.ids), battery.copied_next),
    }


def measure(model: Any, tokenizer: Any, settings: Settings) -> dict[Head, dict[str, float]]:
    """Every figure of every head: positional ones on both sorts of sequence."""
    random, text = random_battery(settings, vocab=len(tokenizer)), text_battery(settings, tokenizer)
    marks = delimiters(text.ids, tokenizer)
    found: dict[Head, dict[str, float]] = {}
    both = zip(patterns(model, random.ids), patterns(model, text.ids), strict=True)
    for layer, (on_random, on_text) in enumerate(both):
        figures = positional_figures(on_random) | repeat_figures(on_random, random)
        figures |= {f"text_{k}": v for k, v in positional_figures(on_text).items()}
        figures["delimiter"] = (on_text * marks[:, None, None]).sum(-1).mean(dim=(0, 2))
        for head in range(on_random.shape[1]):
            found[layer, head] = {k: round(v[head].item(), 4) for k, v in figures.items()}
    return found


def induction_mass(model: Any, battery: Battery, heads: list[Head]) -> dict[Head, float]:
    """Induction mass of some heads, in the model as it is now."""
    found = patterns(model, battery.ids)
    wanted = successors(battery.ids)
    masses = {layer: row_mass(found[layer], wanted, battery.copied_next) for layer, _ in heads}
    return {(layer, head): masses[layer][head].item() for layer, head in heads}


def confirm(model: Any, battery: Battery, figures: dict[Head, dict[str, float]]) -> dict[str, Any]:
    """What the removal of heads does to the loss on copies and to the induction heads."""
    base = copy_loss(model, battery)
    lists = {kind: _passing(figures, kind) for kind in ("previous_token", "induction")}
    rest = [head for head in figures if head not in lists["previous_token"] + lists["induction"]]

    def change(heads: list[Head]) -> float:
        with without(model, heads):
            return round(copy_loss(model, battery) - base, 4)

    before = induction_mass(model, battery, lists["induction"])
    downstream = {}
    for cause in lists["previous_token"]:
        with without(model, [cause]):
            after = induction_mass(model, battery, lists["induction"])
        downstream[_name(cause)] = {
            _name(head): round(after[head] - before[head], 4)
            for head in before
            if head[0] > cause[0]
        }
    rng = np.random.default_rng(0)
    size = min(len(lists["induction"]), len(rest))
    draws = [[rest[i] for i in rng.choice(len(rest), size, replace=False)] for _ in range(8)]
    return {
        "copy_loss_nats": round(base, 4),
        "copy_loss_change_nats": {_name(head): change([head]) for head in figures},
        "without_all_induction_heads": change(lists["induction"]),
        "without_all_previous_token_heads": change(lists["previous_token"]),
        "without_as_many_other_heads": [change(draw) for draw in draws],
        "induction_mass_change": downstream,
    }


def make_record(folder: Path, settings: Settings) -> dict[str, Any]:
    """The whole record of a model folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    figures = measure(model, tokenizer, settings)
    kinds = ("previous_token", "induction", "duplicate_token", "first_position", "current_token")
    kinds += ("offset", "delimiter")
    return {
        "schema_version": 1,
        "settings": asdict(settings) | {"threshold": THRESHOLD},
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
        "lists": {kind: [_name(head) for head in _passing(figures, kind)] for kind in kinds},
        "causal": confirm(model, random_battery(settings, vocab=len(tokenizer)), figures),
        "heads": {_name(head): values for head, values in figures.items()},
    }


def _passing(figures: dict[Head, dict[str, float]], kind: str) -> list[Head]:
    return [head for head, values in figures.items() if values[kind] > THRESHOLD]


def _name(head: Head) -> str:
    return f"L{head[0]}H{head[1]}"


def main(arguments: list[str] | None = None) -> None:
    """Read the command line, measure and write `DIR/record.json`."""
    parser = argparse.ArgumentParser(description="Measure the built-in model's heads by hand.")
    parser.add_argument("folder", type=Path, help="the model's folder")
    parser.add_argument("--seed", type=int, default=Settings.seed)
    options = parser.parse_args(arguments)
    record = make_record(options.folder, Settings(seed=options.seed))
    target = options.folder / "record.json"
    unfinished = target.with_name(".record.json.part")
    unfinished.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(target)


if __name__ == "__main__":
    main()
