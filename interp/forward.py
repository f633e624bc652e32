"""Run a model for what happens inside it: in eval mode, without its head, on inputs it can take."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from .closeness import half_digits
from .errors import InputError
from .frames import unobserved
from .tokens import context_length


def run_base(
    model: PreTrainedModel,
    input_ids: Int[Tensor, "batch pos"],
    attention_mask: Int[Tensor, "batch key"] | Bool[Tensor, "batch key"] | None = None,
    *,
    grad: bool = False,
    **kwargs: Any,
) -> Any:
    """Run the model without its LM head, where its class has a base model to run alone.

    It runs in eval mode, without dropout, and leaves training flags and random state alone. A
    sequence gets the same hidden states whichever side it is padded on: positions count from the
    first token of each sequence, if need be through `position_ids`.

    Args:
        model: a transformers model.
        input_ids: token ids.
        attention_mask: 1 (True) where a token stands, 0 at padding; None means no padding.
        grad: whether to record gradients.
        **kwargs: passed on; `use_cache` is off unless given. An encoder-decoder model needs
            `decoder_input_ids`.

    Returns:
        The base model's output object: hidden states, not logits.

    Raises:
        InputError: ids outside the vocabulary, more tokens than the model has positions for, or
            left padding where the model cannot be told its positions.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> run_base(model, torch.tensor([[1, 2, 3]])).last_hidden_state.shape
        torch.Size([1, 3, 8])
    """
    return _run(model, model.base_model, input_ids, attention_mask, grad=grad, **kwargs)


def run_whole(
    model: PreTrainedModel,
    input_ids: Int[Tensor, "batch pos"],
    attention_mask: Int[Tensor, "batch key"] | Bool[Tensor, "batch key"] | None = None,
    *,
    grad: bool = False,
    **kwargs: Any,
) -> Any:
    """The model's own output, LM head included; otherwise as `run_base`.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> run_whole(model, torch.tensor([[1, 2, 3]])).logits.shape
        torch.Size([1, 3, 50])
    """
    return _run(model, model, input_ids, attention_mask, grad=grad, **kwargs)


def _run(
    model: PreTrainedModel,
    part: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    *,
    grad: bool,
    **kwargs: Any,
) -> Any:
    check_ids(model, input_ids, "input_ids")
    if isinstance(kwargs.get("decoder_input_ids"), Tensor):
        check_ids(model, kwargs["decoder_input_ids"], "decoder_input_ids")
    takes = inspect.signature(part.forward).parameters
    if "use_cache" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        kwargs.setdefault("use_cache", False)
    if attention_mask is not None:
        kwargs["attention_mask"] = attention_mask.to(input_ids.dtype)
        if kwargs.get("position_ids") is None and _is_left_padded(attention_mask):
            input_ids, kwargs = left_padding(model).prepare(input_ids, kwargs)
    _check_length(model, input_ids, kwargs)
    with undisturbed(part), nullcontext() if grad else torch.no_grad():
        return part(input_ids=input_ids, **kwargs)


@dataclass(frozen=True)
class _Held:
    """A module held in eval mode, the flag to give it back, and the blocks that hold it."""

    module: nn.Module
    training: bool
    by: set[object]


_HELD: dict[int, _Held] = {}
_LOCK = threading.Lock()


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run `model` in eval mode inside the block; then restore training flags and random state.

    Each module gets its own flag back, also after an exception. Blocks may overlap, in one thread
    or in several: flags return when the last one ends.

    Example:
        >>> model = nn.Sequential(nn.Dropout(0.5)).train()
        >>> with undisturbed(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    modules, block = list(model.modules()), object()
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    try:
        with _LOCK:
            for module in modules:
                _HELD.setdefault(id(module), _Held(module, module.training, set())).by.add(block)
                module.training = False
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        try:  # right here: a request to stop may come at the start of any function
            _give_back(modules, block)
        except BaseException:
            _give_back(modules, block)
            raise


def is_undisturbed(module: nn.Module) -> bool:
    """Whether some block of `undisturbed` holds the module in eval mode."""
    with _LOCK:
        return id(module) in _HELD


def _give_back(modules: list[nn.Module], block: object) -> None:
    with _LOCK:
        for module in modules:
            hold = _HELD.get(id(module))
            if hold is None:
                continue
            if hold.by <= {block}:  # none at all where a request to stop came as it was entered
                module.training = hold.training
                del _HELD[id(module)]
            else:
                hold.by.discard(block)


def embedding_weight(model: PreTrainedModel) -> Tensor:
    """The token embeddings [vocab, d_model]: where ids must be, how many there are."""
    try:
        table = model.get_input_embeddings()
        if isinstance(table, nn.ModuleList) and len(table) == 1:  # of one codebook (MusicGen)
            table = table[0]
        weight = getattr(table, "weight", None)
    except NotImplementedError:  # models of several modalities name no single table
        weight = None
    if not isinstance(weight, Tensor):
        reads = (
            "" if model.main_input_name == "input_ids" else f"reads {model.main_input_name} and "
        )
        raise InputError(
            f"{type(model).__name__} {reads}has no token embeddings to read ids with."
            f"{models_inside(model)}"
        )
    return weight


def models_inside(model: PreTrainedModel) -> str:
    """A sentence on the models that one of several modalities is made of; empty for others."""
    inside = [name for name, part in model.named_children() if isinstance(part, PreTrainedModel)]
    if len(inside) < 2:
        return ""
    return f" It is made of models that can be passed alone: {', '.join(inside)}."


def check_ids(model: PreTrainedModel, ids: Tensor, name: str) -> None:
    """Refuse ids outside the model's vocabulary; `name` is what the message calls them."""
    vocab = embedding_weight(model).shape[0]
    if ids.numel() == 0:
        raise InputError(f"{name} holds no tokens: its shape is {tuple(ids.shape)}.")
    low, high = (int(x) for x in torch.aminmax(ids))
    if low < 0 or high >= vocab:
        raise InputError(
            f"{name} must lie in 0..{vocab - 1}; got {low} to {high}. "
            "Were they made by this model's tokenizer?"
        )


