"""Documents for causal tests: short ones, other than those that gave the labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...interp.errors import InputError
from ...interp.probes import Prompts
from ...interp.sites import unbridged
from ..battery import Battery
from ..kind import Kind
from .decoder import check_decoder

DOCUMENTS, SEQ_LEN = 24, 32
"""Defaults: on two idle cores a sweep over 270 heads of 30 layers takes minutes with these."""


def documents(
    model: Any,
    tokenizer: Any,
    name: str = "random",
    *,
    prompts: int = DOCUMENTS,
    seq_len: int = SEQ_LEN,
    text: str | None = None,
    prepend_bos: bool | None = None,
    seed: int = 0,
) -> Prompts:
    """A prompt set for causal tests, drawn apart from that of `classify` with the same seed.

    Args:
        model: a transformers decoder with a language-model head.
        tokenizer: its tokenizer; None will do for random tokens.
        name: one of `PROMPT_SETS`.
        prompts: how many documents, at least 16; `classic` has at most 16.
        seq_len: tokens per document, at least 16.
        text: running text for the natural set; None generates it.
        prepend_bos: True, False, or None for the tokenizer's habit.
        seed: of the draw.

    Raises:
        InputError: the model is no decoder, or numbers and text do not fit it.

    Example:
        >>> import headatlas as ha
        >>> documents(*ha.load("tiny")).ids.shape
        (24, 32)
    """
    model = unbridged(model)
    check_decoder(model)
    battery = Battery(prompts, seq_len, text, prepend_bos, 0, apart(seed))
    reader = Kind("causal", "Reads a prompt set.", lambda _: {}, prompts=(name,))
    found = battery.prompt_sets(model, tokenizer, [reader], causal=True)
    if name not in found:
        raise InputError(f"the {name} prompts need the model's tokenizer; pass it.")
    return found[name]


def apart(seed: int) -> int:
    """The seed of documents that are other than those of `classify` with the same seed."""
    return int(np.random.default_rng((seed, 30)).integers(2**31))
