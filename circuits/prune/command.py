"""The command `headatlas prune`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ...interp.errors import InputError
from ..console import (
    BosOption,
    ModelArgument,
    NamesOption,
    SeedOption,
    load_model,
)

Progress = Callable[[str, int, int], None]
Watch = Callable[[Mapping[str, Any]], None]


def prune(
    model: ModelArgument = "tiny",
    method: Annotated[
        str,
        typer.Option(
            help="l0, michel, taylor, magnitude, greedy, functional, random, layer_random; several "
            "are compared: l0,michel,random."
        ),
    ] = "l0",
    target: Annotated[
        NamesOption, typer.Option(help="Shares of heads to remove: 0.5, or 0.1,0.3,0.5.")
    ] = None,
    lam: Annotated[
        NamesOption,
        typer.Option(help="Prices of a head in nats/token for l0, instead of --target."),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(help="A text to learn from; written by the model itself if unsaid."),
    ] = None,
    evaluate: Annotated[
        Path | None,
        typer.Option("--eval", help="A text to measure on; some of --train if unsaid."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A folder; an interrupted run goes on in it.")
    ] = None,
    per: Annotated[str, typer.Option(help="Gates per head, group, or both.")] = "head",
    finetune: Annotated[
        str, typer.Option(help="Train weights along with l0's gates: none, full or lora.")
    ] = "none",
    steps: Annotated[int, typer.Option(min=1, help="Updates of gates, per target.")] = 500,
    recover: Annotated[
        int, typer.Option(min=0, help="Further updates of the weights after the cut.")
    ] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Documents per update.")] = 8,
    draws: Annotated[int, typer.Option(min=1, help="Draws of random methods.")] = 10,
    train_documents: Annotated[
        int, typer.Option(min=1, help="Documents to learn from, at most.")
    ] = 256,
    eval_documents: Annotated[
        int, typer.Option(min=1, help="Documents to measure on; under 16 give no interval.")
    ] = 64,
    seq_len: Annotated[
        int | None, typer.Option(min=2, help="Tokens per document; 128 if unsaid.")
    ] = None,
    bos: BosOption = None,
    atlas: Annotated[
        Path | None, typer.Option(help="An atlas of the model: which kinds of heads survive.")
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Choose heads to remove, cut them out, and measure the loss on held-out text."""
    # everything that can be refused is refused before the model is loaded
    methods = _names([method])
    shares = _numbers("target", target, "a share of the heads, above 0 and below 1", _is_share)
    prices = _numbers("lam", lam, "a price in nats per token, at least 0", _is_price)
    _check(methods, shares, prices, train, evaluate, out)
    config = _training(shares, prices, per, finetune, steps, recover, batch, seed)
    labels = _atlas(atlas, methods)
    loaded, tokenizer = load_model(model)

    from .prune import prune_heads

    with _live() as (report, watch):
        found = prune_heads(
            loaded, tokenizer, train, eval_texts=evaluate, method=methods, sparsity=shares or None,
            lam=prices or None, config=config, atlas=labels, draws=draws,
            train_documents=train_documents, eval_documents=eval_documents, seq_len=seq_len,
            prepend_bos=bos, seed=seed, folder=out, progress=report, watch=watch,
        )  # fmt: skip
    _show(found, model)
    if out is not None:
        print(f"wrote {out}: result.json, tables, and the pruned model in {out / 'model'}")


def _check(
    methods: tuple[str, ...],
    shares: tuple[float, ...],
    prices: tuple[float, ...],
    train: Path | None,
    evaluate: Path | None,
    out: Path | None,
) -> None:
    """Refuse what cannot be done, whatever the model."""
    from ...interp.files import read_text
    from .asked import check_values
    from .folder import check_folder
    from .methods import check_methods

    check_values(shares or None, prices or None, check_methods(methods))
    for path in (train, evaluate):
        if path is not None:
            read_text(path)
    if train is not None and evaluate is not None and train.resolve() == evaluate.resolve():
        raise InputError(
            f"{str(train)!r} is both what is learnt from and what is measured on. Give another "
            "text to one of them, or leave --eval out: then some is held out."
        )
    if out is not None:
        check_folder(out)


def _training(
    shares: tuple[float, ...],
    prices: tuple[float, ...],
    per: str,
    finetune: str,
    steps: int,
    recover: int,
    batch: int,
    seed: int,
) -> Any:
    from .settings import GateTraining

    tuned = None if finetune == "none" else finetune
    asked = {"per": per, "finetune": tuned, "steps": steps, "recover": recover}
    if prices:
        return GateTraining(lam=prices[0], batch=batch, seed=seed, **asked)
    share = (shares or (0.5,))[0]
    return GateTraining(target=share, batch=batch, seed=seed, **asked)


def _atlas(path: Path | None, methods: tuple[str, ...]) -> Any:
    if path is None:
        if "functional" in methods:
            raise InputError(
                "functional takes what heads do from an atlas: headatlas classify MODEL -o "
                "atlas.json, then --atlas atlas.json."
            )
        return None
    from ..atlas import HeadAtlas

    return HeadAtlas.load(path)


def _names(texts: list[str]) -> tuple[str, ...]:
    """Names between commas, each once."""
    names = [name.strip() for text in texts for name in text.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


def _numbers(
    name: str, texts: list[str] | None, what: str, fits: Callable[[float], bool]
) -> tuple[float, ...]:
    """Numbers between commas, rising, each once."""
    found = set()
    for text in _names(texts or []):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise InputError(f"--{name} is {what}; got {text[:40]!r}.")
        found.add(value)
    return tuple(sorted(found))


def _is_share(value: float) -> bool:
    return 0 < value < 1


def _is_price(value: float) -> bool:
    return 0 <= value < math.inf


@contextmanager
def _live() -> Iterator[tuple[Progress, Watch]]:
    """A bar per stage, and beside that of the gates how they are doing, on a terminal alone."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    console, note = Console(stderr=True), [""]
    hidden = not console.is_terminal
    with Bars(*columns, console=console, transient=True, disable=hidden) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total, note="")
            said = note[0] if stage == "train gates" else ""
            bars.update(tasks[stage], completed=done, total=total, note=said)

        def watch(row: Mapping[str, Any]) -> None:
            note[0] = _note(row)

        yield report, watch


def _note(row: Mapping[str, Any]) -> str:
    return (
        f"{row['asked']:g}: loss {row['loss_nats']:.3f}, expected L0 {row['expected_open']:.1f} "
        f"({100 * row['open_probability']:.0f} % open), open now {row['open_heads']}"
    )


def _show(found: Any, name: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(escape(f"{name}: {found!r}"), highlight=False, soft_wrap=True)
    if not found.settings.get("atlas"):
        return
    rows = found.survivors(method=found.methods[0]).to_dict("records")
    counts = list(dict.fromkeys(row["n_removed"] for row in rows))
    title = f"Heads of each kind that {found.methods[0]} keeps, by heads removed"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("kind", no_wrap=True)
    for label in ("before", *(f"−{count:g}" for count in counts)):
        table.add_column(label, justify="right", no_wrap=True)
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        left = [f"{row['n_surviving']:g}" for row in own]
        table.add_row(kind, str(own[0]["n_labelled"]), *left)
    console.print()
    console.print(table)
