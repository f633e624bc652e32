"""The command `headatlas trace-induction`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[
    str, typer.Argument(help="tiny, smollm2-135m, a .gguf file, a local directory, or a hub id.")
]
Ablation = Annotated[str, typer.Option(help="How heads are removed: mean, zero or resample.")]
Margin = Annotated[
    float, typer.Option(min=0, max=1, help="Attention mass that a link must be worth.")
]
Documents = Annotated[int, typer.Option("--prompts", min=16, help="Documents, at least 16.")]
Length = Annotated[int, typer.Option("--seq-len", min=16, help="Tokens per document.")]
Bos = Annotated[
    bool | None,
    typer.Option("--bos/--no-bos", help="Start with a BOS; the tokenizer's habit if unsaid."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="Write .json, .csv or .parquet.")]


def trace_induction(
    model: Model = "tiny",
    ablation: Ablation = "mean",
    margin: Margin = 0.05,
    prompts: Documents = 24,
    seq_len: Length = 32,
    bos: Bos = None,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Follow the induction circuit from head to head, each link measured by removal."""
    # everything that can be refused is refused before the model is loaded
    _check(ablation, out)
    from rich.console import Console
    from rich.markup import escape

    from ..console import load_model
    from .trace import trace_induction as run

    loaded, tokenizer = load_model(model)
    with Console(stderr=True).status(f"tracing induction in {escape(model)}") as status:

        def report(stage: str, done: int, total: int) -> None:
            status.update(f"{escape(model)}: {escape(stage)} {done} of {total}")

        found = run(
            loaded, tokenizer, ablation=ablation, margin=margin, prompts=prompts,
            seq_len=seq_len, prepend_bos=bos, seed=seed, progress=report,
        )  # fmt: skip
    if out is not None:  # before anything is printed: a closed pipe must not cost the result
        found.save(out)
    _show(found, model)
    if out is not None:
        print(f"wrote {out}: {len(found.rows)} links of {len(found.heads)} heads")


def _check(ablation: str, out: Path | None) -> None:
    from ...interp.files import check_target
    from ..table_file import check_suffix
    from .stand_in import check_ablations

    check_ablations(ablation)
    if out is not None:
        check_suffix(out)
        check_target(out)


def _show(found: Any, name: str) -> None:
    """The paragraph, the chain's links, and every tested head."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(escape(f"Induction in {name}"), style="bold", highlight=False)
    console.print(escape(str(found)), highlight=False)
    tables = {"Tested heads": _heads(found)}
    if found.chain is not None:
        tables = {"Links of the chain": _links(found), **tables}
    for title, rows in tables.items():
        table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
        for column in rows.columns:
            table.add_column(column, no_wrap=column != "link")
        for row in rows.itertuples(index=False):
            table.add_row(*(escape(_cell(value)) for value in row))
        console.print()
        console.print(table)


def _links(found: Any) -> Any:
    from .chain import LINKS

    rows = found.table()
    return rows.assign(link=rows["link"].map(LINKS)).rename(columns={"address": "head"})


def _heads(found: Any) -> Any:
    from ...interp.heads import HeadId

    heads = found.tested()
    address = [str(HeadId(r["site"], r["layer"], r["head"])) for r in heads.to_dict("records")]
    columns = ["role", "grade", "evidence", "target", "value", "low", "high"]
    shown = heads[columns].copy()
    shown.insert(0, "head", address)
    return shown


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.3f}"
    return str(value)
