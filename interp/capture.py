"""Run a model once and keep what its heads computed, under TransformerLens's names and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attach import AttentionCall, Edit, attach
from .errors import InputError
from .forward import check_ids, embedding_weight, run_base
from .heads import HeadId
from .hook_names import (
    PER_HEAD,
    NamesFilter,
    Wanted,
    choose_heads,
    choose_names,
    full_name,
    is_rotary,
    what_exists,
)
from .pattern import masked_scores
from .projections import head_matrices, output_projections
from .sites import Site, attention_sites
from .survey import is_encoder_decoder
from .tokens import Tokens, tokenize, visible_all


class Cache(Mapping[str, Tensor]):
    """What `capture` kept: a read-only mapping from names to tensors.

    `cache["blocks.5.attn.hook_pattern"]`, or short `cache["pattern", 5]`; in an encoder-decoder
    model `cache["enc.blocks.5.attn.hook_pattern"]` or `cache["pattern", 5, "enc"]`.

    Attributes:
        tokens: the visible strings of each sequence.
        token_ids: token ids [batch, pos] (the encoder's, in an encoder-decoder model).
        mask: True where a token stands, False at padding [batch, pos].
        heads: the heads it was narrowed to, or None for all. Tensors with a head axis then hold
            only a layer's heads among these, in this order; k and v keep all their heads.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        *,
        tokens: list[list[str]],
        token_ids: Int[Tensor, "batch pos"],
        mask: Bool[Tensor, "batch pos"],
        heads: tuple[HeadId, ...] | None,
    ) -> None:
        self._tensors = tensors
        self.tokens, self.token_ids, self.mask, self.heads = tokens, token_ids, mask, heads

    def __getitem__(self, name: str | tuple[Any, ...]) -> Tensor:
        full = name if isinstance(name, str) else full_name(*name)
        if full not in self._tensors:
            raise InputError(f"{full!r} was not captured. {what_exists(self._tensors, full)}")
        return self._tensors[full]

    def __contains__(self, name: object) -> bool:
        if isinstance(name, tuple):
            name = full_name(*name)
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Cache of {len(self)} tensors: {', '.join(list(self)[:3])}, …"


def capture(
    model: PreTrainedModel,
    tokenizer: Any,
    text_or_ids: str | Sequence[str] | Tensor | Tokens,
    *,
    names_filter: NamesFilter = None,
    heads: Sequence[str | HeadId] | None = None,
    prepend_bos: bool | None = None,
    edits: Sequence[Edit] = (),
    decoder_ids: Tensor | None = None,
    max_bytes: int = 4 << 30,
) -> Cache:
    """Run `model` once and keep queries, keys, values, patterns and head outputs.

    Names are TransformerLens's, `blocks.{layer}.attn.hook_{kind}`, after `enc.`, `dec.` or `cross.`
    in an encoder-decoder model:

    | kind | shape | what |
    |---|---|---|
    | q, k | [batch, pos, head, d_head] | queries and keys of a model without rotary positions |
    | rot_q, rot_k | [batch, pos, head, d_head] | the same after RoPE, of a model with them |
    | v | [batch, pos, kv_head, d_value] | values |
    | attn_scores | [batch, head, query, key] | before softmax, −inf where masked |
    | pattern | [batch, head, query, key] | attention weights |
    | z | [batch, pos, head, d_value] | pattern-weighted values, before W_O |
    | result | [batch, pos, head, d_model] | z W_O of each head, without bias |

    q and k are kept as attention receives them: after QK-norm, and after any factor the model
    applies first (OPT's 1/√d). In a rotary model that is after rotation, so hook_q and hook_k,
    which TransformerLens takes before it, do not exist here: ask for hook_rot_q and hook_rot_k.
    k, rot_k and v have one head per key-value head. Layers count attention layers only.

    By default everything except attn_scores and result is kept, which takes, per layer and in the
    model's dtype, about `batch · n_heads · pos²` numbers for the pattern alone.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer; may be None when ids are passed.
        text_or_ids: a text, several texts, `Tokens`, or token ids [batch, pos] without padding.
        names_filter: which names: a name, a kind ("pattern"), a collection of these, or a
            predicate on full names.
        heads: keep these heads only, and only their layers.
        prepend_bos: whether texts start with a BOS token; None leaves it to the tokenizer.
        edits: changes to make on the way, as in `attach`.
        decoder_ids: what the decoder of an encoder-decoder model reads [batch, pos]; by default
            the encoder's tokens shifted right behind the start token.
        max_bytes: refuse to keep more than this, in bytes.

    Returns:
        The cache; its tensors carry no gradients.

    Raises:
        InputError: an unknown name or head, too much to keep, or a model that cannot be hooked.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=2, n_head=2)).eval()
        >>> cache = capture(model, None, torch.tensor([[1, 2, 3]]), heads=["L1H0"])
        >>> cache["pattern", 1].shape, sorted(cache)[0]
        (torch.Size([1, 1, 3, 3]), 'blocks.1.attn.hook_k')

    Reference: Nanda and Bloom, TransformerLens (2022), for names and shapes.
    """
    sites = attention_sites(model)
    ids, mask, strings = _read_text(model, tokenizer, text_or_ids, prepend_bos)
    inputs: dict[str, Any] = {}
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = _decoder_ids(model, ids, decoder_ids)
    elif decoder_ids is not None:
        raise InputError(f"{type(model).__name__} has no decoder to read decoder_ids.")
    chosen = None if heads is None else choose_heads(sites, heads)
    wanted = choose_names(sites, names_filter, chosen, rotary=is_rotary(model))
    lengths = (ids.shape[0], ids.shape[1], inputs.get("decoder_input_ids", ids).shape[1])
    _check_size(model, wanted, lengths, max_bytes)
    projections = output_projections(model) if any(w.kind == "result" for w in wanted) else {}
    kept: dict[str, Tensor] = {}
    watch = partial(_keep, kept=kept, wanted=wanted, projections=projections)
    with torch.no_grad(), attach(model, observers=[watch], edits=edits):
        run_base(model, ids, None if bool(mask.all()) else mask, **inputs)
    ordered = {w.name: kept[w.name] for w in wanted}
    return Cache(ordered, tokens=strings, token_ids=ids, mask=mask, heads=chosen)


