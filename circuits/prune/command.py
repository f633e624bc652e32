"""The command `headatlas prune`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
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
    names_between_commas,
)
from .live import live

FINETUNE = ("none", "full", "lora")


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
    copies: Annotated[
        int,
        typer.Option(min=0, help="Documents of repeated random tokens to learn from as well."),
    ] = 0,
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
    methods = names_between_commas([method])
    shares = _numbers("target", target, "a share of the heads, above 0 and below 1", _is_share)
    prices = _numbers("lam", lam, "a price in nats per token, at least 0", _is_price)
    _check(methods, shares, prices, train, evaluate, out)
    _check_training(finetune, recover, copies)
    config = _training(shares, prices, per, finetune, steps, recover, batch, seed)
    labels = _atlas(atlas, methods)
    loaded, tokenizer = load_model(model)

    from .prune import prune_heads
    from .prune_file import UNFINISHED

    if out is not None and (out / UNFINISHED).is_dir() and any((out / UNFINISHED).iterdir()):
        print(f"going on from {out / UNFINISHED}", file=sys.stderr)
    read: dict[str, Any] = {"seq_len": seq_len, "prepend_bos": bos}
    text: Any = train
    if copies:
        text = _with_copies(loaded, tokenizer, train, train_documents, copies, seed, read)
    with live() as (report, watch):
        found = prune_heads(
            loaded, tokenizer, text, eval_texts=evaluate, method=methods, sparsity=shares or None,
            lam=prices or None, config=config, atlas=labels, draws=draws,
            train_documents=train_documents + copies, eval_documents=eval_documents, seed=seed,
            folder=out, progress=report, watch=watch, **read,
        )  # fmt: skip
    _show(found, model)
    if out is not None:
        print(f"wrote {out}: {_written(found, out)}")


def _with_copies(
    model: Any,
    tokenizer: Any,
    train: Path | None,
    documents: int,
    copies: int,
    seed: int,
    read: Mapping[str, Any],
) -> Any:
    """The text to learn from, with repeated random tokens of a seed that nothing is measured on."""
    from ...interp.texts import read_documents
    from ...interp.tokens import context_length
    from ..ablate.evaluate import repeated_probe
    from .asked import default_seq_len

    length = read["seq_len"] or default_seq_len(context_length(model))
    text = read_documents(
        train, model, tokenizer, n=documents, seq_len=length, prepend_bos=read["prepend_bos"],
        seed=seed,
    )  # fmt: skip
    return text + repeated_probe(
        model, tokenizer, prompts=copies, seq_len=length, prepend_bos=text.prompts.bos,
        seed=seed + 1,
    )  # fmt: skip


def _written(found: Any, out: Path) -> str:
    """What the folder holds."""
    from .prune_file import MODEL
    from .remove.pruned_file import reader_of

    cut = found.cut()
    if not (out / MODEL).is_dir():
        return "result.json, tables, plots; no smaller model"
    price = f" of λ {cut.asked:g}" if found.settings.get("asked") == "lam" else ""
    return (
        f"result.json, tables, plots, and in {out / MODEL} the model without the {len(cut.heads)} "
        f"heads that {cut.method} chose{price}, for {reader_of(out / MODEL)}"
    )


def _check_training(finetune: str, recover: int, copies: int) -> None:
    """Refuse what training cannot do, in the words of the command line."""
    from ...interp.probes import MIN_PROMPTS

    if finetune not in FINETUNE:
        raise InputError(f"--finetune is one of {', '.join(FINETUNE)}; got {finetune!r}.")
    if recover and finetune == "none":
        raise InputError("--recover trains weights after the cut: add --finetune full or lora.")
    if 0 < copies < MIN_PROMPTS:
        raise InputError(f"--copies is 0, or at least {MIN_PROMPTS} documents; got {copies}.")


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
    from .methods import check_methods
    from .prune_file import check_folder

    if shares and prices:
        raise InputError("give --target or --lam, not both.")
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


def _numbers(
    name: str, texts: list[str] | None, what: str, fits: Callable[[float], bool]
) -> tuple[float, ...]:
    """Numbers between commas, rising, each once."""
    found = set()
    for text in names_between_commas(texts):
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
