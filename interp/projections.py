"""Find each attention module's output projection W_O by what it is given, not by its name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .attach import AttentionCall, attach, watch_inputs
from .errors import InputError
from .sites import Site
from .survey import run_probe


def output_projections(model: PreTrainedModel) -> Mapping[Site, nn.Module]:
    """The Linear or Conv1D that maps each site's heads to the residual stream, where there is one.

    It is the first such module called after the attention whose input equals z, heads side by
    side, bit for bit. A model that gates, norms or mixes z first has none: per-head contributions
    through W_O alone would be wrong there.

    Args:
        model: a transformers model.

    Returns:
        Site -> module, without the sites that have none.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> [type(module).__name__ for module in output_projections(model).values()]
        ['Conv1D']
    """
    found: dict[Site, nn.Module] = {}
    waiting: list[tuple[Site, Tensor]] = []

    def remember(call: AttentionCall) -> None:
        waiting[:] = [(call.site, call.z.transpose(1, 2).flatten(2))]

    def compare(module: nn.Module, received: Tensor) -> None:
        if waiting:
            site, z = waiting[0]
            if received.numel() == z.numel() and torch.equal(received.reshape(z.shape), z):
                found[site] = module
                waiting.clear()

    linear = [module for module in model.modules() if isinstance(module, nn.Linear | Conv1D)]
    with attach(model, observers=[remember]), watch_inputs(linear, compare):
        run_probe(model)
    return found


def head_matrices(projection: nn.Module, site: Site) -> Tensor:
    """W_O cut by head: [head, d_value, d_model], so that head h writes z[h] @ W[h].

    Raises:
        InputError: the module's weight has another size (a quantised one, say).
    """
    weight = getattr(projection, "weight", None)
    width = site.n_heads * site.d_value
    if isinstance(weight, Tensor) and isinstance(projection, nn.Linear):
        weight = weight.T
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.shape[0] != width:
        got = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise InputError(
            f"the output projection of {site.module} must take {width} inputs; its weight is {got}."
        )
    return weight.reshape(site.n_heads, site.d_value, -1)
