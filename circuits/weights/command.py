"""The command `headatlas compose`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...interp.errors import InputError
from ..console import load_model, names_between_commas

Model = Annotated[
    str, typer.Argument(help="tiny, smollm2-135m, a .gguf file, a local directory, or a hub id.")
]
KindNames = Annotated[
    list[str] | None, typer.Option("--kind", help="Q, K or V, such as Q,K; all if unsaid.")
]
HeadNames = Annotated[
    list[str] | None,
    typer.Option("--heads", help="Only pairs into or out of these, such as L18H6,L17H3."),
]
Delta = Annotated[int, typer.Option(help="Positions from the key to the query, for RoPE.")]
Top = Annotated[int, typer.Option(min=1, help="Pairs to print; files hold all.")]
Order = Annotated[str, typer.Option(help="Order of the pairs: z or score.")]
UpToNorms = Annotated[
    bool, typer.Option("--up-to-norms", help="Leave out norms that stand between.")
]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="Write .json, .csv or .parquet.")]


def compose(
    model: Model = "tiny",
    kind: KindNames = None,
    heads: HeadNames = None,
    delta: Delta = 0,
    top: Top = 20,
    by: Order = "z",
    up_to_norms: UpToNorms = False,
    out: Out = None,
) -> None:
    """Say which heads read what which heads write: Q-, K- and V-composition of all pairs."""
    # everything that can be refused is refused before the model is loaded
    kinds, chosen = _checked(kind, heads, by, out)
    from rich.console import Console
    from rich.markup import escape

    from .compose import composition
    from .show import show_composition

    loaded, _ = load_model(model)
    with Console(stderr=True).status(f"composing the heads of {escape(model)}"):
        found = composition(loaded, kinds=kinds, delta=delta, up_to_norms=up_to_norms)
    if chosen:
        found = found.of_heads(chosen)
    if out is not None:  # before anything is printed: a closed pipe must not cost the result
        found.save(out)
    show_composition(found, name=model, top=top, by=by)
    if out is not None:
        print(f"wrote {out}: {len(found.rows)} pairs")


def _checked(
    kind: list[str] | None, heads: list[str] | None, by: str, out: Path | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The kinds and heads named, after all arguments were found to make sense."""
    from ...interp.files import check_target
    from ...interp.heads import HeadId
    from ..table_file import check_suffix
    from .composition import KINDS

    kinds = names_between_commas(kind) or KINDS
    unknown = [name for name in kinds if name not in KINDS]
    if unknown:
        raise InputError(f"kinds of composition are Q, K and V; got {unknown[0]!r}.")
    if by not in ("z", "score"):
        raise InputError(f"pairs are ordered by z or score; got {by!r}.")
    chosen = tuple(str(HeadId.parse(name)) for name in names_between_commas(heads))
    if heads and not chosen:
        raise InputError("--heads names no head; write L18H6,L17H3, say.")
    if out is not None:
        check_suffix(out)
        check_target(out)
    return kinds, chosen
