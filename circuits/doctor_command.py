"""The command `headatlas doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import ModelArgument, load_model, progress_bars


def doctor(
    model: ModelArgument = "tiny",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the report as .json too.")
    ] = None,
) -> None:
    """Check that a model's attention is seen as it is: a line per check, status 1 if one fails."""
    from ..interp.doctor.check import check
    from ..interp.doctor.report import check_report_suffix
    from ..interp.files import check_target

    if out is not None:  # before the model is loaded
        check_report_suffix(out)
        check_target(out)
    loaded, tokenizer = load_model(model)
    with progress_bars() as progress:
        report = check(loaded, tokenizer, progress=progress)
    if out is not None:  # before anything is printed: a closed pipe must not cost the result
        report.save(out)
    print(report)
    if out is not None:
        print(f"wrote {out}")
    for finding in report.failed:
        print(f"headatlas: {' '.join(str(finding).split())}", file=sys.stderr)
    if not report.ok:
        raise typer.Exit(1)
