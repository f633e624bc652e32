"""The command `headatlas classify`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..interp.errors import InputError
from .console import (
    BosOption,
    ModelArgument,
    NamesOption,
    SeedOption,
    TextOption,
    load_model,
    progress_bars,
)

_REMOVAL = (
    "Removal reads documents of its own, 24 of 32 tokens (of a treebank at most 96 sentences), "
    "whatever --prompts and --seq-len say: every head and way of removal takes a pass over them. "
    "The function causal_effects takes other sizes."
)


class Evidence(StrEnum):
    """How far a label is tested."""

    PATTERN = "pattern"
    CAUSAL = "causal"


def classify(
    model: ModelArgument = "tiny",
    kinds: Annotated[
        NamesOption,
        typer.Option(help="Kinds to score, such as induction,offset; all if unsaid."),
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(
            help="Tokens per document (16 or more); 256 if unsaid. Labels alone: see --evidence."
        ),
    ] = None,
    prompts: Annotated[
        str,
        typer.Option(
            help="Documents per prompt set, at least 16; or auto: until the labels of kinds on "
            "tokens settle (parsed documents do not grow). Labels alone: see --evidence."
        ),
    ] = "64",
    text: TextOption = None,
    treebank: Annotated[
        Path | None,
        typer.Option(help="A CoNLL-U file for syntactic and coreference kinds."),
    ] = None,
    bos: BosOption = None,
    null_draws: Annotated[
        int,
        typer.Option(
            min=0, help="Permuted labels to score on each prompt set, beside the true ones."
        ),
    ] = 0,
    evidence: Annotated[
        Evidence,
        typer.Option(
            help=f"causal: also remove every head in turn and see what that harms. {_REMOVAL}"
        ),
    ] = Evidence.PATTERN,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A .safetensors file that an interrupted causal run goes on from."),
    ] = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write .json, .csv or .parquet.")
    ] = None,
) -> None:
    """Say what each attention head does, with the evidence for it."""
    from ..interp.files import check_target
    from ..interp.tokens import read_text
    from .asked import ask
    from .atlas_check import printable
    from .battery import Battery
    from .table_file import check_suffix

    # everything that can be refused is refused before the model is loaded
    names = None if kinds is None else ",".join(kinds)
    if out is not None:
        check_suffix(out)
        check_target(out)
    if checkpoint is not None:
        _check_checkpoint(checkpoint, evidence)
    battery = Battery(
        _count(prompts), seq_len, None if text is None else read_text(text), bos, null_draws,
        seed, treebank,
    )  # fmt: skip
    ask(names, battery)
    loaded, tokenizer = load_model(model)

    from .classify import classify as run
    from .show import show

    with progress_bars() as report:
        atlas = run(loaded, tokenizer, kinds=names, progress=report, **vars(battery))
        atlas.model["name"] = printable(model)
        if out is not None:  # before what may be interrupted, or print into a closed pipe
            atlas.save(out)
        if evidence is Evidence.CAUSAL:
            from .causal.effects import causal_effects

            effects = causal_effects(
                loaded, tokenizer, atlas, prepend_bos=bos, text=battery.text,
                treebank=battery.treebank,
                seed=seed, checkpoint=checkpoint, progress=report,
            )  # fmt: skip
            atlas = atlas.with_evidence(effects)
            if out is not None:
                atlas.save(out)
    show(atlas)
    if out is not None:
        print(
            f"wrote {out}: {len(atlas.rows)} rows, {atlas.n_heads} heads × {len(atlas.kinds)} kinds"
        )


def _check_checkpoint(path: Path, evidence: Evidence) -> None:
    """Refuse a checkpoint under the name that the user gave; files stand beside it, one a set.

    Raises:
        InputError: the run is not causal, or the path has another suffix or cannot be written.
    """
    from ..interp.files import check_target

    if evidence is not Evidence.CAUSAL:
        raise InputError("a checkpoint is of a causal run; add --evidence causal.")
    if path.suffix != ".safetensors":
        raise InputError(f"a checkpoint is a .safetensors file; got {str(path)!r}.")
    check_target(path)


def _count(text: str) -> int | str:
    """A number of documents, or `auto`; what is neither is refused by `Battery`."""
    return int(text) if text.isascii() and text.isdecimal() else text
