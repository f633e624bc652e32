"""A run as a table and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .baselines import CUDNN, DETECTORS, EAGER, FLASH, FLEX
from .floor import floor_ms, work
from .measure import Measurement
from .problem import Ask
from .promises import verdicts
from .run import Report

SCHEMA_VERSION = 1
RATIOS = {"plain": "plain", FLASH: "FA2", CUDNN: "cuDNN", FLEX: "flex", EAGER: "eager",
          DETECTORS: "detectors"}  # fmt: skip
"""What every time is divided by, and the heading of the column."""
_WIDE = 150  # where there is no terminal to fit


def to_json(report: Report) -> str:
    """Every figure of a run, with what it ran on, as a JSON text.

    Args:
        report: Of a run, also an unfinished one.

    Example:
        >>> json.loads(to_json(Report({}, None, seed=0, cases=[])))["measurements"]
        []
    """
    ceilings = report.ceilings
    told = {
        "schema_version": SCHEMA_VERSION,
        "machine": report.machine,
        "ceilings": None if ceilings is None else asdict(ceilings),
        "seed": report.seed,
        "complete": report.complete,
        "seconds": round(report.seconds, 1),
        "failures": report.failures,
        "promises": [asdict(verdict) for verdict in verdicts(report.measurements)],
        "measurements": [_row(report, m) for m in report.measurements],
        "checks": [_check(check) for check in report.checks],
    }
    return json.dumps(told, indent=1, allow_nan=False) + "\n"


def _check(check: Any) -> dict[str, Any]:
    errors = {
        name: {"error": _finite(error), "limit": _finite(limit)}
        for name, (error, limit) in check.errors.items()
    }
    return {
        "case": check.case, "setting": check.setting, "passed": check.passed,
        "skipped": check.skipped, "errors": errors, "note": check.note,
    }  # fmt: skip


def _finite(x: float) -> float | None:
    """JSON has no infinity: None stands for an error without measure."""
    return x if abs(x) < float("inf") else None


def _row(report: Report, m: Measurement) -> dict[str, Any]:
    floor = _floor(report, m)
    over = None if floor is None or m.ms is None else m.ms / floor
    setting = {**vars(m.setting), "dtype": str(m.setting.dtype).removeprefix("torch.")}
    return {
        "case": m.case, **setting, "status": m.status, "ms": m.ms, "host_ms": m.host_ms,
        "peak_bytes": m.peak_bytes, "floor_ms": floor, "over_floor": over,
        "over": _ratios(report, m), "note": m.note,
    }  # fmt: skip


def _floor(report: Report, m: Measurement) -> float | None:
    if report.ceilings is None:
        return None
    asked: Mapping[str, Ask] = {case.name: case.ask for case in report.cases}
    return floor_ms(work(m.setting, asked[m.case]), report.ceilings)


def _ratios(report: Report, m: Measurement) -> dict[str, float | None]:
    """Its time over that of each case of `RATIOS` at the same sizes."""
    there = {x.case: x.ms for x in report.measurements if x.setting == m.setting}
    times = {name: there.get(name) for name in RATIOS}
    return {name: m.ms / t if t and m.ms is not None else None for name, t in times.items()}


def show(report: Report) -> None:
    """Print what it ran on, a row per case and setting, and the verdicts.

    Args:
        report: Of a run.
    """
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    told = {name: value for name, value in report.machine.items() if value is not None}
    console.print(escape(", ".join(f"{name} {value}" for name, value in told.items())))
    if report.ceilings is not None:
        console.print(
            f"ceilings: copy {report.ceilings.copy_bytes_per_s / 1e12:.2f} TB/s, bf16 products "
            f"{report.ceilings.matmul_flops_per_s / 1e12:.0f} TFLOP/s"
        )
    console.print(_table(report))
    for verdict in verdicts(report.measurements):
        figure = ""
        if verdict.worst is not None:
            figure = f" (worst of {verdict.n_figures}: {verdict.worst:.3g}, {verdict.where})"
        console.print(escape(f"{verdict.verdict}: {verdict.promise}{figure}"))


def _table(report: Report) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="underline")
    for name in ("d", "N", "case", "ms", "host ms", "× floor", "MB"):
        table.add_column(name, justify="left" if name == "case" else "right", no_wrap=True)
    for heading in RATIOS.values():
        table.add_column(f"/ {heading}", justify="right", no_wrap=True)
    table.add_column("")
    for m in report.measurements:
        row = _row(report, m)
        numbers = [m.ms, m.host_ms, row["over_floor"], None]
        cells = [_number(x) for x in numbers]
        cells[3] = "–" if m.peak_bytes is None else f"{m.peak_bytes / 1e6:.1f}"
        note = "" if m.status == "timed" else f"{m.status}: {m.note}" if m.note else m.status
        table.add_row(
            str(m.setting.d), str(m.setting.n), escape(m.case), *cells,
            *(_number(x) for x in row["over"].values()), escape(note),
        )  # fmt: skip
    return table


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:.3g}"
