"""Find each attention module's output projection W_O by what it is given, not by its name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from transformers import PreTrainedModel

from .errors import InputError
from .sites import Site
from .sources import sources


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
    return {
        site: model.get_submodule(found.output)
        for site, found in sources(model).items()
        if found.output is not None
    }


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
