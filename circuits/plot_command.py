"""The command `headatlas plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..interp.errors import InputError
from .console import (
    BosOption,
    ModelArgument,
    NamesOption,
    TextOption,
    check_reads_text,
    load_model,
)


def plot(
    model: ModelArgument = "tiny",
    heads: Annotated[
        NamesOption,
        typer.Option(help="Heads to show, such as L18H6,L17H3; L0H0 if unsaid."),
    ] = None,
    text: TextOption = None,
    bos: BosOption = None,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            help="Write .html, .png, plotly's .json, or .svg or .pdf (these two need a browser).",
        ),
    ] = Path("pattern.html"),
) -> None:
    """Draw the attention patterns of some heads on a text: an offline web page, or a picture."""
    from ..interp.capture import capture
    from ..interp.files import check_target
    from ..interp.grammar import natural_text
    from ..interp.plots import (
        check_figure_suffix,
        plot_pattern,
        write_figure,
        write_pattern_image,
    )
    from ..interp.tokens import read_text

    wanted = _heads(["L0H0"] if heads is None else heads)
    stacks = {head.site for head in wanted}
    if len(stacks) > 1:
        raise InputError(
            f"heads of several stacks ({', '.join(sorted(stacks))}) have different tokens on their "
            "axes; draw those of one stack at a time."
        )
    is_png = out.suffix.lower() == ".png"  # which needs no browser, as the others' pictures do
    if not is_png:
        check_figure_suffix(out)
    check_target(out)
    running_text = natural_text(60, seed=0) if text is None else read_text(text)
    loaded, tokenizer = load_model(model)
    check_reads_text(model, loaded, tokenizer)
    _check_length(loaded, tokenizer, running_text, bos)
    cache = capture(
        loaded, tokenizer, running_text, names_filter="pattern", heads=wanted, prepend_bos=bos
    )
    patterns = [_pattern(cache, head) for head in wanted]

    import torch

    shown = torch.stack(patterns)
    named: dict[str, Any] = {
        **_labels(loaded, tokenizer, cache, wanted[0].site),
        "heads": [str(head) for head in wanted],
        "sinks": True,  # a captured pattern is one; where a sink takes its part, rows sum to less
        "title": f"{model}: {', '.join(str(head) for head in wanted)}",
    }
    if is_png:
        write_pattern_image(shown, out, **named)
    else:
        write_figure(plot_pattern(shown, **named), out)
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


def _labels(model: Any, tokenizer: Any, cache: Any, stack: str) -> dict[str, list[str]]:
    """The tokens along the axes: a decoder reads its text behind a start token."""
    from ..interp.given_text import token_strings
    from ..interp.inputs import read_inputs

    tokens = cache.tokens[0]
    decoder_ids = read_inputs(model, cache.token_ids).decoder_ids
    if stack not in ("dec", "cross") or decoder_ids is None:
        return {"tokens": tokens}
    read = token_strings(tokenizer, decoder_ids[0].tolist())
    return {"tokens": read, "keys": tokens if stack == "cross" else read}


def _check_length(model: Any, tokenizer: Any, text: str, bos: bool | None) -> None:
    from ..interp.tokens import context_length, fits

    context = context_length(model)
    if context is not None and not fits(tokenizer, text, seq_len=context, prepend_bos=bos):
        raise InputError(
            f"the text has more tokens than the model's context of {context}; pass a shorter text."
        )