def _keep(
    call: AttentionCall,
    *,
    kept: dict[str, Tensor],
    wanted: Sequence[Wanted],
    projections: Mapping[Site, nn.Module],
) -> None:
    for want in wanted:
        if want.site == call.site:
            kept[want.name] = _value(call, want, projections).detach()


def _value(call: AttentionCall, want: Wanted, projections: Mapping[Site, nn.Module]) -> Tensor:
    pick = slice(None) if want.heads is None else list(want.heads)
    kind = want.kind.removeprefix("rot_")
    if kind == "pattern":
        return call.weights(want.heads)
    if kind == "attn_scores":
        return masked_scores(call.q, call.k, call.mask, call.scores)[:, pick].to(call.q.dtype)
    if kind == "result":
        if want.site not in projections:
            raise InputError(
                f"hook_result does not exist at {want.site.module}: no plain linear map takes its "
                "z, so heads have no separate contribution. Leave result out of names_filter."
            )
        matrices = head_matrices(projections[want.site], want.site)
        return torch.einsum("bhpv,hvd->bphd", call.z[:, pick], matrices[pick])
    tensor = getattr(call, kind).transpose(1, 2)
    return (tensor[:, :, pick] if want.kind in PER_HEAD else tensor).contiguous()


def _check_size(
    model: PreTrainedModel, wanted: Sequence[Wanted], lengths: tuple[int, int, int], limit: int
) -> None:
    batch, n_enc, n_dec = lengths
    numbers = 0
    for want in wanted:
        site = want.site
        n_query = n_enc if site.stack in ("", "enc") else n_dec
        n_key = n_dec if site.stack == "dec" else n_enc
        n_heads = site.n_heads if want.heads is None else len(want.heads)
        size = {
            "pattern": n_heads * n_query * n_key,
            "attn_scores": n_heads * n_query * n_key,
            "result": n_heads * n_query * embedding_weight(model).shape[1],
            "z": n_heads * n_query * site.d_value,
            "v": site.n_kv_heads * n_key * site.d_value,
        }
        q_or_k = n_heads * n_query if want.kind.endswith("q") else site.n_kv_heads * n_key
        numbers += batch * size.get(want.kind, q_or_k * site.d_head)
    n_bytes = numbers * model.dtype.itemsize
    if n_bytes > limit:
        raise InputError(
            f"these {len(wanted)} tensors would take {n_bytes / 2**30:.1f} GiB, over max_bytes = "
            f"{limit / 2**30:.1f} GiB. Narrow them with names_filter= or heads=, shorten the text, "
            "or raise max_bytes."
        )


def _decoder_ids(model: PreTrainedModel, ids: Tensor, given: Tensor | None) -> Tensor:
    if given is not None:
        if given.ndim != 2 or given.shape[0] != ids.shape[0]:
            raise InputError(
                f"decoder_ids must be [batch, pos] with batch {ids.shape[0]}; got "
                f"{tuple(given.shape)}."
            )
        return given.to(ids.device)
    start = getattr(model.config, "decoder_start_token_id", None)
    if start is None:
        raise InputError("the model's config names no decoder_start_token_id. Pass decoder_ids.")
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)


def _read_text(
    model: PreTrainedModel, tokenizer: Any, text: Any, prepend_bos: bool | None
) -> tuple[Tensor, Tensor, list[list[str]]]:
    """Ids and mask [batch, pos] on the model's device, and the visible string of each token."""
    weight = embedding_weight(model)
    if not isinstance(text, Tensor | Tokens):
        if tokenizer is None:
            raise InputError("a text needs a tokenizer. Pass one, or token ids [batch, pos].")
        text = tokenize(tokenizer, text, prepend_bos=prepend_bos)
    elif prepend_bos is not None:
        raise InputError("prepend_bos applies to texts; tokens are run as they are.")
    if isinstance(text, Tokens):
        strings = [visible_all(row) for row in text.strings]
        return text.ids.to(weight.device), text.mask.to(weight.device), strings
    if text.ndim != 2 or text.is_floating_point() or text.numel() == 0:
        raise InputError(
            f"token ids must be integers [batch, pos]; got {text.dtype} {tuple(text.shape)}."
        )
    ids = text.to(weight.device, torch.int64)
    check_ids(model, ids, "token ids")
    strings = [_strings(tokenizer, row) for row in ids.tolist()]
    return ids, torch.ones_like(ids, dtype=torch.bool), strings


def _strings(tokenizer: Any, ids: list[int]) -> list[str]:
    if tokenizer is None:
        return [str(i) for i in ids]
    tokens = zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
    return visible_all([f"<id {i}>" if token is None else str(token) for i, token in tokens])
