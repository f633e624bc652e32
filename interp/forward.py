"""Run a model for what happens inside it, without the cost of its head."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel


def run_base(
    model: PreTrainedModel,
    input_ids: Int[Tensor, "batch pos"],
    attention_mask: Int[Tensor, "batch pos"] | Bool[Tensor, "batch pos"] | None = None,
    *,
    grad: bool = False,
    **kwargs: Any,
) -> Any:
    """Run the model without its LM head, where its class has a base model to run alone.

    Args:
        model: a transformers model.
        input_ids: token ids.
        attention_mask: 1 (True) where a token stands, 0 at padding; None means no padding.
        grad: whether to record gradients.
        **kwargs: passed on; `use_cache` is off unless given. An encoder-decoder model needs
            `decoder_input_ids`.

    Returns:
        The base model's output object: hidden states, not logits.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> run_base(model, torch.tensor([[1, 2, 3]])).last_hidden_state.shape
        torch.Size([1, 3, 8])
    """
    base = model.base_model
    if attention_mask is not None:
        kwargs["attention_mask"] = attention_mask.to(input_ids.dtype)
    kwargs.setdefault("use_cache", False)
    with nullcontext() if grad else torch.no_grad():
        return base(input_ids=input_ids, **kwargs)
