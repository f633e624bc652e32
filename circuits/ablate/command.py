"""The command `headatlas ablate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...interp.errors import InputError
from ...interp.plain_text import counted
from ..console import (
    BosOption,
    ModelArgument,
    NamesOption,
    SeedOption,
    TextOption,
    load_model,
    names_between_commas,
    progress_bars,
)


def ablate(
    model: ModelArgument = "tiny",
    heads: Annotated[
        NamesOption,
        typer.Option(help="Heads to remove together, such as L18H6,L17H3 (L18KV2: a group)."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Remove every head, one at a time.")] = False,
    text: TextOption = None,
    method: Annotated[
        str, typer.Option(help="mean, zero or resample; with --all also several: mean,zero.")
    ] = "mean",
    prompts: Annotated[
        int,
        typer.Option(
            min=1, help="Documents at most; under 16 give no interval. Second copies take 16."
        ),
    ] = 32,
    seq_len: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens per document; 64 if unsaid. Second copies take 16."),
    ] = None,
    bos: BosOption = None,
    seed: SeedOption = 0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A .safetensors file that an interrupted --all goes on from."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Heads to print; files hold all.")] = 20,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="With --all: write heat maps, .html, .json, or (with a browser) .png, .svg, .pdf."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write .json, .csv or .parquet.")
    ] = None,
) -> None:
    """Remove heads, and measure what the model's predictions lose: loss, perplexity, KL."""
    # everything that can be refused is refused before the model is loaded
    named, methods = _checked(heads, every, method, checkpoint, figure, out)
    if text is not None:
        from ...interp.tokens import read_text

        read_text(text)
    loaded, tokenizer = load_model(model)

    from .ablate import ablate_heads, ablation_sweep

    asked = {"prompts": prompts, "seq_len": seq_len, "prepend_bos": bos, "seed": seed}
    maps = ""
    with progress_bars() as report:
        if named:
            found = ablate_heads(
                loaded, tokenizer, named, text, method=methods[0], progress=report, **asked
            )
        else:
            found = ablation_sweep(
                loaded, tokenizer, text, methods=methods, checkpoint=checkpoint, progress=report,
                **asked,
            )  # fmt: skip
    if out is not None:  # before anything is printed: a closed pipe must not cost the result
        found.save(out)
    if figure is not None:
        from ...interp.plots import write_figure

        drawn = found.plot()  # pyright: ignore[reportAttributeAccessIssue]
        write_figure(drawn, figure)
        maps = counted(len(list(drawn.select_traces())), "heat map")
    _show(found, model, methods, top)
    for path, what in ((out, counted(len(found.rows), "row")), (figure, maps)):
        if path is not None:
            print(f"wrote {path}: {what}")


def _checked(
    heads: list[str] | None,
    every: bool,
    method: str,
    checkpoint: Path | None,
    figure: Path | None,
    out: Path | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The heads and methods named, after all arguments were found to make sense."""
    from ...interp.files import check_target
    from ...interp.heads import parse_head
    from ...interp.plots import check_figure_suffix
    from ..causal.stand_in import check_ablations
    from ..table_file import check_suffix

    named = names_between_commas(heads)
    for name in named:
        parse_head(name)
    if bool(named) == every:
        raise InputError("say which heads to remove: --heads L18H6,L17H3, or --all for each alone.")
    methods = check_ablations(names_between_commas([method]))
    if not every and (checkpoint is not None or figure is not None or len(methods) > 1):
        raise InputError("a checkpoint, a figure, and several methods belong to --all.")
    if checkpoint is not None:
        from .ablate import check_checkpoint

        check_checkpoint(checkpoint)
    if out is not None:
        check_suffix(out)
        check_target(out)
    if figure is not None:
        check_figure_suffix(figure)
        check_target(figure)
    return named, methods


def _show(found: Any, name: str, methods: tuple[str, ...], top: int) -> None:
    """What is said of the result, and of a sweep its heads by method."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(escape(f"{name}: {found!r}"), highlight=False, soft_wrap=True)
    if not hasattr(found, "table"):
        return
    for method in methods:
        rows = found.table(method=method, top=top)
        table = Table(
            title=f"Without each head, {method} ablation: text, and second copies of random tokens",
            title_justify="left", box=None, padding=(0, 1, 0, 0),
        )  # fmt: skip
        for column in ("head", *_COLUMNS):
            justify = "left" if column == "head" else "right"
            table.add_column(column, justify=justify, no_wrap=True)
        for row in rows.to_dict("records"):
            table.add_row(row["head"], *(_cell(row, own) for own in _COLUMNS.values()))
        console.print()
        console.print(table)


_COLUMNS = {
    "Δ loss": ("delta_loss_nats", "delta_low", "delta_high"),
    "ppl ×": ("perplexity_ratio",),
    "KL": ("kl_nats",),
    "2nd copy Δ loss": tuple(f"second_copy_delta_{end}" for end in ("loss_nats", "low", "high")),
    "its KL": ("second_copy_kl_nats",),
}


def _cell(row: dict[Any, Any], names: tuple[str, ...]) -> str:
    value, *ends = (row[name] for name in names)
    if not ends:
        return f"{value:.3f}"
    interval = "" if ends[0] != ends[0] else f" [{ends[0]:+.3f},{ends[1]:+.3f}]"
    return f"{value:+.3f}{interval}"
