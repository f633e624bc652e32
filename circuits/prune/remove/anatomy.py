"""Which outputs of which projection each attention head needs, found by value.

`interp.sources` runs the model and says where every query, key and value comes from. Falcon, whose
attention goes past transformers' registry, is read from its class instead; the comparison with the
masked model that follows every removal guards both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.falcon.modeling_falcon import FalconAttention

from ....interp.errors import InputError
from ....interp.sites import Site
from ....interp.source_parts import SiteSources, Source
from ....interp.sources import sources


@dataclass(frozen=True, eq=False)
class Anatomy:
    """One attention module as what its heads need.

    Attributes:
        site: which module, with its heads.
        needs: projection -> [output, query head], True where the head needs the output. Outputs
            that no head needs (a latent's) are rows without True.
        output: the projection that reads z, heads side by side.
        rows: parameter or buffer -> [row, query head], likewise for its first dimension.
    """

    site: Site
    needs: Mapping[str, Bool[Tensor, "output head"]]
    output: str
    rows: Mapping[str, Bool[Tensor, "row head"]]


def anatomies(model: PreTrainedModel) -> tuple[Anatomy, ...]:
    """What the heads of every attention module need, in call order.

    Raises:
        InputError: the model cannot be hooked, or some query, key, value or output was not found
            to be a plain linear map, or a norm mixes heads.
    """
    if any(isinstance(module, FalconAttention) for module in model.modules()):
        return tuple(_falcon(model))
    modules = dict(model.named_modules())
    return tuple(_found(site, one, modules) for site, one in sources(model).items())


def group_of(n_heads: int, n_kv_heads: int) -> Bool[Tensor, "kv_head head"]:
    """Which query heads each key-value head serves.

    Example:
        >>> group_of(4, 2).int().tolist()
        [[1, 1, 0, 0], [0, 0, 1, 1]]
    """
    size = n_heads // n_kv_heads
    return torch.arange(n_heads)[None] // size == torch.arange(n_kv_heads)[:, None]


def _found(site: Site, found: SiteSources, modules: Mapping[str, nn.Module]) -> Anatomy:
    if found.output is None:
        raise _cannot(site, f"its output: {found.no_output}")
    needs: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    for name, source in (("queries", found.q), ("keys", found.k), ("values", found.v)):
        if source.missing:
            raise _cannot(site, f"its {name}: {source.missing}")
        heads = group_of(site.n_heads, source.n_heads)
        for part in source.parts:
            label = part.input.projection
            known = needs.setdefault(label, _nobody(modules[label], site))
            readers = heads[part.places.cpu() // source.width].int()
            known.index_add_(0, part.columns.cpu(), readers)  # heads may share a column
        rows |= _norm_rows(site, source, heads, modules)
    rows |= _own_rows(site, modules[site.module])
    counted = {label: counts > 0 for label, counts in needs.items()}
    return Anatomy(site, counted, found.output, rows)


def _nobody(projection: nn.Module, site: Site) -> Tensor:
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, Tensor):
        raise _cannot(site, f"{type(projection).__name__} holds no plain weight matrix")
    width = weight.shape[0 if isinstance(projection, nn.Linear) else 1]
    return torch.zeros(width, site.n_heads, dtype=torch.int32)


def _norm_rows(
    site: Site, source: Source, heads: Tensor, modules: Mapping[str, nn.Module]
) -> dict[str, Tensor]:
    """Weights of the norms between projections and attention, where each head has its own."""
    found: dict[str, Tensor] = {}
    for norm in source.norms:
        for key, weight in modules[norm].named_parameters():
            if weight.shape[-1] == source.width and weight.ndim == 1:
                continue  # one weight per dimension, shared by the heads
            if weight.ndim == 2 and weight.shape == (source.n_heads, source.width):
                found[f"{norm}.{key}"] = heads
                continue
            raise _cannot(
                site,
                f"the norm {norm} acts on all heads together (its {key} has shape "
                f"{tuple(weight.shape)}), so what it divides by would change with the heads",
            )
    return found


def _own_rows(site: Site, module: nn.Module) -> dict[str, Tensor]:
    """What the module itself holds per query head, such as sink logits."""
    own = {**module._parameters, **module._buffers}
    return {
        f"{site.module}.{key}": torch.eye(site.n_heads, dtype=torch.bool)
        for key, value in own.items()
        if value is not None and value.ndim > 0 and value.shape[0] == site.n_heads
    }


def _falcon(model: PreTrainedModel) -> list[Anatomy]:
    """Falcon's fused projection: per group [q … q, k, v], per head [q, k, v], or [q … q, k, v]."""
    found = []
    for name, module in model.named_modules():
        if not isinstance(module, FalconAttention):
            continue
        n, d, shared = module.num_heads, module.head_dim, module.num_kv_heads
        grouped = module.new_decoder_architecture
        n_kv = shared if shared is not None and (grouped or module.multi_query) else n
        site = Site(name, "", len(found), n, n_kv, d, d, True)
        heads = group_of(n, n_kv)
        queries = torch.eye(n, dtype=torch.bool).unflatten(0, (n_kv, n // n_kv))
        blocks = torch.cat([queries, heads[:, None], heads[:, None]], 1).flatten(0, 1)
        needs = blocks.repeat_interleave(d, 0)
        found.append(Anatomy(site, {f"{name}.query_key_value": needs}, f"{name}.dense", {}))
    return found


def _cannot(site: Site, why: str) -> InputError:
    return InputError(
        f"heads of {site.label} cannot be cut out; {why}. Silence them instead, with zero(heads)."
    )
