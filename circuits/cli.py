"""The command line, `headatlas`: what its commands have in common, and which there are.

Exit status: 0, or 2 with one line on standard error where the user can mend it, or 1 where `doctor`
finds a check that fails or a unit of `sweep` does. Tables and summaries go to standard output,
progress to standard error.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from headatlas import __version__

from ..interp.errors import InputError
from .ablate.command import ablate
from .causal.command import trace_induction
from .classify_command import classify
from .cost.command import cost
from .doctor_command import doctor
from .explore_command import explore
from .plans.command import sweep
from .plot_command import plot
from .prune.command import prune
from .weights.command import compose

app = typer.Typer(
    name="headatlas",
    help="An atlas of attention heads: what each head of a transformer does, with evidence.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; a user error ends in one line and status 2."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode loses signs, not results
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        # without arguments the help is what is meant
        status = app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0
        if status == _INTERRUPTED:  # typer takes the interrupt for itself
            raise KeyboardInterrupt
        raise SystemExit(status)
    except InputError as error:
        _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print(f"headatlas: interrupted; {_kept(sys.argv[1:])}", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None
    except BrokenPipeError:  # the reader of our output has gone; files are written by then
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  (closed with the process)
        raise SystemExit(0) from None
    except Exception as error:
        wrong_option = getattr(error, "format_message", None)  # what typer's usage errors have
        if wrong_option is None:
            raise
        _refuse(wrong_option())


def _kept(arguments: Sequence[str]) -> str:
    """What is left of an interrupted command."""
    words = {word.split("=")[0] for word in arguments}
    again = ""
    if "--checkpoint" in words:
        again = " The same command goes on from the checkpoint."
    elif arguments[:1] in (["prune"], ["sweep"]) and words & {"-o", "--out"}:
        again = " The same command goes on in its folder."
    return f"finished files are kept.{again}"


def _refuse(message: str) -> NoReturn:
    """End with status 2 and one line, whatever a file name holds."""
    print(f"headatlas: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2) from None


def _version(wanted: bool) -> None:
    if wanted:
        print(f"headatlas {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for _command in (
    classify, plot, explore, ablate, prune, compose, trace_induction, sweep, cost, doctor,
):  # fmt: skip
    app.command()(_command)
