"""Cut attention heads out of a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....interp.bridge import refuse_bridge
from ....interp.errors import InputError
from ....interp.heads import HeadId, Heads, one_or_more, parse_head
from ....interp.named_heads import locate
from ....interp.sites import attention_sites, check_model
from ....interp.switch import is_switched
from .anatomy import Anatomy, anatomies
from .compare import drift_of, limit_of, probe_logits, silenced
from .copies import comparison_twin, copied
from .cut import Cut
from .ordinary import ordinary_model
from .pruning import Pruning, left_by, mark, pruning_of
from .surgery import keep_inputs, keep_outputs, keep_rows, restructure

__all__ = ["remove_heads"]


def remove_heads(model: nn.Module, heads: Heads | Collection[HeadId]) -> PreTrainedModel:
    """A new model without some heads: smaller projections, and the masked model's logits.

    A head's columns of W_Q and rows of W_O go; those of W_K and W_V go once no query head of their
    group is left, and with them their part of the KV cache. A layer without heads adds its output
    bias, if it has one. The logits are compared with those of the given model with z[h] = 0 on a
    few tokens, padded on both sides, and must agree to rounding; `pruning_of(result).drift` is how
    far they are apart. A model narrower than float32 is compared in a float32 copy, one at a time,
    which takes memory for the weights of the whole model in float32.

    Where every layer keeps equally many heads and the family's config can say so, the result is an
    ordinary model of its class, whose `save_pretrained` any transformers reloads. Otherwise it is
    the model's own modules with fewer heads each, and goes to a folder by `save_pruned`;
    `pruning_of(result).saved_as` says which, and why. Latent attention (MLA) caches latents, whose
    size does not depend on the heads, so pruning it saves weights and arithmetic but no cache.

    Args:
        model: a transformers model that uses the attention registry, or Falcon. It is not changed.
        heads: the heads to cut out; a key-value head stands for all query heads of its group.

    Returns:
        The new model, in the same mode, dtype and place as the given one. Hooks registered on the
        given one's modules are not taken over, and play no part in the comparison. Heads cut out
        of a model that is itself an ordinary result add up: `pruning_of` names all of them.

    Raises:
        InputError: an unknown head, or a result in place of the heads it holds; a model that cannot
            be hooked, or whose projections or norms cannot be cut by heads; a layer that works with
            its heads in a way that does not bear fewer, seen by its logits; a model that
            `remove_heads` made, unless it is ordinary; a model that cannot be copied; a
            TransformerLens bridge, or a model that was given to one.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16,
        ...     num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> smaller = remove_heads(model, ["L0H0", "L0H1", "L1KV1"])
        >>> smaller.config.num_attention_heads, smaller.config.num_key_value_heads
        (2, 1)
        >>> ragged = remove_heads(model, ["L0H3"])
        >>> ragged.model.layers[0].self_attn.q_proj.out_features, pruning_of(ragged).n_removed
        (12, 1)

    Reference: Michel et al. 2019; Voita et al. 2019.
    """
    refuse_bridge(model, "remove_heads")
    model = check_model(model)
    _check(model)
    asked = [parse_head(head) for head in one_or_more(heads)]
    twin = comparison_twin(model)
    _check_shared(twin)
    found = anatomies(twin)
    named = locate(asked, [one.site for one in found])
    gone = {site: set(entry.query) for site, entry in named.items()}
    returns = _returns(twin, found)
    cuts = [_cut(one, gone.get(one.site, set()), returns[one.site.module]) for one in found]
    first = pruning_of(model)
    earlier = () if first is None else first.whole
    if earlier and left_by(earlier) != [(cut.module, cut.n_heads) for cut in cuts]:
        raise InputError(
            f"the layers of this {type(model).__name__} are not those that remove_heads left, so "
            "its heads have no address in the whole model. Save it, load it, and pass that."
        )
    if all(cut.whole for cut in cuts):
        smaller = copied(model)
        mark(smaller, Pruning.of(cuts, earlier, ordinary=True, drift=0.0))
        return smaller
    with silenced(twin, cuts):
        wanted = probe_logits(twin)
    limit = limit_of(twin.dtype)
    del twin  # its float32 weights go before the next copy comes
    smaller = copied(model)
    with torch.no_grad():
        for one, cut in zip(found, cuts, strict=True):
            _slice(smaller, one, cut)
        restructure(smaller, cuts)
    return _compared(smaller, cuts, earlier, (wanted, limit))


def _check(model: PreTrainedModel) -> None:
    kind = type(model).__name__
    if is_switched(model):
        raise InputError(
            f"{kind} is inside an attach or intervene block, whose hooks a copy would keep. Remove "
            "heads outside the block."
        )
    known = pruning_of(model)
    if known is not None and not known.ordinary:
        raise InputError(
            f"heads of this {kind} were removed already, and its layers do not have the shape of "
            "its config any more. Remove all heads at once from the whole model."
        )


def _check_shared(model: PreTrainedModel) -> None:
    """Refuse layers that share weights: a head cut out of one goes from all.

    Only models that can be hooked have such layers as sites of their own.
    """
    try:
        again = [site for site in attention_sites(model) if site.call]
    except InputError:
        return
    if again:
        raise InputError(
            f"{again[0].module} runs several times in a forward pass of this "
            f"{type(model).__name__}, so a head cannot be cut out of one layer alone. Silence it "
            "instead, with zero(heads)."
        )


def _returns(model: PreTrainedModel, found: Sequence[Anatomy]) -> dict[str, int]:
    """How many values each attention module returns; 0: one, not in a tuple."""
    seen: dict[str, int] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            seen[name] = len(output) if isinstance(output, tuple | list) else 0

        return hook

    names = [one.site.module for one in found]
    handles = [model.get_submodule(name).register_forward_hook(note(name)) for name in names]
    try:
        probe_logits(model)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _cut(one: Anatomy, gone: set[int], returns: int) -> Cut:
    site = one.site
    kept = [head for head in range(site.n_heads) if head not in gone]
    sizes: list[dict[str, int]] = [{}, {}]
    if gone:
        sizes = [
            {name: len(_stays(needs, kept)) for name, needs in group.items()}
            for group in (one.needs, one.rows)
        ]
    return Cut(
        site.module, site.stack, site.layer, site.n_heads, site.n_kv_heads, site.d_head,
        site.d_value, tuple(kept), one.output, returns, *sizes,
    )  # fmt: skip


def _stays(needs: Tensor, kept: Sequence[int]) -> Tensor:
    """Indices of what some head that stays needs, or what no head does."""
    staying = torch.zeros(needs.shape[1], dtype=torch.bool)
    staying[list(kept)] = True
    return ((needs & staying).any(1) | ~needs.any(1)).nonzero()[:, 0]


def _slice(model: PreTrainedModel, one: Anatomy, cut: Cut) -> None:
    if cut.whole:
        return
    for name, needs in one.needs.items():
        keep_outputs(model.get_submodule(name), _stays(needs, cut.kept))
    for name, needs in one.rows.items():
        keep_rows(model, name, _stays(needs, cut.kept))
    inputs = torch.arange(cut.n_heads * cut.d_value).unflatten(0, (cut.n_heads, cut.d_value))
    keep_inputs(model.get_submodule(cut.output), inputs[list(cut.kept)].flatten())


def _compared(
    smaller: PreTrainedModel,
    cuts: Sequence[Cut],
    earlier: Sequence[Cut],
    reference: tuple[Tensor, float],
) -> PreTrainedModel:
    """The pruned model, ordinary where it can be, after its logits were compared.

    Args:
        smaller: the pruned model.
        cuts: what was cut out of it.
        earlier: what was cut out before, of an ordinary result.
        reference: the masked model's logits, and how far the pruned one's may be from them.
    """
    kind, (wanted, limit) = type(smaller).__name__, reference
    try:
        probe_logits(smaller)  # in its own dtype
        drift = drift_of(smaller, wanted)
    except (
        Exception
    ) as error:  # a module may break in any way on a number of heads it does not bear
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(
            f"{kind} does not run with fewer heads in a layer ({reason}), so heads cannot be cut "
            "out of it. Silence them instead, with zero(heads)."
        ) from error
    if not drift <= limit:
        also = ", ".join(sorted({name.rpartition(".")[2] for cut in cuts for name in cut.rows}))
        also = f" (besides its projections, {also} was cut by heads)" if also else ""
        raise InputError(
            f"{kind} without these heads differs from the model with them silenced by "
            f"{drift:.1e} of its largest logit, over the limit {limit:.1e}{also}; its layers do "
            "something else by heads. Silence them instead, with zero(heads)."
        )
    made, new_drift, reason = ordinary_model(smaller, cuts, wanted, limit)
    if made is None:
        mark(smaller, Pruning.of(cuts, earlier, ordinary=False, drift=drift, reason=reason))
        return smaller
    mark(made, Pruning.of(cuts, earlier, ordinary=True, drift=new_drift))
    return made
