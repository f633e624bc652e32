"""The command line: `headatlas classify`, `headatlas plot` and `headatlas cost`.

Exit status: 0, or 2 with one line on standard error where the user can mend it. Tables and
summaries go to standard output, progress to standard error.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headatlas import __version__

from ..interp.errors import InputError
from .cost.command import cost

app = typer.Typer(
    name="headatlas",
    help="An atlas of attention heads: what each head of a transformer does, with evidence.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

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


def main() -> None:
    """Run the command line; a user error ends in one line and status 2."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode loses signs, not results
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        # without arguments the help is what is meant
        raise SystemExit(app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0)
    except InputError as error:
        _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("headatlas: interrupted; no file was changed.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of our output has gone; files are written by then
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  (closed with the process)
        raise SystemExit(0) from None
    except Exception as error:
        wrong_option = getattr(error, "format_message", None)  # what typer's usage errors have
        if wrong_option is None:
            raise
        _refuse(wrong_option())


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


@app.command()
def classify(
    model: ModelArgument = "tiny",
    kinds: Annotated[
        NamesOption,
        typer.Option(help="Kinds to score, such as induction,offset; all if unsaid."),
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(help="Tokens per document (16 or more); 256 if unsaid."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Documents per prompt set, at least 16.")] = 64,
    text: TextOption = None,
    bos: BosOption = None,
    null_draws: Annotated[
        int,
        typer.Option(
            min=0, help="Permuted labels to score on each prompt set, beside the true ones."
        ),
    ] = 0,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write .json, .csv or .parquet.")
    ] = None,
) -> None:
    """Say what each attention head does, with the evidence for it."""
    from ..interp.files import check_target
    from ..interp.tokens import read_text
    from .atlas_check import printable
    from .atlas_file import check_suffix
    from .battery import Battery
    from .kinds import choose_kinds

    # everything that can be refused is refused before the model is loaded
    names = None if kinds is None else ",".join(kinds)
    if out is not None:
        check_suffix(out)
        check_target(out)
    battery = Battery(
        prompts, seq_len, None if text is None else read_text(text), bos, null_draws, seed
    )
    battery.check(choose_kinds(names))
    loaded, tokenizer = _load(model)

    from .classify import classify as run
    from .show import show

    with _progress() as report:
        atlas = run(loaded, tokenizer, kinds=names, progress=report, **vars(battery))
    atlas.model["name"] = printable(model)
    if out is not None:  # before anything is printed: a closed pipe must not cost the result
        atlas.save(out)
    show(atlas)
    if out is not None:
        print(
            f"wrote {out}: {len(atlas.rows)} rows, {atlas.n_heads} heads × {len(atlas.kinds)} kinds"
        )


app.command()(cost)


@app.command()
def plot(
    model: ModelArgument = "tiny",
    heads: Annotated[
        NamesOption,
        typer.Option(help="Heads to show, such as L18H6,L17H3; L0H0 if unsaid."),
    ] = None,
    text: TextOption = None,
    bos: BosOption = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Write .html (or plotly's .json).")
    ] = Path("pattern.html"),
) -> None:
    """Draw the attention patterns of some heads on a text, as an offline web page."""
    from ..interp.capture import capture
    from ..interp.files import check_target
    from ..interp.grammar import natural_text
    from ..interp.plots import check_figure_suffix, plot_pattern, write_figure
    from ..interp.tokens import read_text

    wanted = _heads(["L0H0"] if heads is None else heads)
    check_figure_suffix(out)
    check_target(out)
    running_text = natural_text(60, seed=0) if text is None else read_text(text)
    loaded, tokenizer = _load(model)
    if tokenizer is None:
        raise InputError(f"{model} has no tokenizer, so a text cannot be shown to it.")
    _check_length(loaded, tokenizer, running_text, bos)
    cache = capture(
        loaded, tokenizer, running_text, names_filter="pattern", heads=wanted, prepend_bos=bos
    )
    patterns = [_pattern(cache, head) for head in wanted]

    import torch

    figure = plot_pattern(
        torch.stack(patterns), tokens=cache.tokens[0], heads=[str(head) for head in wanted],
        title=f"{model}: {', '.join(str(head) for head in wanted)}",
    )  # fmt: skip
    write_figure(figure, out)
    print(f"wrote {out}: {len(wanted)} pattern(s) of {patterns[0].shape[-1]} tokens")


def _heads(texts: list[str]) -> list[Any]:
    """The heads named, each once; empty entries, as after a last comma, name none."""
    from ..interp.heads import HeadId

    names = [name.strip() for text in texts for name in text.split(",")]
    heads = list(dict.fromkeys(HeadId.parse(name) for name in names if name))
    if not heads:
        raise InputError("--heads names no head; write L18H6,L17H3, say.")
    return heads


def _pattern(cache: Any, head: Any) -> Any:
    """One head's pattern out of a cache narrowed to some heads."""
    layer = [one for one in cache.heads if (one.site, one.layer) == (head.site, head.layer)]
    return cache["pattern", head.layer, head.site][0, layer.index(head)]


def _check_length(model: Any, tokenizer: Any, text: str, bos: bool | None) -> None:
    from ..interp.tokens import context_length, fits

    context = context_length(model)
    if context is not None and not fits(tokenizer, text, seq_len=context, prepend_bos=bos):
        raise InputError(
            f"the text has more tokens than the model's context of {context}; pass a shorter text."
        )


def _load(source: str) -> tuple[Any, Any]:
    console = Console(stderr=True)
    with console.status(f"loading {escape(source)}"):
        from ..interp.load import load

        return load(source)


@contextmanager
def _progress() -> Iterator[Any]:
    columns = (
        TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("prompts"), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    hidden = not console.is_terminal  # else it leaves a blank line in a pipe
    with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield report
