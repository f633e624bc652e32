"""What heads computed in another run, read from a capture or by running the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .attach import AttentionCall, attach
from .capture import Cache, announce
from .errors import InputError
from .heads import HeadId, KvHeadId
from .inputs import Inputs
from .named_heads import Named, locate
from .reference import Address, Reference
from .sites import Site, attention_sites

Heads = Sequence[HeadId | KvHeadId] | None

# what a cache calls each target, the likelier name first
_KINDS = {"q": ("rot_q", "q"), "k": ("rot_k", "k"), "scores": ("attn_scores",)}
_NAME = re.compile(r"(?:(enc|dec|cross)\.)?blocks\.(\d+)\.attn\.hook_(\w+)")

DOCUMENTS_AT_A_TIME = 8


def from_cache(
    cache: Cache, heads: Heads, target: str, positions: Sequence[int] | None = None
) -> Reference:
    """The values of a target that a capture kept, copied.

    Args:
        cache: the capture.
        heads: which heads are needed; None: all.
        target: a target of interventions.
        positions: which columns are needed; None: all.

    Raises:
        InputError: a named layer or head is not in it, or a needed column.
    """
    names, rotated = _names_of(cache, heads, target)
    rows = cache.rows if target not in ("k", "v") else None
    if rows is not None and positions is None:
        raise InputError(
            f"the cache holds rows {sorted(set(rows))} only. Name positions= among them, or "
            "capture without rows=."
        )
    announce(sum(map(cache.n_bytes, names.values())), f"copying {len(names)} tensors of a cache")
    tensors: dict[Address, Tensor] = {}
    held: dict[Address, tuple[int, ...]] = {}
    for address, name in names.items():
        values = cache[name].clone()  # what its holder does to it later has no effect here
        tensors[address] = values if target in ("scores", "pattern") else values.transpose(1, 2)
        if cache.heads is not None and target not in ("k", "v"):
            held[address] = tuple(h.head for h in cache.heads if (h.site, h.layer) == address)
    mask = None if any(site for site, _ in tensors) else cache.mask
    made = Reference(tensors, held, "the cache", rotated=rotated, mask=mask, columns=rows)
    made.check_rows(positions or ())
    _check_held(made, heads or (), shared=target in ("k", "v"))
    return made


def _check_held(made: Reference, heads: Sequence[HeadId | KvHeadId], *, shared: bool) -> None:
    """Refuse heads that a cache lacks, as far as that shows without the model.

    Args:
        made: its values.
        heads: which heads are needed.
        shared: whether axis 1 holds key-value heads.

    Raises:
        InputError: one of them is not in it.
    """
    for head in heads:
        address = (head.site, head.layer)
        size = made.tensors[address].shape[1]
        held = list(made.heads.get(address, range(size)))
        if isinstance(head, KvHeadId):
            lacks = shared and head.kv_head >= size
        else:
            lacks = not shared and head.head not in held
        if lacks:
            raise InputError(
                f"{made.origin} holds {'key-value ' if shared else ''}heads {held} of layer "
                f"{head.layer}, not {head}. Capture it too, or pass the model and its tokens."
            )


def _names_of(cache: Cache, heads: Heads, target: str) -> tuple[dict[Address, str], bool]:
    """Where a cache keeps a target, by stack and layer, and whether all of it is after RoPE."""
    layers = None if heads is None else {(head.site, head.layer) for head in heads}
    kinds = _KINDS.get(target, (target,))
    names: dict[Address, str] = {}
    found: dict[Address, str] = {}
    for name in cache:
        match = _NAME.fullmatch(name)
        if match is None or match[3] not in kinds:
            continue
        address = (match[1] or "", int(match[2]))
        if layers is not None and address not in layers:
            continue
        if found.get(address) != kinds[0]:
            names[address], found[address] = name, match[3]
    for stack, layer in sorted((layers or set()) - names.keys()):
        prefix = f"{stack}." if stack else ""
        raise InputError(
            f"the cache holds no {kinds[-1]} of {prefix}L{layer}. Capture it with "
            f"names_filter={kinds[0]!r}, or pass the model and its tokens."
        )
    if not names:
        raise InputError(f"the cache holds no {kinds[-1]}. Capture it with names_filter.")
    return names, all(kind == kinds[0] for kind in found.values())


def from_run(
    model: PreTrainedModel,
    inputs: Inputs,
    heads: Heads,
    target: str,
    *,
    donors: tuple[int, ...] | None = None,
) -> Reference:
    """The values of a target when the model reads `inputs`; more than 256 MiB are announced."""
    origin = f"a run of {len(inputs)} × {inputs.ids.shape[1]} tokens"
    _announce(model, inputs, heads, target, f"keeping {target} from {origin}", mean=False)
    pieces: dict[Address, list[Tensor]] = {}

    def keep(site: Site, values: Tensor, _start: int) -> None:
        pieces.setdefault((site.stack, site.layer), []).append(values.clone())

    held = _stream(model, inputs, heads, target, keep)
    tensors = {address: torch.cat(parts) for address, parts in pieces.items()}
    mask = inputs.mask if inputs.decoder_ids is None else None
    return Reference(tensors, held, origin, donors=donors, mask=mask)


def _announce(
    model: PreTrainedModel, inputs: Inputs, heads: Heads, target: str, what: str, *, mean: bool
) -> None:
    """Say how much the values of a target, or their mean, will take, before the model runs."""
    n_bytes = 0
    # scores are written out in at least float32
    size = 8 if mean else max(model.dtype.itemsize, 4 if target == "scores" else 1)
    for site, named in locate(heads, attention_sites(model)).items():
        queries, keys = (inputs.live(site, keys=which).shape[1] for which in (False, True))
        n_heads, n_rows = len(named.query), queries
        if target in ("k", "v"):
            n_heads, n_rows = site.n_kv_heads, keys
        width = {"q": site.d_head, "k": site.d_head}.get(target, site.d_value)
        if target in ("scores", "pattern"):
            width = keys
        n_bytes += (1 if mean else len(inputs)) * n_heads * n_rows * width * size
    announce(n_bytes, what)


def mean_of(
    model: PreTrainedModel,
    inputs: Inputs,
    heads: Heads,
    target: str,
    *,
    by_column: bool,
    include_bos: bool,
) -> Reference:
    """The mean of a target over documents, and over columns unless they are kept apart."""
    if by_column:
        _announce(model, inputs, heads, target, f"keeping the mean of {target}", mean=True)
    sums: dict[Address, Tensor] = {}
    counts: dict[Address, Tensor] = {}

    def add(site: Site, values: Tensor, start: int) -> None:
        live = inputs.rows(start, start + len(values)).live(site, keys=target in ("k", "v"))
        if not include_bos and site.stack in ("", "enc"):
            live = live & (live.cumsum(1) > 1)
        kept = values.double().masked_fill(~live[:, None, :, None], 0.0)
        over = (0,) if by_column else (0, 2)
        address = (site.stack, site.layer)
        sums[address] = sums.get(address, 0) + kept.sum(over, keepdim=True)
        count = live.sum(0) if by_column else live.sum()[None]
        counts[address] = counts.get(address, 0) + count

    held = _stream(model, inputs, heads, target, add)
    for address, count in counts.items():
        if bool((count == 0).any()):
            raise InputError(
                f"the reference set has no token to average at {int((count == 0).sum())} columns "
                f"of layer {address[1]}. Give longer documents."
            )
    tensors = {address: sums[address] / counts[address][:, None] for address in sums}
    origin = f"the mean over {len(inputs)} documents"
    mask = None
    if by_column and inputs.decoder_ids is None:
        if not bool(inputs.mask[:, 0].all()):
            raise InputError(
                "per_position=True needs documents that begin at column 0: under left padding a "
                "column is another position in each of them. Pad on the right."
            )
        mask = inputs.mask.any(0, keepdim=True)
    return Reference(tensors, held, origin, by_column=by_column, mask=mask)


def _stream(
    model: PreTrainedModel,
    inputs: Inputs,
    heads: Heads,
    target: str,
    see: Callable[[Site, Tensor, int], None],
) -> dict[Address, tuple[int, ...]]:
    """Run the model a few documents at a time; which query heads `see` gets, where not all."""
    chosen = locate(heads, attention_sites(model))
    start = 0

    def observe(call: AttentionCall) -> None:
        named = chosen.get(call.site)
        if named is not None:
            see(call.site, _value(call, target, named).detach(), start)

    with torch.no_grad(), attach(model, observers=[observe]):
        for start in range(0, len(inputs), DOCUMENTS_AT_A_TIME):
            inputs.rows(start, start + DOCUMENTS_AT_A_TIME).run(model)
    if target in ("k", "v"):
        return {}
    return {(site.stack, site.layer): named.query for site, named in chosen.items()}


def _value(call: AttentionCall, target: str, named: Named) -> Tensor:
    """A target's values [batch, head, query or key, width]; all heads of k and v."""
    if target == "pattern":
        return call.weights(named.query)
    if target in ("k", "v"):
        return getattr(call, target)
    whole = call.score_matrix if target == "scores" else getattr(call, target)
    return whole[:, list(named.query)]
