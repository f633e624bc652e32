"""What a plan found: its atlases by unit, and which heads keep their labels among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ...interp.errors import InputError
from ...interp.files import read_text
from ..atlas import HeadAtlas
from .plan import Plan, Unit
from .plan_file import parse_plan
from .report import PlanReport, report_of
from .run import PLAN, UNITS
from .unit_folder import UnitFolder

AXES = ("model", "checkpoint", "prompts", "length")


@dataclass(frozen=True, eq=False)
class PlanResult:
    """The finished units of a plan.

    Args:
        plan: what was asked for.
        atlases: by unit, in the order of the plan; units that are not done are left out.
        report: what became of the others.
    """

    plan: Plan
    atlases: Mapping[Unit, HeadAtlas] = field(repr=False)
    report: PlanReport

    def counts(self, kind: str | None = None) -> pd.DataFrame:
        """Labelled heads per unit and kind: how many, the largest excess, the best heads."""
        rows = []
        for unit, atlas in self.atlases.items():
            for name in atlas.kinds if kind is None else [kind]:
                heads = atlas.heads(name)
                own = atlas.rows.loc[atlas.rows["kind"] == name]
                rows.append({
                    **_axes(unit), "kind": name,
                    "strong": int((own["grade"] == "strong").sum()),
                    "weak": int((own["grade"] == "weak").sum()),
                    "largest_excess": float(own["excess"].max()),
                    "heads": " ".join(map(str, heads[:4])),
                })  # fmt: skip
        return pd.DataFrame(rows)

    def labels(self) -> pd.DataFrame:
        """One row per unit and label: a head and a kind graded weak or strong."""
        rows = []
        for unit, atlas in self.atlases.items():
            for row in atlas.rows.to_dict("records"):
                if row["grade"] in ("weak", "strong"):
                    place = f"{row['site']}." if row["site"] else ""
                    rows.append({
                        **_axes(unit), "address": f"{place}L{row['layer']}H{row['head']}",
                        **{name: row[name] for name in ("kind", "grade", "excess", "evidence")},
                    })  # fmt: skip
        columns = [*AXES, "address", "kind", "grade", "excess", "evidence"]
        return pd.DataFrame(rows, columns=columns)

    def kept(self, along: str) -> pd.DataFrame:
        """Which labels stay as one axis of the plan moves and the others stand still.

        Args:
            along: model, checkpoint, prompts or length. Heads are compared by their address, which
                along `model` says something only of models of one shape and origin.

        Returns:
            One row per place on the other axes, head and kind: `first`, the first value along the
            axis with the label, `units` with the label, `of` so many finished, and the `share`.

        Raises:
            InputError: no such axis.
        """
        if along not in AXES:
            raise InputError(f"along is one of {', '.join(AXES)}; got {along!r}.")
        others = [axis for axis in AXES if axis != along]
        of = Counter(tuple(_axes(unit)[axis] for axis in others) for unit in self.atlases)
        values: dict[tuple[Any, ...], list[Any]] = {}
        for row in self.labels().to_dict("records"):
            key = tuple(row[name] for name in (*others, "address", "kind"))
            values.setdefault(key, []).append(row[along])
        rows = [
            (*key, found[0], len(found), of[key[:-2]], len(found) / of[key[:-2]])
            for key, found in values.items()
        ]
        columns = [*others, "address", "kind", "first", "units", "of", "share"]
        return pd.DataFrame(rows, columns=columns)


def load_plan(folder: str | Path) -> PlanResult:
    """Read what `run_plan` has finished in a folder; it may still be running.

    Raises:
        InputError: the folder is not one of a plan, or an atlas cannot be read.

    Example:
        >>> load_plan("nowhere")
        Traceback (most recent call last):
        ...
        headatlas.interp.errors.InputError: no file 'nowhere/plan.toml'; give the path of a ...
    """
    path = Path(folder)
    plan = parse_plan(read_text(path / PLAN), path.absolute(), str(path / PLAN))
    folders = {unit: UnitFolder(path / UNITS / unit.folder) for unit in plan.units}
    done = {
        unit: HeadAtlas.load(own.atlas)
        for unit, own in folders.items()
        if own.state(plan.sha256).get("state") == "done"
    }
    return PlanResult(plan, done, report_of(plan, folders, {}, ()))


def _axes(unit: Unit) -> dict[str, str | int]:
    return {
        "model": unit.model, "checkpoint": unit.checkpoint, "prompts": unit.prompts.name,
        "length": unit.length,
    }  # fmt: skip
