"""Run a plan: unit by unit, each under its lock, whatever becomes of the others."""

from __future__ import annotations

import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...interp.errors import InputError, one_line
from ...interp.files import atomic_write, folder_to_disk, read_text
from .checkpoint import Loaded, load_checkpoint
from .lock import locked
from .plan import Plan, Unit
from .plan_file import parse_plan, read_plan
from .report import PlanReport, report_of
from .unit_folder import UnitFolder, write_json
from .unit_run import Job, Progress, Told, run_unit

PLAN, REPORT, UNITS, LOCK = "plan.toml", "report.json", "units", ".lock"


def run_plan(plan: str | Path, out: str | Path, *, progress: Progress | None = None) -> PlanReport:
    """Label every unit of a plan into a folder, and go on there if it was stopped.

    Each finished batch is on the disk before the next begins: a process killed at any moment loses
    one batch, and what it takes up again ends in the bits of a run that was never stopped, on the
    same machine with the same versions and threads. Several processes may work on one folder; each
    takes units that no other has. A unit that fails is told of, and the others go on.

    Args:
        plan: a TOML file, see `read_plan`.
        out: a folder, new, empty, or of the same plan.
        progress: called with (stage, done, total) after each batch (stage `batches`) and each unit
            (stage `units`).

    Returns:
        What is done, what failed and why, what another process has.

    Raises:
        InputError: the plan is wrong, or the folder is of another plan or of something else.

    Example:
        >>> import tempfile
        >>> here = Path(tempfile.mkdtemp())
        >>> _ = (here / "plan.toml").write_text(
        ...     'lengths = [32]\\nkinds = ["induction"]\\nmodels = [{name = "tiny"}]\\n'
        ...     'prompts = [{count = 16}]')
        >>> run_plan(here / "plan.toml", here / "out").ok
        True
    """
    text, read = read_text(plan), read_plan(plan)
    folder, tell = Path(out), progress or (lambda stage, done, total: None)
    _take_folder(folder, text, read)
    runner = _Runner(read, folder, tell)
    for unit in read.units:
        runner.run(unit)
    report = report_of(read, runner.folders, runner.failed, runner.elsewhere)
    try:
        with locked(folder / LOCK, wait=True):
            write_json(folder / REPORT, report.told())
    except InputError as error:  # of a full disk the caller hears all the same
        return report.with_failure(REPORT, str(error))
    return report


def _take_folder(folder: Path, text: str, plan: Plan) -> None:
    """Put the plan into a new folder, or see that it is the one that is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {str(folder)!r}: {error.strerror}.") from error
    with locked(folder / LOCK, wait=True):
        copy = folder / PLAN
        if copy.exists():
            if parse_plan(read_text(copy), plan.base, str(copy)).sha256 != plan.sha256:
                raise InputError(
                    f"{str(folder)!r} is of another plan (see its {PLAN}); results of two plans do "
                    "not mix. Choose another folder, or take that plan."
                )
            return
        if any(not path.name.startswith(".") for path in folder.iterdir()):
            raise InputError(
                f"{str(folder)!r} holds other files and no {PLAN}; choose a new or empty folder."
            )
        with atomic_write(copy) as temporary:
            temporary.write_text(text, encoding="utf-8")
        folder_to_disk(folder)


@dataclass(frozen=True)
class _Failure:
    """A checkpoint that cannot be loaded fails all its units, and is tried once."""

    why: str


class _Runner:
    """Runs units one after the other; units of one checkpoint share the loaded model."""

    def __init__(self, plan: Plan, folder: Path, progress: Progress) -> None:
        self.plan, self.progress = plan, progress
        self.folders = {unit: UnitFolder(folder / UNITS / unit.folder) for unit in plan.units}
        self.failed: dict[Unit, str] = {}
        self.elsewhere: list[Unit] = []
        self._at: tuple[str, str] | None = None
        self._loaded: Loaded | _Failure | None = None
        self._ended = 0

    def run(self, unit: Unit) -> None:
        """Do one unit, unless it is done or another process has it."""
        own = self.folders[unit]
        self.progress("units", self._ended, len(self.folders))
        if own.state(self.plan.sha256).get("state") != "done":
            try:
                own.make()
                with locked(own.lock) as mine:
                    if not mine:
                        self.elsewhere.append(unit)
                    elif own.state(self.plan.sha256).get("state") != "done":
                        self._do(unit, own)
            except InputError as error:  # the folder or its lock cannot be made
                self.failed[unit] = str(error)
        self._ended += 1
        self.progress("units", self._ended, len(self.folders))

    def _do(self, unit: Unit, own: UnitFolder) -> None:
        told = Told()
        own.sweep_out()
        try:
            loaded = self._load(unit)
            job = Job.of(self.plan, unit, loaded)
            atlas = run_unit(job, own, told, self.progress)
            own.finish(atlas, self._word(unit, told, loaded))
            return
        except InputError as error:
            why = str(error)
        except Exception as error:  # one unit's surprise must not cost the others
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            why = f"{type(error).__name__} at {where}: {one_line(error)}"
        self.failed[unit] = why
        with suppress(InputError):  # a full disk: the report that is returned has it
            own.tell({"state": "failed", "why": why, **self._word(unit, told)})

    def _word(self, unit: Unit, told: Told, loaded: Loaded | None = None) -> dict[str, Any]:
        return {
            "unit": asdict(unit),
            "plan_sha256": self.plan.sha256,
            **asdict(told),
            "provenance": None if loaded is None else loaded.provenance,
        }

    def _load(self, unit: Unit) -> Loaded:
        at = (unit.model, unit.checkpoint)
        if at != self._at:
            self._at, self._loaded = at, None  # the last one goes before the next comes
            try:
                self._loaded = load_checkpoint(self.plan, unit)
            except InputError as error:
                self._loaded = _Failure(str(error))
        if not isinstance(self._loaded, Loaded):
            why = self._loaded.why if self._loaded else "the checkpoint could not be loaded"
            raise InputError(why)
        return self._loaded
