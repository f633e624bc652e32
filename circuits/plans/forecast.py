"""What a plan will take: units, forward passes, time, memory and disk, from one batch of each."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...interp.errors import InputError
from ..score import score_batches
from ..sums import Sums
from .batches import ranges
from .checkpoint import Loaded, load_checkpoint
from .parts import Part
from .plan import Plan, PlanModel, Unit
from .plan_file import read_plan
from .unit_run import Job


@dataclass(frozen=True)
class Cost:
    """What a model's units of one length and set of prompts take.

    Args:
        model: its name.
        prompts: name of the prompts.
        length: tokens per document.
        units: how many such units there are: one a checkpoint.
        passes: forward passes, over all of them.
        seconds: estimated, loading and labelling included, removal of heads not.
        disk_bytes: of their parts and atlases.
        removals: heads × ways of removal of each unit, whose time is not estimated.
    """

    model: str
    prompts: str
    length: int
    units: int
    passes: int
    seconds: float
    disk_bytes: int
    removals: int


@dataclass(frozen=True)
class Forecast:
    """What a plan will take.

    Args:
        costs: by model, prompts and length.
        memory_bytes: the most that this process held while it measured; device memory is not in it.
        failed: why a model could not be measured, by name.
    """

    costs: tuple[Cost, ...]
    memory_bytes: int
    failed: dict[str, str]

    @property
    def units(self) -> int:
        """Units that could be measured."""
        return sum(cost.units for cost in self.costs)

    @property
    def passes(self) -> int:
        """Forward passes of them all."""
        return sum(cost.passes for cost in self.costs)

    @property
    def seconds(self) -> float:
        """Estimated time of them all."""
        return sum(cost.seconds for cost in self.costs)

    @property
    def disk_bytes(self) -> int:
        """What they leave on the disk."""
        return sum(cost.disk_bytes for cost in self.costs)


def forecast_plan(
    plan: str | Path | Plan, *, progress: Callable[[str, int, int], None] | None = None
) -> Forecast:
    """Measure one batch of every prompt set of each model at each length, and reckon the rest.

    The first checkpoint of a model stands for all of it.

    Args:
        plan: a TOML file, or what `read_plan` gives.
        progress: called with ("measured", done, total).

    Raises:
        InputError: the plan is wrong.
    """
    read = plan if isinstance(plan, Plan) else read_plan(plan)
    costs, failed = [], dict[str, str]()
    for place, model in enumerate(read.models):
        try:
            costs += _of_model(read, model)
        except InputError as error:
            failed[model.name] = str(error)
        if progress is not None:
            progress("measured", place + 1, len(read.models))
    return Forecast(tuple(costs), _peak_bytes(), failed)


def _of_model(plan: Plan, model: PlanModel) -> list[Cost]:
    own = [unit for unit in plan.units if unit.model == model.name]
    first = [unit for unit in own if unit.checkpoint == own[0].checkpoint]
    began = time.perf_counter()
    loaded = load_checkpoint(plan, first[0])
    loading = (time.perf_counter() - began) / len(first)
    checkpoints = max(1, len(model.checkpoints))
    return [_of_unit(plan, unit, loaded, checkpoints, loading) for unit in first]


def _of_unit(plan: Plan, unit: Unit, loaded: Loaded, checkpoints: int, loading: float) -> Cost:
    began = time.perf_counter()
    job = Job.of(plan, unit, loaded)
    seconds, passes, size = loading + time.perf_counter() - began, 0, 0
    whole: dict[str, Sums] = {}
    with tempfile.TemporaryDirectory() as name:
        for prompt_set, prompts in job.sets.items():
            batches = ranges(prompts, plan.batch_tokens)
            part = Part(Path(name), prompt_set, batches[0], "")
            sums, took = _timed(job, part)
            passes += len(batches)
            seconds += took * len(batches)
            size += part.path.stat().st_size * len(batches)
            # as many documents as there will be: the same labels' work and the same atlas's size
            whole[prompt_set] = sums.take(np.resize(np.arange(len(sums.rows)), len(prompts)))
        began = time.perf_counter()
        size += job.atlas(whole).save(Path(name) / "atlas.parquet").stat().st_size
        seconds += time.perf_counter() - began
    heads = len(next(iter(whole.values())).heads)
    return Cost(
        unit.model, unit.prompts.name, unit.length, checkpoints, passes * checkpoints,
        seconds * checkpoints, size * checkpoints, heads * len(plan.ablations),
    )  # fmt: skip


def _timed(job: Job, part: Part) -> tuple[Sums, float]:
    """The first batch of a set, run once to warm up and once for the clock, and written."""
    for _ in range(2):
        began = time.perf_counter()
        (sums,) = score_batches(
            job.loaded.model, job.sets[part.prompts], job.kinds_of(part.prompts),
            batches=[part.documents], **job.options(part.prompts),
        )  # fmt: skip
        part.write(sums)
        took = time.perf_counter() - began
    return sums, took  # type: ignore[possibly-unbound]


def _peak_bytes() -> int:
    import resource  # not on Windows, where plans find no locks either

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
