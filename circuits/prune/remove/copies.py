"""Copies of a model: one to cut heads out of, and one to compare logits by."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....interp.bridge_view import HOOKS
from ....interp.errors import InputError, one_line

_NARROW = (torch.float16, torch.bfloat16)
_PLAIN = (*_NARROW, torch.float32, torch.float64)


def copied(
    model: PreTrainedModel, weight_of: Callable[[Tensor], Tensor] | None = None
) -> PreTrainedModel:
    """A copy without the hooks that were registered on the model's modules.

    Args:
        model: the model.
        weight_of: what stands for each parameter and buffer in the copy; None: a copy of it.

    Raises:
        InputError: something in the model cannot be copied.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> _ = model.lm_head.register_forward_hook(lambda *_: None)
        >>> len(copied(model).lm_head._forward_hooks), len(model.lm_head._forward_hooks)
        (0, 1)
    """
    memo: dict[int, Any] = {}
    if weight_of is not None:
        memo = {id(one): weight_of(one) for one in (*model.parameters(), *model.buffers())}
    try:
        twin = copy.deepcopy(model, memo)
    except (TypeError, RuntimeError, AttributeError) as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied, which removing heads needs: "
            f"{one_line(error)[:160]}. Remove what was hung on the model."
        ) from error
    for module in twin.modules():
        for hooks in HOOKS:
            getattr(module, hooks).clear()
        # transformers' own, for attentions and hidden states, come back when they are asked for
        module.__dict__.pop("_output_capturing_hooks_installed", None)
    return twin


def comparison_twin(model: PreTrainedModel) -> PreTrainedModel:
    """The model to compute logits by: without hooks, and in float32 where it is narrower.

    In bfloat16 rounding alone moves the largest logit by some per cent, and would hide that a head
    has another's norm. Weights that need no widening are shared with the model; quantised ones
    are taken as they are, because only their own arithmetic knows how to read them.

    Raises:
        InputError: as `copied`.
    """
    if not _is_plain(model):
        return copied(model, lambda weight: weight)
    twin = copied(model, _widened)
    if model.dtype in _NARROW and "flash" in str(model.config._attn_implementation):
        _without_flash(twin)
    return twin


def _is_plain(model: PreTrainedModel) -> bool:
    """Whether all weights are floating-point numbers that lie in memory."""
    if getattr(model, "hf_quantizer", None) is not None:
        return False
    return all(
        type(weight) is nn.Parameter and weight.dtype in _PLAIN and not weight.is_meta
        for weight in model.parameters()
    )


def _widened(weight: Tensor) -> Tensor:
    if weight.dtype not in _NARROW:
        return weight
    wide = weight.detach().float()
    return nn.Parameter(wide, requires_grad=False) if isinstance(weight, nn.Parameter) else wide


def _without_flash(twin: PreTrainedModel) -> None:
    """Flash attention takes no float32."""
    try:
        twin.set_attn_implementation("sdpa")
    except ValueError:  # a family that only has its own
        twin.set_attn_implementation("eager")
