"""What a caller gives to run a model on, a text or token ids, with what each token looks like."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from .errors import InputError
from .grid import token_cells
from .inputs import Inputs, read_inputs
from .signals import reads_signal
from .tokens import Tokens, context_length, tokenize, visible_all

_LOG = logging.getLogger("headatlas")


def read_given(
    model: PreTrainedModel,
    tokenizer: Any,
    text_or_ids: Any,
    prepend_bos: bool | None = None,
    decoder_ids: Tensor | None = None,
) -> tuple[Inputs, list[list[str]]]:
    """What the model reads, and the visible string of each token.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer; may be None when ids are passed, whose strings are then numbers.
        text_or_ids: a text, several texts, `Tokens`, a tokenizer's output of tensors, or token ids
            [batch, pos]; images or sounds of a model that reads these.
        prepend_bos: whether texts start with a BOS token; None leaves it to the tokenizer.
        decoder_ids: what the decoder of an encoder-decoder model reads.

    Raises:
        InputError: a text without a tokenizer, `prepend_bos` with ids, or what `read_inputs` and
            `tokenize` refuse.
    """
    if reads_signal(model):
        _refuse_text(model, text_or_ids)
        inputs = read_inputs(model, text_or_ids, decoder_ids)
        return inputs, [_place_names(model, inputs)] * len(inputs)
    if not isinstance(text_or_ids, Tensor | Tokens | Mapping):
        if tokenizer is None:
            raise InputError("a text needs a tokenizer. Pass one, or token ids [batch, pos].")
        text_or_ids = tokenize(tokenizer, text_or_ids, prepend_bos=prepend_bos)
    elif prepend_bos is not None:
        raise InputError("prepend_bos applies to texts; tokens are run as they are.")
    inputs = read_inputs(model, text_or_ids, decoder_ids)
    context = context_length(model)
    if context is not None and inputs.ids.shape[1] > context:
        _LOG.warning(
            "the text has %d tokens, more than the %d that the model was made for",
            inputs.ids.shape[1],
            context,
        )
    if isinstance(text_or_ids, Tokens):
        return inputs, [visible_all(row) for row in text_or_ids.strings]
    return inputs, [token_strings(tokenizer, row) for row in inputs.ids.tolist()]


def _refuse_text(model: PreTrainedModel, given: Any) -> None:
    if not isinstance(given, Tensor | Mapping):
        raise InputError(
            f"{type(model).__name__} reads {model.main_input_name}: give what its processor gives, "
            f"or a tensor of floats [batch, …]; got {type(given).__name__}."
        )


def _place_names(model: PreTrainedModel, inputs: Inputs) -> list[str]:
    """Row and column of each token of a grid, or its number where there is none."""
    if inputs.signal is None:
        return []
    cells = token_cells(model, inputs.signal).tolist()
    return [
        str(place) if row < 0 else f"({row},{column})" for place, (row, column) in enumerate(cells)
    ]


def token_strings(tokenizer: Any, ids: list[int]) -> list[str]:
    """The visible string of each token; without a tokenizer its number."""
    if tokenizer is None:
        return [str(i) for i in ids]
    tokens = zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
    return visible_all([f"<id {i}>" if token is None else str(token) for i, token in tokens])
