"""The command `headatlas explore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import (
    BosOption,
    ModelArgument,
    NamesOption,
    TextOption,
    check_reads_text,
    load_model,
    names_between_commas,
    progress_bars,
)

_WORDS = 120  # of the text that is made where none is given
_PROMPTS = 16


def explore(
    model: ModelArgument = "tiny",
    text: TextOption = None,
    atlas: Annotated[
        Path | None,
        typer.Option(
            help="An atlas of the model, as classify -o wrote it (.json or .parquet); without one "
            f"heads are classified on {_PROMPTS} documents first."
        ),
    ] = None,
    heads: Annotated[
        NamesOption, typer.Option(help="Heads whose patterns to keep; all if unsaid.")
    ] = None,
    window: Annotated[
        list[str] | None,
        typer.Option(
            help="An exact part of a text of more than 512 tokens, such as "
            "L18H6,L17H3@1024:1280,0:256 or all@0:256; may be repeated."
        ),
    ] = None,
    labels: Annotated[
        bool, typer.Option("--labels/--no-labels", help="Whether to have cards of the heads.")
    ] = True,
    bos: BosOption = None,
    max_mib: Annotated[int, typer.Option(min=1, help="The largest page, in MiB.")] = 25,
    out: Annotated[Path, typer.Option("-o", "--out", help="Write this .html page.")] = Path(
        "explorer.html"
    ),
) -> None:
    """Make an offline page to look at heads: their map, their cards, their patterns on a text."""
    from ..interp.errors import InputError
    from ..interp.explorer.explorer import check_page
    from ..interp.explorer.read import read_patterns, read_windows
    from ..interp.grammar import natural_text
    from ..interp.heads import parse_head
    from ..interp.tokens import read_text
    from .atlas import HeadAtlas
    from .atlas_check import printable
    from .explore import check_atlas, page_of

    # everything that can be refused is refused before the model is loaded
    check_page(out)
    windows = read_windows(window or ())
    wanted = [parse_head(name) for name in names_between_commas(heads)]
    if heads is not None and not wanted:
        raise InputError("--heads names no head; write L18H6,L17H3, say.")
    if atlas is not None and not labels:
        raise InputError("--no-labels makes a page without an atlas; leave --atlas out.")
    known = None if atlas is None else HeadAtlas.load(atlas)
    running_text = natural_text(_WORDS, seed=0) if text is None else read_text(text)
    loaded, tokenizer = load_model(model)
    check_reads_text(model, loaded, tokenizer)
    if known is not None:
        check_atlas(loaded, known)
    with progress_bars() as report:
        # before heads are classified, which takes longer
        patterns = read_patterns(
            loaded, tokenizer, running_text, heads=wanted or None, windows=windows,
            prepend_bos=bos, max_bytes=max_mib * 2**20, progress=report,
        )  # fmt: skip
        if known is None and labels:
            from .classify import classify

            known = classify(loaded, tokenizer, prompts=_PROMPTS, prepend_bos=bos, progress=report)
            known.model["name"] = printable(model)
    page = page_of(loaded, patterns, atlas=known, title=printable(model), max_mib=max_mib)
    print(f"{page}: {page.size_bytes / 2**20:.2f} MiB of at most {max_mib}")
    page.save(out)
    print(f"wrote {out}; open it in a browser")
