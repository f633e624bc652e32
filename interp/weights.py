"""The weight matrices of each attention head: W_Q, W_K, W_V, W_O, in any model's layout."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .by_site import BySite
from .errors import InputError
from .head_maps import HeadMap, HeadWeights, OneHead, Reading
from .projections import head_matrices
from .sites import Site, check_model
from .source_parts import Part, SiteSources, Source, matrix
from .sources import sources

__all__ = ["HeadMap", "HeadWeights", "OneHead", "Reading", "WeightsBySite", "head_weights"]


class WeightsBySite(BySite[HeadWeights]):
    """The weights of a model's heads: a read-only mapping from its sites, in call order.

    A key may also be the number of an attention layer, in a model of one stack, or the name of the
    attention module (see `BySite`).
    """

    what = "weights"

    def __repr__(self) -> str:
        return f"<weights of {len(self)} attention modules: {next(iter(self)).module}, …>"


def head_weights(model: nn.Module, *, fold_norm: bool = False) -> WeightsBySite:
    """W_Q, W_K, W_V and W_O of every head, found by running the model and checked against it.

    q = x W_Q + b_Q, k = x W_K + b_K, v = x W_V + b_V, and Σ_h z_h W_O[h] + b_O is the output of the
    attention module. x is what `reads` says: mostly the residual stream after a norm. In latent
    attention (MLA) queries and values read a normalised latent, and keys read two tensors: the
    latent and, for their rotary part, the residual stream; W_K then stacks a block for each.
    In a rotary model q and k are those before RoPE. A model may still scale the attention's output
    before it adds it (Granite). Where a norm follows (QK-norm, post-norms) the
    map is exact up to that norm, `exact` is False, and `statement` says which norm.

    Args:
        model: a transformers model.
        fold_norm: multiply the gain of the norm that a matrix reads from into it, with a
            LayerNorm's bias and centring, so that x is that norm's input divided by its size
            (`Reading.folded` says for which).

    Returns:
        Site -> weights, in call order; a layer's number and a module's name give them too. Tensors
        have the model's dtype and device and carry no gradient; without folding they share memory
        with the model where its layout allows, so copy them before writing into them.

    Raises:
        InputError: the model cannot be hooked (see `attention_sites`).

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16,
        ...     num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
        >>> weights = head_weights(LlamaForCausalLM(config))[0]
        >>> tuple(weights.W_Q.shape), tuple(weights.W_K.shape), tuple(weights.W_O.shape)
        ((4, 16, 4), (2, 16, 4), (4, 4, 16))
        >>> str(weights.v.reads[0]), weights.exact
        ('the output of model.layers.0.input_layernorm', True)

    Reference: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.
    """
    model = check_model(model)
    known = sources(model)
    modules = dict(model.named_modules())
    clips = _clips(model)
    return WeightsBySite(
        {
            site: HeadWeights(
                site,
                *(
                    _input_map(part, modules, fold_norm, clip)
                    for part, clip in zip((one.q, one.k, one.v), clips, strict=True)
                ),
                o=_output_map(site, one, modules),
            )
            for site, one in known.items()
        }
    )


def _clips(model: PreTrainedModel) -> tuple[str, str, str]:
    """What to say of models that cut large queries, keys and values off: no probe need show it."""
    config = model.config.get_text_config()
    length = getattr(config, "qk_l2_clip_threshold", None)
    if length is not None:
        cut = f"exact only up to a length of {length:g}, where the model cuts it off"
        return cut, cut, ""
    bounds = (getattr(c, "clip_qkv", None) for c in (config, getattr(config, "attn_config", None)))
    bound = next((bound for bound in bounds if bound is not None), None)
    if bound is None:
        return "", "", ""
    clip = f"exact only between -{bound:g} and {bound:g}, where the model clips it (clip_qkv)"
    return clip, clip, clip


def _input_map(source: Source, modules: Mapping[str, nn.Module], fold: bool, clip: str) -> HeadMap:
    if source.missing:
        return HeadMap(None, None, (), f"no linear map was found: {source.missing}")
    groups: dict[str, list[Part]] = {}
    for part in source.parts:
        groups.setdefault(part.input.norm or part.input.projection, []).append(part)
    blocks = [_block(source, parts, modules, fold) for parts in groups.values()]
    biases = [bias for _, bias, _ in blocks if bias is not None]
    weights = [weight for weight, _, _ in blocks]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights, 1)
    bias = sum(biases[1:], biases[0]) if biases else None
    reads = tuple(reading for _, _, reading in blocks)
    inexact = "; ".join(filter(None, (clip, _behind_norms(source))))
    return HeadMap(weight, bias, reads, inexact, _remarks(source))


def _block(
    source: Source, parts: list[Part], modules: Mapping[str, nn.Module], fold: bool
) -> tuple[Tensor, Tensor | None, Reading]:
    """W and b of the parts that read one tensor; zero where other parts fill in."""
    into = parts[0].input
    shape = (source.n_heads, source.width)
    if len(parts) == 1 and (view := _as_view(source, parts[0], modules)) is not None:
        weight, bias = view
    else:
        weight, bias = _gathered(source, parts, modules)
    weight = weight.unflatten(1, shape).transpose(0, 1)
    bias = None if bias is None else bias.unflatten(0, shape)
    folded = fold and into.norm is not None and into.form is not None
    if fold and into.norm is not None and into.form is not None:
        weight, bias = into.form.fold(modules[into.norm], weight, bias)
    return weight, bias, Reading(into.projection, into.width, into.norm, folded)


def _as_view(
    source: Source, part: Part, modules: Mapping[str, nn.Module]
) -> tuple[Tensor, Tensor | None] | None:
    """A slice of the module's own weight, where the columns lie there in order."""
    n, start = source.n_heads * source.width, int(part.columns[0])
    whole = torch.arange(n)
    in_order = torch.equal(part.places, whole) and torch.equal(part.columns, whole + start)
    if not in_order or bool((_factor(source, part) != 1).any()):
        return None
    module = modules[part.input.projection]
    bias = _bias(module)
    return _matrix(module)[:, start : start + n], None if bias is None else bias[start : start + n]


