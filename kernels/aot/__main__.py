"""`python -m headatlas.kernels.aot`: compile every shipped kernel for GPUs and judge it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..command import check_folder, run_command, write_whole
from .compile import CannotCompileError
from .gate import SHIPPED, TARGETS

_PROGRAM = "python -m headatlas.kernels.aot"
_STEPS = 10  # reports on the way where no bar can be drawn

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Arch = Annotated[
    list[int] | None,
    typer.Option(help=f"Compute capability, {', '.join(map(str, TARGETS))}; may be repeated."),
]
More = Annotated[
    list[int] | None,
    typer.Argument(metavar="[ARCH]...", help="Further ones: --arch 80 90 is --arch 80 --arch 90."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Only kernels whose name holds these words, such as 'bf16 128'."),
]
Representative = Annotated[
    bool, typer.Option("--representative", help="Only the part that stands for the others.")
]
List = Annotated[bool, typer.Option("--list", help="Print the kernels' names and compile none.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Worker processes; a CPU each if unsaid.")]
Cache = Annotated[
    Path | None,
    typer.Option(
        help="Folder that keeps compiled kernels for the next run; none are kept if unsaid."
    ),
]
Document = Annotated[
    Path | None,
    typer.Option(
        exists=True, dir_okay=False, writable=True,
        help="Document to put the table into, between <!-- figures: aot --> and <!-- end -->.",
    ),
]  # fmt: skip
Json = Annotated[
    Path | None,
    typer.Option(dir_okay=False, writable=True, help="File to write every figure to."),
]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command: status 0, 1 where a kernel failed, 2 with one line on a user's error.

    Args:
        arguments: In place of those of the process.
    """
    run_command(app, _PROGRAM, arguments, refused=CannotCompileError)


@app.command()
def gate(
    more: More = None,
    arch: Arch = None,
    only: Only = None,
    representative: Representative = False,
    list_names: List = False,
    jobs: Jobs = None,
    cache: Cache = None,
    markdown: Document = None,
    json: Json = None,
) -> int:
    """Compile every shipped kernel for GPUs, without one, and judge its machine code.

    A kernel fails if it does not compile, lacks the architecture's matrix instructions, asks for
    more shared memory or registers than there are, or spills registers in a loop that multiplies.
    """
    cases = _cases(only or (), representative)
    if list_names:
        print("\n".join(case.name for case in cases))
        return 0
    archs = _archs([*(arch or ()), *(more or ())])
    _check_targets(markdown, json)
    return _run(cases, archs, jobs or _cpus(), cache, markdown, json)


def _archs(asked: Sequence[int]) -> list[int]:
    unknown = sorted(set(asked) - set(TARGETS))
    if unknown:
        raise typer.BadParameter(
            f"no architecture {', '.join(map(str, unknown))}; choose from "
            f"{', '.join(map(str, TARGETS))}.",
            param_hint="--arch",
        )
    return list(dict.fromkeys(asked)) or list(SHIPPED)


def _cases(only: Sequence[str], representative: bool) -> Sequence[Any]:
    from .cases import select

    try:
        return select(only, representative=representative)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--only") from error


def _check_targets(document: Path | None, json_file: Path | None) -> None:
    """Refuse what cannot be written before minutes are spent on it."""
    from .table import with_table

    if document is not None:
        try:
            with_table(document.read_text(encoding="utf-8"), "")
        except ValueError as error:  # not UTF-8, or without its markers
            raise typer.BadParameter(str(error), param_hint="--markdown") from error
    check_folder(json_file, "--json")


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(
    cases: Sequence[Any], archs: Sequence[int], jobs: int, cache: Path | None,
    document: Path | None, json_file: Path | None,
) -> int:  # fmt: skip
    from . import table
    from .run import check_cases

    with ExitStack() as stack:
        folder = str(cache) if cache else stack.enter_context(tempfile.TemporaryDirectory())
        report = stack.enter_context(_progress())
        results = check_cases(cases, archs, jobs=jobs, cache=folder, progress=report)
    if json_file is not None:
        write_whole(json_file, table.to_json(results))
    if document is not None:
        text = document.read_text(encoding="utf-8")
        write_whole(document, table.with_table(text, table.markdown(results)))
    table.show(results)
    failed = [result for result in results if result.failed]
    for result in failed:
        print(f"FAILED sm_{result.arch} {result.case}: {'; '.join(result.failures)}")
    print(f"{len(results)} kernels, {len(failed) or 'none'} failed")
    return 1 if failed else 0


@contextmanager
def _progress() -> Iterator[Any]:
    """A function of (result, done, total): a bar on a terminal, else a line now and then."""
    columns = (
        TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task("compile", total=None)

        def report(result: Any, done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)
            if not console.is_terminal and done * _STEPS // total > (done - 1) * _STEPS // total:
                print(f"compiled {done} of {total}", file=sys.stderr, flush=True)

        yield report


if __name__ == "__main__":
    main()
