"""The command `headatlas sweep`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...interp.errors import InputError
from ..console import progress_bars

if TYPE_CHECKING:
    from .forecast import Forecast


def sweep(
    plan: Annotated[Path, typer.Argument(help="A TOML file: models, prompts, lengths, kinds.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="A folder; the same command goes on in it."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it will take: a batch of each is measured.")
    ] = False,
) -> None:
    """Label the heads of many models and checkpoints; survives being killed at any moment."""
    if dry_run:
        from .forecast import forecast_plan

        with progress_bars() as progress:
            forecast = forecast_plan(plan, progress=progress)
        _show(forecast)
        _tell(forecast.failed)
        return
    if out is None:
        raise InputError("give a folder for the results, -o DIR, or --dry-run.")
    from .result import load_plan
    from .run import run_plan

    with progress_bars() as progress:
        report = run_plan(plan, out, progress=progress)
    print(report)
    if report.elsewhere:
        print("nothing is left for this process; the other goes on.")
    elif report.done:
        print(load_plan(out).counts().to_string(index=False, float_format="{:.3f}".format))
    _tell(report.failed)


def _tell(failed: Mapping[str, str]) -> None:
    """Name what failed on standard error, and end with status 1 if anything did."""
    for name, why in failed.items():
        print(f"headatlas: {' '.join(f'{name}: {why}'.split())}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _show(forecast: Forecast) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    names = ("model", "prompts", "length", "units", "passes", "minutes", "disk MiB", "removals")
    for name in names:
        table.add_column(name, justify="left" if name in names[:2] else "right")
    for one in forecast.costs:
        table.add_row(
            escape(one.model), escape(one.prompts), str(one.length), str(one.units),
            str(one.passes), f"{one.seconds / 60:.2f}", f"{one.disk_bytes / 2**20:.1f}",
            str(one.removals or "–"),
        )  # fmt: skip
    table.add_section()
    table.add_row(
        "all", "", "", str(forecast.units), str(forecast.passes), f"{forecast.seconds / 60:.2f}",
        f"{forecast.disk_bytes / 2**20:.1f}", "",
    )  # fmt: skip
    console = Console(file=sys.stdout)
    console.print(table)
    console.print(f"peak memory {forecast.memory_bytes / 2**20:.0f} MiB, as measured here")
