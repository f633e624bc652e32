"""`python -m headatlas.kernels.bench`: measure the fused kernels on a GPU."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ..command import check_folder, refuse, run_command, write_whole

_PROGRAM = "python -m headatlas.kernels.bench"
_BUDGET, _CASE_BUDGET = 540.0, 20.0  # seconds; the whole stays below ten minutes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Json = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False, writable=True,
        help="File to write every figure to, anew after each case.",
    ),
]  # fmt: skip
Only = Annotated[
    list[str] | None,
    typer.Option(help="Only cases whose name begins so, such as 'export'; may be repeated."),
]
Quick = Annotated[bool, typer.Option("--quick", help="One head width and length, short timings.")]
List = Annotated[bool, typer.Option("--list", help="Print the cases' names and measure none.")]
Total = Annotated[
    float, typer.Option("--budget", min=1, help="Seconds for everything; the rest is not run.")
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Of the random inputs; a new one each time if unsaid.")
]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command: status 0, 1 where a case failed, 2 with one line on a user's error.

    Args:
        arguments: In place of those of the process.
    """
    run_command(app, _PROGRAM, arguments)


@app.command()
def bench(
    json: Json = None,
    only: Only = None,
    quick: Quick = False,
    list_names: List = False,
    budget: Total = _BUDGET,
    seed: Seed = None,
) -> int:
    """Check every kernel against float64 on this GPU, then time those that pass.

    Beside each time stand the roofline's floor and what torch's own attention, FlexAttention and
    eager attention take for the same. A case that fails its check is not timed.
    """
    from .cases import select
    from .run import Schedule, all_cases

    cases = all_cases()
    try:
        cases = select(cases, only or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--only") from error
    if list_names:
        print("\n".join(case.name for case in cases))
        return 0
    check_folder(json, "--json")
    missing = why_not()
    if missing is not None:
        refuse(_PROGRAM, f"{missing}.")
    schedule = Schedule(cases)
    if quick:
        schedule = replace(schedule, widths=(128,), lengths=(2048,))
    return _run(schedule, json, budget, secrets.randbits(31) if seed is None else seed, quick)


def why_not() -> str | None:
    """Why nothing can be measured here, in a sentence without its full stop; None where it can."""
    import torch

    if not torch.cuda.is_available():
        return (
            "this benchmark measures NVIDIA GPUs, and torch "
            f"{torch.__version__} finds none. Kernels without a GPU are judged by "
            "`python -m headatlas.kernels.aot`"
        )
    if torch.version.hip:
        return "these kernels were never checked on AMD GPUs"
    try:
        from ..fused.backend import INTERPRETED
        from ..fused.configs import LEAST_ARCHITECTURE
    except ImportError as error:
        return f"Triton cannot be imported ({error})"
    if INTERPRETED:
        return "TRITON_INTERPRET is set: kernels would run as Python. Unset it"
    major, minor = torch.cuda.get_device_capability()
    if 10 * major + minor < LEAST_ARCHITECTURE:
        name = torch.cuda.get_device_name()
        return f"the kernels need compute capability 8.0; {name} has {major}.{minor}"
    return None


def _run(schedule, file: Path | None, seconds: float, seed: int, quick: bool) -> int:
    import torch

    from . import report as reports
    from .machine import cache_bytes, ceilings, machine
    from .measure import Budget, CudaStopwatch
    from .run import Report, run

    device = torch.device("cuda", torch.cuda.current_device())
    stopwatch = CudaStopwatch(repeat_ms=20 if quick else 100)
    budget = Budget(seconds, min(_CASE_BUDGET, seconds))
    report = Report(machine(), None, seed, schedule.cases)
    progress = _progress(report, file)
    report.ceilings = ceilings(stopwatch, device)
    progress(f"seed {seed}; ceilings measured")
    try:
        run(
            report, schedule, stopwatch=stopwatch, budget=budget, device=device,
            cache_bytes=cache_bytes(), progress=progress,
        )  # fmt: skip
    finally:
        if file is not None:
            write_whole(file, reports.to_json(report))
    reports.show(report)
    for failure in report.failures:
        print(f"FAILED {failure}")
    print(f"{len(report.measurements)} measurements, {len(report.failures) or 'none'} failed, "
          f"{report.seconds:.0f} s")  # fmt: skip
    return 1 if report.failures else 0


def _progress(report, file: Path | None) -> Callable[[str], None]:
    """Tell of every result and keep the file up to date: a run may be cut short."""
    from . import report as reports

    def told(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        if file is not None:
            write_whole(file, reports.to_json(report))

    return told


if __name__ == "__main__":
    main()
