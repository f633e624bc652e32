"""What a model must be for its loss to be measured: a decoder with a language-model head."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...interp.errors import InputError
from ...interp.sites import Site, attention_sites
from ..score import one_direction


def check_decoder(model: Any) -> tuple[Site, ...]:
    """The attention sites of a decoder with a language-model head.

    Raises:
        InputError: an encoder, several stacks, or no head.
    """
    sites = attention_sites(model)
    if not one_direction(sites):
        raise InputError(
            f"{type(model).__name__} is an encoder: it predicts no next token, which the causal "
            "tests measure. Pass a decoder with its language-model head."
        )
    head = output_head(model)
    vocab = getattr(model.config.get_text_config(), "vocab_size", None)
    weight = getattr(head, "weight", None)
    if head is None or not isinstance(weight, Tensor) or (vocab and len(weight) < vocab):
        raise InputError(
            f"{type(model).__name__} has no language-model head, which the causal tests measure; "
            "load it with AutoModelForCausalLM."
        )
    return sites


def output_head(model: Any) -> Any:
    """The module that turns last states into logits; None without one."""
    try:
        return model.get_output_embeddings()
    except (NotImplementedError, AttributeError):
        return None


def width(model: nn.Module) -> int:
    """Numbers in a state, of a model that `check_decoder` has passed."""
    return output_head(model).weight.shape[1]
