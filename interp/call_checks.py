"""What an attention call must not ask for: keywords without a known effect, checkpointing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.api import Mask
from .errors import InputError

# Keywords that reach the attention function and change nothing in it. `sliding_window` is in the
# mask already; the rest are arguments of the model's forward that travel down with the others.
_BENIGN = frozenset(
    {
        *("cache", "cache_position", "past_key_value", "past_key_values", "use_cache"),
        *("encoder_attention_mask", "encoder_hidden_states", "position_embeddings", "position_ids"),
        *("output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep"),
        *("deterministic", "labels", "num_items_in_batch", "sliding_window", "token_type_ids"),
    }
)
_WHY_REFUSED = {
    "indices": "it selects keys (sparse attention), which is not supported",
    "block_indices": "it selects keys (sparse attention), which is not supported",
    "head_mask": "use attach(edits=...) to scale heads",
    **dict.fromkeys(
        ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"),
        "packed batches are not supported; pass one text per row with an attention_mask",
    ),
}


def refuse_checkpointing(models: Iterable[nn.Module]) -> None:
    """Refuse layers that the backward pass would run again, when no block may be there."""
    for part in (part for model in models for part in model.modules()):
        if not (part.training and getattr(part, "gradient_checkpointing", False)):
            continue
        function = getattr(part, "_gradient_checkpointing_func", None)
        reentrant = getattr(function, "keywords", {}).get("use_reentrant", True)
        # without gradients nothing is checkpointed, but the reentrant kind hides that they are on
        if reentrant or torch.is_grad_enabled():
            raise InputError(
                "attach does not work under gradient checkpointing, which runs attention again in "
                "the backward pass. Call model.gradient_checkpointing_disable() or model.eval()."
            )


def refuse_unknown(name: str, keywords: dict[str, Any]) -> None:
    """Refuse keywords of an attention call whose effect nobody here would reproduce."""
    for keyword, value in keywords.items():
        if value is not None and keyword not in _BENIGN:
            why = _WHY_REFUSED.get(
                keyword, "its effect is unknown. If you passed it to the model, leave it out"
            )
            raise InputError(f"{name} received the attention keyword {keyword!r}: {why}.")


def refuse_empty_rows(name: str, mask: Mask, bias: Tensor | None, n_query: int, n_key: int) -> None:
    """Refuse queries that see no key, where what they give reaches tokens later on."""
    if bias is not None:
        empty = bool((bias == float("-inf")).all(-1).any())
    else:
        rows = mask.k_range
        batch, device = (1, torch.device("cpu")) if rows is None else (len(rows), rows.device)
        low, high = mask.intervals(batch, n_query, n_key, device)
        empty = bool((low >= high).any())
    if empty:
        raise InputError(
            f"{name} gets queries that see no key, as those of padding on the left do, and in this "
            "model what they give goes on to tokens, so that nothing after it would be exact. Pad "
            "on the right, or run one text at a time."
        )
