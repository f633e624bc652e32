"""A plan: which models, checkpoints, prompts and lengths are to be labelled."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..battery import Battery


@dataclass(frozen=True)
class PlanModel:
    """A model and the checkpoints of it that are labelled.

    Args:
        name: whatever `load` takes; a path counts from the plan's folder.
        checkpoints: folders inside that of the model, other folders, or revisions of a hub id, in
            the order of training; none: the model as it stands.
    """

    name: str
    checkpoints: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanPrompts:
    """How many documents there are, and of what.

    Args:
        name: what tables call them.
        count: documents per prompt set, at least 16.
        seed: of the documents, the sampled rows and the bootstrap.
        text: a UTF-8 file for the natural set; its path counts from the plan's folder. None
            generates it.
    """

    name: str = "made"
    count: int = 64
    seed: int = 0
    text: str | None = None


@dataclass(frozen=True)
class Unit:
    """One atlas of a plan.

    Args:
        index: its place in the plan.
        model: name of the model.
        checkpoint: of the model; empty: the model as it stands.
        prompts: its documents.
        length: tokens per document.
    """

    index: int
    model: str
    checkpoint: str
    prompts: PlanPrompts
    length: int

    @property
    def folder(self) -> str:
        """The name of its folder, such as `003-tiny-made-64`."""
        told = (Path(self.model).name, Path(self.checkpoint).name, self.prompts.name)
        words = [re.sub(r"[^\w.-]+", "_", word, flags=re.ASCII)[:40] for word in told if word]
        return "-".join([f"{self.index:03d}", *words, str(self.length)])

    def __str__(self) -> str:
        at = f"@{self.checkpoint}" if self.checkpoint else ""
        return f"{self.model}{at} · {self.prompts.name} · {self.length}"


@dataclass(frozen=True)
class Plan:
    """What is to be labelled: every checkpoint on every set of prompts at every length.

    Args:
        models: at least one.
        prompts: how many documents, and of what.
        lengths: tokens per document, 16 or more.
        kinds: names of kinds on tokens; None: all of them.
        ablations: which of zero, mean and resample test the labels by removal, mean among them;
            none: no removal.
        batch_tokens: tokens per forward pass (at least one document). It fixes which documents
            are scored together, and so the last bits of the sums.
        dtype: of the weights: float32, bfloat16 or float16.
        device: where the models run.
        base: the folder that paths count from; no part of the plan's hash.
    """

    models: tuple[PlanModel, ...]
    prompts: tuple[PlanPrompts, ...] = (PlanPrompts(),)
    lengths: tuple[int, ...] = (256,)
    kinds: tuple[str, ...] | None = None
    ablations: tuple[str, ...] = ()
    batch_tokens: int = 1024
    dtype: str = "float32"
    device: str = "cpu"
    base: Path = field(default=Path(), compare=False)

    @property
    def units(self) -> tuple[Unit, ...]:
        """Its atlases, checkpoint by checkpoint."""
        found = [
            (model.name, checkpoint, prompts, length)
            for model in self.models
            for checkpoint in model.checkpoints or ("",)
            for prompts in self.prompts
            for length in self.lengths
        ]
        return tuple(Unit(index, *one) for index, one in enumerate(found))

    @property
    def sha256(self) -> str:
        """Of all that it says; another order of the same tables is another plan."""
        told = asdict(self)
        del told["base"]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def path(self, name: str) -> Path:
        """A path of the plan, counted from its folder."""
        return self.base / Path(name).expanduser()

    def battery(self, unit: Unit, text: str | None = None) -> Battery:
        """How much a unit scores on.

        Raises:
            InputError: a number is out of range.
        """
        prompts = unit.prompts
        return Battery(prompts.count, unit.length, text, seed=prompts.seed)
