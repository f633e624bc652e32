"""Find each attention module's output projection W_O by what it is given, not by its name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .errors import InputError
from .sites import Site, check_model
from .source_parts import matrix
from .sources import sources


def output_projections(model: nn.Module) -> Mapping[Site, nn.Module]:
    """The Linear or Conv1D that maps each site's heads to the residual stream, where there is one.

    It is the module whose input equals z, heads side by side, bit for bit, and whose output, z W +
    b of its own weight, leaves the attention module. A model that gates, norms or mixes z first,
    or adds an adapter to the output, has none: per-head contributions through W_O alone would be
    wrong there.

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
    model = check_model(model)
    return {
        site: model.get_submodule(found.output)
        for site, found in sources(model).items()
        if found.output is not None
    }


def head_matrices(projection: nn.Module, site: Site) -> Tensor:
    """W_O cut by head: [head, d_value, d_model], so that head h writes z[h] @ W[h].

    Raises:
        InputError: the module has no matrix of that size that could be read (a quantised one).
    """
    weight, width = matrix(projection), site.n_heads * site.d_value
    if weight is None:
        raise InputError(
            f"the output projection of {site.module} ({type(projection).__name__}) holds no "
            "plain weight matrix. Load the model without quantisation."
        )
    if weight.shape[0] != width:
        raise InputError(
            f"the output projection of {site.module} must take {width} inputs; its weight is "
            f"{tuple(weight.shape)}."
        )
    return weight.reshape(site.n_heads, site.d_value, -1)
