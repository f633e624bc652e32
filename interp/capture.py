"""Run a model once and keep what its heads computed, under TransformerLens's names and shapes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .attach import AttentionCall, Edit, attach
from .autocast import narrowed
from .cache import Cache
from .capture_file import Spec, Text, load_cache, stream_cache
from .errors import InputError, shown
from .given_text import read_given
from .heads import Heads
from .hook_names import (
    Integers,
    NamesFilter,
    Wanted,
    choose_heads,
    choose_names,
    is_rotary,
    whole_numbers,
)
from .hook_values import Lengths, Reader
from .inputs import Inputs, Readable
from .sites import Site, attention_sites, check_model
from .watch import watch_calls

__all__ = ["Cache", "capture", "load_cache"]

_LOG = logging.getLogger("headatlas")
_LARGE = 256 << 20  # bytes
_IN_MEMORY = 4 << 30


def capture(
    model: nn.Module,
    tokenizer: Any,
    text_or_ids: str | Sequence[str] | Readable,
    *,
    names_filter: NamesFilter = None,
    layers: Integers | None = None,
    heads: Heads | None = None,
    rows: Integers | None = None,
    prepend_bos: bool | None = None,
    edits: Sequence[Edit] = (),
    decoder_ids: Tensor | None = None,
    device: torch.device | str | None = None,
    save: str | os.PathLike[str] | None = None,
    max_bytes: int | None = None,
) -> Cache:
    """Run `model` once and keep queries, keys, values, patterns and head outputs.

    Names are TransformerLens's, `blocks.{layer}.attn.hook_{kind}`, after `enc.`, `dec.` or `cross.`
    in an encoder-decoder model:

    | kind | shape | what |
    |---|---|---|
    | q, k | [batch, pos, head, d_head] | queries and keys, of a rotary model before rotation |
    | rot_q, rot_k | [batch, pos, head, d_head] | the same after RoPE, of a model with it |
    | v | [batch, pos, kv_head, d_value] | values |
    | attn_scores | [batch, head, query, key] | before softmax, −inf where masked |
    | pattern | [batch, head, query, key] | attention weights |
    | sink | [batch, head, query] | what a learned sink takes of each row: one more column |
    | z | [batch, pos, head, d_value] | pattern-weighted values, before W_O |
    | result | [batch, pos, head, d_model] | z W_O of each head, without bias |

    rot_q and rot_k, and q and k of a model without rotation, are as attention receives them: after
    QK-norm, and after any factor the model applies first (OPT's 1/√d). In a rotary model q and k
    are what the projections put out, before QK-norm and RoPE, in the order of dimensions that
    attention uses; where that is taken from is found by running the model (see
    `sources.sources`). Layers count attention layers only. Edits show in what comes after them:
    those of q and k in rot_q and rot_k, or in q and k where there is no rotation.

    k, rot_k and v have one head per key-value head, all of them whatever `heads` says. Where an
    edit gave single query heads keys or values of their own, rot_k or v (k without rotation) has
    one per query head.

    By default everything is kept that attention receives and gives: neither attn_scores, sink and
    result nor, in a rotary model, q and k. That takes, per layer and in the model's dtype, about
    `batch · n_heads · pos²` numbers for the pattern alone. A capture over 256 MiB says its size
    through the logger `headatlas` before it runs. To keep nothing and compute as the model runs,
    use `attach(model, observers=[…])`.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer; may be None when ids are passed.
        text_or_ids: a text, several texts, `Tokens`, a tokenizer's output of tensors, or token ids
            [batch, pos] without padding.
        names_filter: which names: a name, a kind ("pattern"), a collection of these, or a
            predicate on full names.
        layers: keep these layers only; negative ones count from the last.
        heads: keep these heads only, and only their layers: "L1H3", (1, 3), or "L1KV0" for the
            query heads of a group. It narrows what has a query head's axis: q, rot_q, attn_scores,
            pattern, z and result.
        rows: keep these query positions only, of everything but k, rot_k and v: columns of the
            ids, padding included; negative ones count from the last column, which must then be a
            token of every sequence. Patterns and scores are not computed for other rows.
        prepend_bos: whether texts start with a BOS token; None leaves it to the tokenizer.
        edits: changes to make on the way, as in `attach`.
        decoder_ids: what the decoder of an encoder-decoder model reads [batch, pos]; by default
            the encoder's tokens shifted right behind the start token.
        device: where to keep the tensors; None: where they are computed.
        save: write them to this file (safetensors) as they come, and return the cache that
            `load_cache(save)` gives: the tensors of one layer are in memory at a time. A file that
            is there is replaced when the run has ended well, and only then.
        max_bytes: refuse to keep more than this, in bytes; None: 4 GiB in memory, and in a file
            what the disk has left.

    Returns:
        The cache; its tensors carry no gradients.

    Raises:
        InputError: an unknown name, layer, head, row or device, too much to keep, a file that
            cannot be written, q or k that cannot be traced, or a model that cannot be hooked.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=2, n_head=2)).eval()
        >>> cache = capture(model, None, torch.tensor([[1, 2, 3]]), heads=["L1H0"])
        >>> cache["pattern", 1].shape, sorted(cache)[0]
        (torch.Size([1, 1, 3, 3]), 'blocks.1.attn.hook_k')

    Reference: Nanda and Bloom, TransformerLens (2022), for names and shapes.
    """
    if device is not None and save is not None:
        raise InputError("device applies to tensors in memory; with save they go to the file.")
    place = None if device is None else _usable(device)
    model = check_model(model)
    sites = attention_sites(model)
    inputs, strings = read_given(model, tokenizer, text_or_ids, prepend_bos, decoder_ids)
    chosen = None if heads is None else choose_heads(sites, heads)
    rotary = is_rotary(model)
    wanted = choose_names(sites, names_filter, chosen, rotary=rotary, layers=layers)
    own = None if inputs.decoder_ids is None else inputs.decoder_ids.shape[1]
    length = inputs.ids.shape[1]
    lengths = Lengths(len(inputs), length, length if own is None else own)
    places = _check_rows(rows, wanted, lengths, inputs)
    reader = Reader(model, wanted, rotary=rotary, rows=places)
    dtype = narrowed(model.dtype, inputs.ids.device)
    specs = [Spec(w.name, reader.shape(w, lengths), dtype) for w in wanted]
    where = "to memory" if save is None else f"to {str(save)!r}"
    _check_size(specs, _IN_MEMORY if max_bytes is None and save is None else max_bytes, where)
    if chosen is not None:  # those of layers that are not kept have no tensor to be found in
        kept_layers = {(w.site.stack, w.site.layer) for w in wanted}
        chosen = tuple(head for head in chosen if (head.site, head.layer) in kept_layers)
    text = Text(strings, inputs.ids, inputs.mask, chosen, places, own)
    with _keeping(save, specs, text, place) as (put, kept):
        watch = _watching(reader, wanted, put)
        hooks = attach(model, observers=[watch], edits=edits)
        with torch.no_grad(), hooks, watch_calls(reader.modules, reader.see):
            inputs.run(model)
    if save is not None:
        return load_cache(save)
    ordered = {w.name: kept[w.name] for w in wanted}
    return Cache(
        ordered, tokens=strings, token_ids=inputs.ids, mask=inputs.mask, heads=chosen, rows=places
    )


@contextmanager
def _keeping(
    path: str | os.PathLike[str] | None,
    specs: Sequence[Spec],
    text: Text,
    device: torch.device | None,
) -> Iterator[tuple[Callable[[str, Tensor], None], dict[str, Tensor]]]:
    """How to keep a tensor: in a file, or in the dictionary that comes along."""
    kept: dict[str, Tensor] = {}

    def put(name: str, tensor: Tensor) -> None:
        kept[name] = tensor.to(device)

    if path is None:
        yield put, kept
    else:
        with stream_cache(path, specs, text) as to_file:
            yield to_file, kept


def _watching(reader: Reader, wanted: Sequence[Wanted], put: Callable[[str, Tensor], None]):
    by_site: dict[Site, list[Wanted]] = {}
    for want in wanted:
        by_site.setdefault(want.site, []).append(want)

    def watch(call: AttentionCall) -> None:
        for want in by_site.get(call.site, ()):
            put(want.name, reader.value(call, want).detach())
        reader.forget()

    return watch


def _check_size(specs: Sequence[Spec], limit: int | None, where: str) -> None:
    """Refuse what is too large, and say so before what takes long."""
    n_bytes = sum(spec.n_bytes for spec in specs)
    if limit is not None and n_bytes > limit:
        raise InputError(
            f"these {len(specs)} tensors would take {n_bytes / 2**30:.1f} GiB, over max_bytes = "
            f"{limit / 2**30:.1f} GiB. Narrow them with names_filter=, layers=, heads= or rows=, "
            "shorten the text, write them to a file with save=, or raise max_bytes."
        )
    announce(n_bytes, f"capturing {len(specs)} tensors", where)


def announce(n_bytes: int, what: str, where: str = "to memory") -> None:
    """Say through the logger `headatlas` that something large is about to be kept.

    Nothing is said up to 256 MiB.

    Args:
        n_bytes: how much, in bytes.
        what: what is done, such as `"capturing 3 tensors"`.
        where: where it goes.

    Example:
        >>> announce(1 << 20, "capturing 1 tensor")
    """
    if n_bytes > _LARGE:
        _LOG.warning("%s, %.1f GiB, %s", what, n_bytes / 2**30, where)


def _usable(device: torch.device | str) -> torch.device:
    """The device, if tensors can be put there: found out before the model runs."""
    try:
        torch.empty(1, device=device)
        return torch.device(device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"device {device!r} cannot be used: {reason}. Give 'cpu' or 'cuda:0', say."
        ) from error


def _check_rows(
    rows: Integers | None, wanted: Sequence[Wanted], lengths: Lengths, inputs: Inputs
) -> tuple[int, ...] | None:
    """The rows asked for, counted from the front."""
    if rows is None:
        return None
    shortest = min(lengths.queries(want.site) for want in wanted)
    same = len({lengths.queries(want.site) for want in wanted}) == 1
    last = torch.stack([inputs.live(want.site, keys=False)[:, -1] for want in wanted]).all(0)
    chosen = []
    for row in whole_numbers(rows, "rows"):
        if not -shortest <= row < shortest:
            raise InputError(f"rows must be query positions 0 to {shortest - 1}; got {shown(row)}.")
        if row < 0 and not same:
            raise InputError(f"row {row} counts from the end, but the stacks differ in length.")
        if row < 0 and not bool(last.all()):
            short = int(last.int().argmin())
            raise InputError(
                f"row {row} counts from the last column, which is padding in sequence {short}. "
                "Name columns counted from 0, or pad on the left."
            )
        chosen.append(row % shortest)
    if not chosen:
        raise InputError("rows is empty. Name at least one position, or pass None for all.")
    return tuple(chosen)