def _check_length(model: PreTrainedModel, ids: Tensor, kwargs: dict[str, Any]) -> None:
    """Refuse more positions than the model has a table for; rotary ones have no end."""
    context = context_length(model)
    if context is None or not _has_position_table(model, context):
        return
    positions, decoder = kwargs.get("position_ids"), kwargs.get("decoder_input_ids")
    wanted = ids.shape[1] if positions is None else int(positions.max()) + 1
    if isinstance(decoder, Tensor):
        wanted = max(wanted, decoder.shape[1])
    if wanted > context:
        raise InputError(
            f"{type(model).__name__} has {context} positions, but a sequence takes {wanted}. "
            "Cut the text, or run it in windows."
        )


def _has_position_table(model: PreTrainedModel, context: int) -> bool:
    """Whether some embedding has a row per position; a few models reserve rows before the first."""
    tokens = embedding_weight(model)
    return any(
        isinstance(module, nn.Embedding)
        and module.weight is not tokens
        and context <= module.num_embeddings <= context + 8
        for module in model.modules()
    )


def _is_left_padded(mask: Tensor) -> bool:
    present = mask.bool()
    return bool((~present[:, 0] & present.any(1)).any())


@dataclass(frozen=True)
class _Way:
    """How to run a left-padded batch: position_ids, a filler for padded ids, or nothing."""

    positions: bool = False
    filler: int | None = None

    def prepare(self, ids: Tensor, kwargs: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        mask = kwargs["attention_mask"]
        if self.positions:
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            kwargs = {**kwargs, "position_ids": places}
        if self.filler is not None:
            ids = ids.masked_fill(mask[:, -ids.shape[1] :] == 0, self.filler)
        return ids, kwargs


_WAYS: WeakKeyDictionary[nn.Module, _Way] = WeakKeyDictionary()
_PAD, _LIVE = 3, 6  # padding and tokens of the sequence that left_padding tries


def left_padding(model: PreTrainedModel) -> _Way:
    """The first way in which left padding changes no hidden state, found by trying, once a model.

    Models count positions in different manners: rotary and relative ones need no help, tables
    mostly take `position_ids`, and some count the ids that are not padding.
    """
    base = model.base_model
    known = _WAYS.get(base)
    if known is not None:
        return known
    ways = [_Way()]
    tokens = embedding_weight(model)
    tables = [m for m in base.modules() if isinstance(m, nn.Embedding) and m.weight is not tokens]
    ways[:0] = [_Way(filler=t.padding_idx) for t in tables if t.padding_idx is not None]
    if "position_ids" in inspect.signature(base.forward).parameters:
        ways.insert(0, _Way(positions=True))
    with undisturbed(base), unobserved(base), torch.no_grad():
        for way in ways:
            if _is_exact(model, way):
                _WAYS[base] = way
                return way
    raise InputError(
        f"{type(model).__name__} gives other results for left-padded sequences, and its positions "
        "cannot be passed to it. Pad on the right."
    )


def _is_exact(model: PreTrainedModel, way: _Way) -> bool:
    """Whether a left-padded sequence has the hidden states it has alone."""
    base, tokens = model.base_model, embedding_weight(model)
    live = max(1, min(_LIVE, (context_length(model) or _PAD + _LIVE) - _PAD))
    ids = torch.arange(_PAD + live, device=tokens.device)[None] * 3 + tokens.shape[0] // 4
    ids = ids % tokens.shape[0]
    mask = torch.ones_like(ids)
    mask[:, :_PAD] = 0
    inputs: dict[str, Any] = {"use_cache": False}
    if "decoder_input_ids" in inspect.signature(base.forward).parameters:
        inputs["decoder_input_ids"] = ids[:, :2]
    # a batch of two, because some models take a shortcut for one sequence
    alone = base(input_ids=ids[:, _PAD:], attention_mask=mask[:, _PAD:], **inputs)[0][0]
    pair = torch.cat([torch.ones_like(mask), mask])
    inputs = {key: v.expand(2, -1) if isinstance(v, Tensor) else v for key, v in inputs.items()}
    both, inputs = way.prepare(ids.expand(2, -1), {**inputs, "attention_mask": pair})
    padded = base(input_ids=both, **inputs)[0][1, -len(alone) :]
    limit = half_digits(alone.dtype)
    return bool((padded - alone).abs().max() <= limit * alone.abs().max())
