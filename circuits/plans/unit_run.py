"""One unit: score what is missing, batch by batch, and make the atlas of it all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...interp.errors import InputError
from ...interp.files import read_text
from ...interp.probes import Prompts
from ...interp.sites import attention_sites
from ..asked import ask
from ..atlas import HeadAtlas
from ..battery import Battery
from ..causal.effects import causal_effects
from ..fingerprint import fingerprint_prompts
from ..grade import Rule
from ..kinds import Kind
from ..label import label
from ..provenance import describe, settings
from ..score import one_direction
from ..sums import Sums
from .batches import ranges, score_missing
from .checkpoint import Loaded
from .parts import Part
from .plan import Plan, Unit
from .unit_folder import UnitFolder

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


@dataclass(frozen=True, eq=False)
class Job:
    """What a unit has to do, once its model is there.

    Args:
        plan: the unit's.
        unit: which one.
        loaded: its model.
        battery: how much it scores on.
        kinds: what it scores.
        sets: its documents, by prompt set.
    """

    plan: Plan
    unit: Unit
    loaded: Loaded
    battery: Battery
    kinds: tuple[Kind, ...]
    sets: Mapping[str, Prompts]

    @classmethod
    def of(cls, plan: Plan, unit: Unit, loaded: Loaded) -> Job:
        """Make the documents of a unit.

        Raises:
            InputError: the text cannot be read or is too short, or lengths or kinds do not fit the
                model.
        """
        text = None if unit.prompts.text is None else read_text(plan.path(unit.prompts.text))
        battery = plan.battery(unit, text)
        asked = ask(plan.kinds, battery)
        kinds = asked.kinds
        if loaded.tokenizer is None:
            kinds = tuple(kind for kind in kinds if not kind.needs_text)
            if not kinds or text is not None or (asked.named and kinds != asked.kinds):
                raise InputError(
                    f"{unit.model} comes without a tokenizer, which a text and "
                    f"{', '.join(k.name for k in asked.kinds if k.needs_text)} need."
                )
        causal = one_direction(attention_sites(loaded.model))
        sets = battery.prompt_sets(loaded.model, loaded.tokenizer, kinds, causal=causal)
        return cls(plan, unit, loaded, battery, kinds, sets)

    def kinds_of(self, name: str) -> list[Kind]:
        """The kinds that read a set."""
        return [kind for kind in self.kinds if name in kind.reads]

    def options(self, name: str) -> dict[str, int]:
        """Of `score_batches`, for a set: one that serves thresholds only needs no profile."""
        judged = any(name in kind.prompts for kind in self.kinds)
        return {"seed": self.battery.seed, "profile_rows": 32 if judged else 0}

    def parts(self, folder: UnitFolder) -> dict[str, list[Part]]:
        """The parts of each set."""
        return {
            name: [
                Part(folder.parts, name, documents, self.identity(name))
                for documents in ranges(prompts, self.plan.batch_tokens)
            ]
            for name, prompts in self.sets.items()
        }

    def identity(self, name: str) -> str:
        """SHA-256 of all that the sums of a set depend on."""
        told = {
            "provenance": self.loaded.provenance,
            "unit": self.unit.index,
            "documents": fingerprint_prompts(self.sets[name]),
            "kinds": [[kind.name, kind.definition] for kind in self.kinds_of(name)],
            **self.options(name),
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def atlas(self, sums: Mapping[str, Sums]) -> HeadAtlas:
        """The atlas of all sums, as `classify` makes it."""
        rule, provenance = Rule(), self.loaded.provenance
        model = self.loaded.model
        told = settings(self.battery, rule, self.kinds, self.sets, None)
        told["plan"] = {**provenance, "unit": str(self.unit), "prompts": self.unit.prompts.name}
        return HeadAtlas(
            label(sums, self.kinds, rule, seed=self.battery.seed),
            describe(model, attention_sites(model)),
            dict(provenance["versions"]),
            told,
        )


@dataclass
class Told:
    """What is worth telling of a unit that was run.

    Args:
        scored: batches that were scored.
        kept: batches that stood in whole parts.
        torn: names of parts that were not whole, or of something else, and were made anew.
        cut: batches that did not fit memory, by part, with the documents they were cut to.
    """

    scored: int = 0
    kept: int = 0
    torn: list[str] = field(default_factory=list)
    cut: dict[str, int] = field(default_factory=dict)


def run_unit(job: Job, folder: UnitFolder, told: Told, progress: Progress) -> HeadAtlas:
    """Score the parts that are missing, keep each, and make the atlas.

    Args:
        job: what is to be done.
        folder: locked by this process.
        told: filled on the way, so that it stands also where the unit fails.
        progress: called after each batch.

    Raises:
        InputError: the model is refused, memory does not do for one document, or the disk fails.
    """
    parts = job.parts(folder)
    total, done = sum(map(len, parts.values())), 0
    progress("batches", done, total)
    found: dict[str, Sums] = {}
    for name, own in parts.items():
        held: dict[int, Sums] = {}
        for part in own:
            there = part.path.exists()
            sums = part.read()
            if sums is not None:
                held[part.documents.start] = sums
            elif there:
                told.torn.append(part.path.name)
        told.kept += len(held)
        done += len(held)
        progress("batches", done, total)
        missing = {part.documents.start: part for part in own if part.documents.start not in held}

        def keep(
            documents: slice,
            sums: Sums,
            cut: int | None,
            held: dict[int, Sums] = held,
            missing: Mapping[int, Part] = missing,
        ) -> None:
            nonlocal done
            part = missing[documents.start]
            part.write(sums)
            held[documents.start] = sums
            if cut is not None:
                told.cut[part.path.name] = cut
            told.scored += 1
            done += 1
            progress("batches", done, total)

        batches = [part.documents for part in missing.values()]
        score_missing(
            job.loaded.model, job.sets[name], job.kinds_of(name), batches, keep, job.options(name)
        )
        found[name] = Sums.join([held[start] for start in sorted(held)])
    atlas = job.atlas(found)
    return _with_removal(job, folder, atlas, progress) if job.plan.ablations else atlas


def _with_removal(job: Job, folder: UnitFolder, atlas: HeadAtlas, progress: Progress) -> HeadAtlas:
    """Test the labels by removal; a checkpoint of it that is damaged is made anew."""
    text = job.battery.text

    def test() -> Any:
        return causal_effects(
            job.loaded.model, job.loaded.tokenizer, atlas, ablations=job.plan.ablations,
            text=text, seed=job.battery.seed, checkpoint=folder.removals, progress=progress,
        )  # fmt: skip

    try:
        effects = test()
    except InputError:
        held = [*folder.path.glob(f"{folder.removals.stem}-*{folder.removals.suffix}")]
        if not held:
            raise
        for file in held:
            file.unlink()
        effects = test()
    # where it was taken up again is no part of the result
    kept = {name: value for name, value in effects.settings.items() if name != "resumed"}
    return atlas.with_evidence(replace(effects, settings=kept))
