"""The model that training works on: a copy, so that the user's own is never touched.

A frozen copy shares the weights' memory with the model and costs next to nothing.
"""

from __future__ import annotations

import contextvars
import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ...interp.errors import InputError
from ...interp.frames import is_edited
from ...interp.resume import Blocks
from ...interp.switch import is_copy, is_switched


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that shares the weights, none of which needs gradients.

    Raises:
        InputError: the model is inside an `attach` block, or cannot be copied.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> twin = frozen_copy(model)
        >>> own, shared = model.lm_head.weight, twin.lm_head.weight
        >>> own.data_ptr() == shared.data_ptr(), own.requires_grad, shared.requires_grad
        (True, True, False)
    """
    twin = _copied(model, lambda weight: weight)
    twin.requires_grad_(False)
    return twin.eval()


def trainable_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy with weights of its own, all of which need gradients.

    Weights narrower than float32 are widened to it: small updates would be rounded away.

    Raises:
        InputError: as `frozen_copy`; also where weights are quantised.
    """
    kinds = {type(weight).__name__ for weight in model.parameters() if not _is_plain(weight)}
    if kinds:
        raise InputError(
            f"{type(model).__name__} has quantised weights ({', '.join(sorted(kinds))}), which "
            "cannot be trained. Load it in floating point, or use finetune='lora'."
        )
    twin = _copied(model, lambda weight: _widened(weight).clone())
    for weight in twin.parameters():
        weight.requires_grad_(weight.is_floating_point())
    return twin.eval()


def weights_for(model: PreTrainedModel, twin: PreTrainedModel) -> dict[str, Tensor]:
    """The twin's weights under the model's names and in its dtypes, as `load_state_dict` takes."""
    found: Mapping[str, Tensor] = twin.state_dict()
    return {
        name: found[name].detach().to(own.dtype).clone() for name, own in model.state_dict().items()
    }


def with_weights(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """A copy with other weights in place of its own, which stay the model's.

    Args:
        model: the model.
        weights: what `weights_for` gives.

    Raises:
        InputError: as `frozen_copy`.
    """
    twin = frozen_copy(model)
    twin.load_state_dict(weights, assign=True)
    twin.tie_weights()
    needs = {name: weight.requires_grad for name, weight in model.named_parameters()}
    for name, weight in twin.named_parameters():
        weight.requires_grad_(needs[name])
    return twin.train(model.training)


def recompute_blocks(blocks: Blocks) -> None:
    """Have the blocks of a working copy compute again, in the backward pass, what they computed.

    transformers' own checkpointing forgets in the backward pass which gates stood in the forward
    pass. Here each block carries its context along, whichever thread the backward pass runs in.
    The attention hook must still be attached there.
    """
    for block in blocks.modules:
        block.forward = _recomputed(block.forward)


def _recomputed(own: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return own(*args, **kwargs)
        context = contextvars.copy_context()

        def run(*inputs: Any) -> Any:
            return context.run(own, *inputs, **kwargs)

        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False)

    return forward


def _copied(model: PreTrainedModel, weight_of: Callable[[Tensor], Tensor]) -> PreTrainedModel:
    if is_edited(model) or is_switched(model) or is_copy(model):
        raise InputError(
            f"{type(model).__name__} is inside an attach block, whose changes a copy would lose. "
            "Train outside the block."
        )
    memo: dict[int, Any] = {}
    for weight in model.parameters():
        if _is_plain(weight):
            memo[id(weight)] = nn.Parameter(weight_of(weight.detach()), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = weight_of(buffer.detach()).clone()
    try:
        return copy.deepcopy(model, memo)
    except (TypeError, RuntimeError, AttributeError) as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied, which training needs: "
            f"{' '.join(str(error).split())[:160]}. Remove what was hung on the model."
        ) from error


def _is_plain(weight: Tensor) -> bool:
    return type(weight) is nn.Parameter and weight.is_floating_point()


def _widened(weight: Tensor) -> Tensor:
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight
