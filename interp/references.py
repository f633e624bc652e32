"""What heads computed in another run: the values that patches, means and frozen patterns put in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attach import AttentionCall, attach
from .capture import Cache, announce
from .errors import InputError
from .forward import run_base
from .heads import HeadId, KvHeadId
from .inputs import Inputs
from .named_heads import Named, locate
from .sites import Site, attention_sites

Address = tuple[str, int]  # stack, layer
Heads = Sequence[HeadId | KvHeadId] | None

# what a cache calls each target, the likelier name first
_KINDS = {"q": ("rot_q", "q"), "k": ("rot_k", "k"), "scores": ("attn_scores",)}
_NAME = re.compile(r"(?:(enc|dec|cross)\.)?blocks\.(\d+)\.attn\.hook_(\w+)")

DOCUMENTS_AT_A_TIME = 8


@dataclass(frozen=True, eq=False, repr=False)
class Reference:
    """Values of one target in another run.

    Args:
        tensors: [#batch, head, #column, width] at each site, by stack and layer.
        heads: which query heads axis 1 holds, where it does not hold all heads.
        origin: where they come from, in words.
        by_column: axis 2 holds columns of the sequence; else one value for all.
        donors: sequence b of a batch gets row `donors[b]`; None: row b.
        rotated: whether q and k were taken after RoPE, in a model that has it.
        mask: where its sequences have tokens [#batch, column], in models of one stack; None: not
            known.
        columns: which columns axis 2 holds; None: 0, 1, ….

    Its repr says where the values come from, not what they are.
    """

    tensors: Mapping[Address, Tensor]
    heads: Mapping[Address, tuple[int, ...]]
    origin: str
    by_column: bool = True
    donors: tuple[int, ...] | None = None
    rotated: bool = True
    mask: Tensor | None = None
    columns: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"<values of {len(self.tensors)} layers from {self.origin}>"

    def columns_at(self, site: Site) -> Sequence[int]:
        """The columns that axis 2 holds at a site, in its order."""
        return range(self.at(site).shape[2]) if self.columns is None else self.columns

    def check_columns(self, site: Site, wanted: Sequence[int]) -> None:
        """Refuse columns that axis 2 does not hold at a site.

        Raises:
            InputError: it lacks one.
        """
        self._check_among(self.columns_at(site), wanted)

    def check_rows(self, wanted: Sequence[int]) -> None:
        """Refuse columns that are not among `columns`, where these are told.

        Raises:
            InputError: one is not.
        """
        if self.columns is not None:
            self._check_among(self.columns, wanted)

    def _check_among(self, held: Sequence[int], wanted: Sequence[int]) -> None:
        missing = [column for column in wanted if column not in held]
        if missing:
            has = f"0 to {len(held) - 1}" if isinstance(held, range) else str(sorted(set(held)))
            raise InputError(
                f"{self.origin} has columns {has}, not {missing[0]}. Name positions among them, or "
                "take the values from a run that has it."
            )

    def at(self, site: Site) -> Tensor:
        """The values at a site.

        Raises:
            InputError: there are none.
        """
        values = self.tensors.get((site.stack, site.layer))
        if values is None:
            raise InputError(f"{self.origin} holds nothing for {site.label}, {_address(site)}.")
        return values

    def index(self, site: Site, heads: Sequence[int], n_heads: int) -> list[int]:
        """Where axis 1 holds `heads`, which are indices among `n_heads` query or key-value heads.

        Raises:
            InputError: it does not hold them.
        """
        held = self.heads.get((site.stack, site.layer))
        size = self.at(site).shape[1]
        if held is not None:
            missing = [head for head in heads if head not in held]
            if missing:
                raise InputError(
                    f"{self.origin} holds heads {list(held)} of {_address(site)}, not {missing[0]}."
                )
            return [held.index(head) for head in heads]
        if size == n_heads:
            return list(heads)
        if n_heads == site.n_heads and size == site.n_kv_heads:
            return [head * size // n_heads for head in heads]
        advice = ""
        if size == site.n_heads:
            advice = (
                " It was captured while single query heads had keys or values of their own; name "
                "query heads, or capture under edits of whole key-value heads (L0KV1)."
            )
        raise InputError(
            f"{self.origin} holds {size} heads at {_address(site)}, where {n_heads} are needed."
            f"{advice}"
        )

    def take(
        self, site: Site, index: Sequence[int], columns: Sequence[int] | None, batch: int
    ) -> Tensor:
        """The values [#batch, chosen, #column, width] for some columns of a batch.

        With donors a batch may be a whole multiple of theirs: `generate` repeats each sequence for
        its beams, or for the continuations it returns, one behind the other.

        Raises:
            InputError: it holds another number of sequences.
        """
        values = self.at(site)[:, list(index)]
        if self.by_column and columns is not None:
            held = self.columns_at(site)
            values = values[:, :, [held.index(column) for column in columns]]
        if self.donors is None:
            self.check_batch(len(values), batch)
            return values
        if batch % len(self.donors):
            self.check_batch(len(self.donors), batch)
        copies = batch // len(self.donors)
        return values[[donor for donor in self.donors for _ in range(copies)]]

    def check_batch(self, held: int, batch: int) -> None:
        """Refuse to give `held` sequences to a batch of another size."""
        if held == batch or (held == 1 and self.donors is None):
            return
        shared = "" if self.donors is not None else ", or from one sequence, which serves all"
        raise InputError(
            f"{self.origin} holds {held} sequences; this run has {batch}. Take the values from as "
            f"many sequences as are run{shared}."
        )

    def check_padding(self, mask: Tensor, columns: Sequence[int] | None) -> None:
        """Refuse values of padding for tokens, and sequences that begin at different columns.

        Args:
            mask: where the run has tokens [batch, column].
            columns: the columns that get values; None: all.

        Raises:
            InputError: a token would get what was computed at padding, or at another position.
        """
        if self.mask is None or not self.by_column or self.donors is not None:
            return
        held = self.mask.to(mask.device)
        chosen = slice(None) if columns is None else [c for c in columns if c < held.shape[1]]
        begins = held.int().argmax(1) != mask.int().argmax(1)
        differs = (mask[:, chosen] & ~held[:, chosen]).any(1) | begins
        if bool(differs.any()):
            raise InputError(
                f"{self.origin} has padding where sequence {int(differs.int().argmax())} of this "
                "run has tokens, or its tokens begin at another column. Use texts of equal length "
                "padded on the same side, or positions at which both have tokens."
            )


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
            part = inputs.rows(start, start + DOCUMENTS_AT_A_TIME)
            run_base(model, part.ids, **part.options())
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


def fit_keys(values: Tensor, start: int, n_key: int, fill: float, what: str) -> Tensor:
    """The key columns start … start + n_key of the last axis, with `fill` beyond its end.

    Raises:
        InputError: a column that is left out does not hold `fill`.
    """
    outside = torch.cat([values[..., :start], values[..., start + n_key :]], -1)
    if outside.numel() and bool((outside != fill).any()):
        raise InputError(
            f"{what} attends to keys that this run does not have (it has columns {start} to "
            f"{start + n_key - 1}). Use a source that is no longer than the run."
        )
    piece = values[..., start : start + n_key]
    return nn.functional.pad(piece, (0, n_key - piece.shape[-1]), value=fill)


def _address(site: Site) -> str:
    return f"{site.prefix}L{site.layer}"