def _gathered(
    source: Source, parts: list[Part], modules: Mapping[str, nn.Module]
) -> tuple[Tensor, Tensor | None]:
    first = _matrix(modules[parts[0].input.projection])
    weight = first.new_zeros(first.shape[0], source.n_heads * source.width)
    bias, any_bias = first.new_zeros(weight.shape[1]), False
    for part in parts:
        module = modules[part.input.projection]
        columns, places = part.columns.to(first.device), part.places.to(first.device)
        factor = _factor(source, part).to(first.device)
        weight[:, places] = (_matrix(module)[:, columns] * factor).to(weight.dtype)
        if (own := _bias(module)) is not None:
            bias[places] = (own[columns] * factor).to(bias.dtype)
            any_bias = True
    return weight, bias if any_bias else None


def _factor(source: Source, part: Part) -> Tensor:
    """A factor of rotated queries or keys is part of their rotation."""
    return torch.ones_like(part.factor) if source.rotated else part.factor


def _matrix(module: nn.Module) -> Tensor:
    found = matrix(module)
    if found is None:
        raise InputError(f"{type(module).__name__} holds no weight matrix that could be read.")
    return found


def _bias(module: nn.Module) -> Tensor | None:
    bias = getattr(module, "bias", None)
    return None if bias is None else bias.detach()


def _behind_norms(source: Source) -> str:
    if not source.norms:
        return ""
    names = " and ".join(source.norms)
    return f"exact only up to the norm {names}, which divides by the size of what it is given"


def _remarks(source: Source) -> str:
    if not source.rotated:
        return ""
    factors = torch.cat([part.factor for part in source.parts])
    scaled = sorted({f"{factor:.6g}" for factor in factors.tolist() if factor != 1})
    also = (
        f", which also multiplies by {' or '.join(scaled)}" if scaled and not source.norms else ""
    )
    return f"before RoPE{also}"


def _output_map(site: Site, found: SiteSources, modules: Mapping[str, nn.Module]) -> HeadMap:
    if found.output is None:
        return HeadMap(None, None, (), found.no_output)
    module = modules[found.output]
    inexact = (
        ""
        if found.post_norm is None
        else (
            f"exact for the attention's output, but that goes through the norm {found.post_norm} "
            "before it is added to the residual stream, so heads are not added there one by one"
        )
    )
    reads = (Reading(found.output, site.n_heads * site.d_value),)
    return HeadMap(head_matrices(module, site), _bias(module), reads, inexact)
