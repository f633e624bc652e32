"""What became of the units of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .plan import Plan, Unit
from .unit_folder import UnitFolder


@dataclass(frozen=True)
class PlanReport:
    """What became of the units of a plan.

    Args:
        units: how many there are.
        done: names of those with an atlas.
        failed: why others have none, by name.
        elsewhere: names of those that another process has locked.
        cut: batches that did not fit memory: by unit and part, the documents they were cut to.
        torn: parts that were not whole and were scored again, by unit.
    """

    units: int
    done: tuple[str, ...]
    failed: Mapping[str, str]
    elsewhere: tuple[str, ...]
    cut: Mapping[str, Mapping[str, int]]
    torn: Mapping[str, Sequence[str]]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def complete(self) -> bool:
        """Whether every unit has its atlas."""
        return len(self.done) == self.units

    def with_failure(self, what: str, why: str) -> PlanReport:
        """A copy with a further failure."""
        return replace(self, failed={**self.failed, what: why})

    def told(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"schema_version": 1, **vars(self)}

    def __str__(self) -> str:
        lines = [f"{len(self.done)} of {self.units} units done"]
        lines += [f"failed: {name}: {' '.join(why.split())}" for name, why in self.failed.items()]
        if self.elsewhere:
            lines.append(
                f"another process works on {len(self.elsewhere)}: {', '.join(self.elsewhere[:4])}"
                + (" …" if len(self.elsewhere) > 4 else "")
            )
        for name, parts in self.cut.items():
            lines.append(
                f"cut for want of memory: {name}: {len(parts)} batches, to {min(parts.values())} "
                "documents at the least"
            )
        lines += [f"scored again: {name}: {', '.join(parts)}" for name, parts in self.torn.items()]
        return "\n".join(lines)


def report_of(
    plan: Plan,
    folders: Mapping[Unit, UnitFolder],
    failed: Mapping[Unit, str],
    elsewhere: Sequence[Unit],
) -> PlanReport:
    """The report, from what the folders say and what this process saw.

    Args:
        plan: of the folders.
        folders: of each unit.
        failed: units that failed in this process, also where the disk could not take it.
        elsewhere: units that another process had locked.
    """
    done, why, cut, torn = [], {}, {}, {}
    for unit, folder in folders.items():
        state, name = folder.state(plan.sha256), unit.folder
        if state.get("state") == "done":
            done.append(name)
        elif unit in failed:
            why[name] = failed[unit]
        elif state.get("state") == "failed" and unit not in elsewhere:
            why[name] = str(state.get("why"))
        if state.get("cut"):
            cut[name] = state["cut"]
        if state.get("torn"):
            torn[name] = state["torn"]
    busy = tuple(unit.folder for unit in elsewhere if unit.folder not in done)
    return PlanReport(len(folders), tuple(done), why, busy, cut, torn)
