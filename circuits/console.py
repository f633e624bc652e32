"""What the commands of the command line share: arguments, loading, bars of progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..interp.errors import InputError

ModelArgument = Annotated[
    str,
    typer.Argument(help="tiny, smollm2-135m, a .gguf file, a local directory, or a hub id."),
]
TextOption = Annotated[Path | None, typer.Option("--text", help="A UTF-8 text file.")]
BosOption = Annotated[
    bool | None,
    typer.Option("--bos/--no-bos", help="Start with a BOS; the tokenizer's habit if unsaid."),
]
NamesOption = list[str] | None  # may be repeated; each holds names separated by commas
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]


def names_between_commas(texts: NamesOption) -> tuple[str, ...]:
    """The names of an option that may be repeated, each once.

    Example:
        >>> names_between_commas(["L1H0, L2H3,", "L1H0"])
        ('L1H0', 'L2H3')
    """
    names = [name.strip() for text in texts or () for name in text.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


def load_model(source: str) -> tuple[Any, Any]:
    """The model and its tokenizer, pruned or whole, with a word on the terminal while it loads."""
    console = Console(stderr=True)
    with console.status(f"loading {escape(source)}"):
        from ..interp.load import load
        from ..interp.pretrained import PrunedModelError

        try:
            return load(source)
        except PrunedModelError as pruned:
            from .prune.remove.files import load_pruned

            return load_pruned(pruned.folder)


def check_reads_text(name: str, model: Any, tokenizer: Any) -> None:
    """Refuse a model that cannot be shown a text.

    Raises:
        InputError: it has no tokenizer, or reads images or sounds.
    """
    if model.main_input_name != "input_ids":
        raise InputError(
            f"{name} reads {model.main_input_name}, and the command shows texts. In Python: "
            "ha.explore(model, None, images), ha.capture(model, None, images)."
        )
    if tokenizer is None:
        raise InputError(f"{name} has no tokenizer, so a text cannot be shown to it.")


@contextmanager
def progress_bars() -> Iterator[Any]:
    """A function of (stage, done, total) that draws a bar per stage, on a terminal alone."""
    columns = (
        TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    hidden = not console.is_terminal  # else it leaves a blank line in a pipe
    with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
