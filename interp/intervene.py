"""Apply interventions: in one forward pass, or to all that happens inside a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .attach import AttentionCall, attach
from .errors import InputError
from .forward import undisturbed
from .inputs import Readable, read_inputs
from .intervention import Intervention, edits_for
from .intervention_layers import holds_layers, layer_edits, shape_of
from .layers.hooks import attach_layers
from .sites import Site, check_model

Interventions = Intervention | Sequence[Any]  # a list may hold lists


def run(
    model: nn.Module,
    tokens: Readable,
    interventions: Interventions = (),
    *,
    decoder_ids: Tensor | None = None,
    grad: bool = False,
) -> Any:
    """Run `model` on `tokens` with some heads changed, and return what it returns.

    It runs in eval mode, without a KV cache, and leaves the model as it was. A sequence gets the
    same logits whichever side it is padded on.

    Args:
        model: a transformers model, or a `HookedAttention` or a module that holds some.
        tokens: `Tokens`, a tokenizer's output of tensors (input_ids and attention_mask), or token
            ids [batch, pos] without padding; for `HookedAttention` what it reads, states
            [batch, pos, d_model].
        interventions: one intervention, or a list of them (which may hold lists).
        decoder_ids: what the decoder of an encoder-decoder model reads [batch, pos]; by default
            the encoder's tokens shifted right behind the start token.
        grad: whether to record gradients, to the model's weights and to factors and vectors. Not
            for layers wrapped in `torch.utils.checkpoint`: the backward pass would run them again
            without the interventions. The reentrant kind is refused, the other cannot be seen.

    Returns:
        The model's own output object, with `logits` where its class has a head; of
        `HookedAttention` what it returns.

    Raises:
        InputError: before anything runs: an unknown head, a position beyond the sequence, values of
            the wrong shape or of another number of sequences or columns; with `grad`, attention
            that runs where gradients are off.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> import torch
        >>> from headatlas.interp.interventions import zero
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> run(model, torch.tensor([[1, 2, 3]]), zero("L0H1", positions=[2])).logits.shape
        torch.Size([1, 3, 50])
    """
    watch = [_refuse_hidden] if grad and torch.is_grad_enabled() else []
    if holds_layers(model):
        if decoder_ids is not None:
            raise InputError(f"{type(model).__name__} has no decoder to read decoder_ids.")
        edits = layer_edits(model, _flat(interventions), shape_of(tokens))
        recording = nullcontext() if grad else torch.no_grad()
        with attach_layers(model, observers=watch, edits=edits), undisturbed(model), recording:
            return model(tokens)
    known = check_model(model)
    inputs = read_inputs(known, tokens, decoder_ids)
    with attach(known, observers=watch, edits=edits_for(known, _flat(interventions), inputs)):
        return inputs.run(known, whole=True, grad=grad)


@contextmanager
def intervene(model: nn.Module, interventions: Interventions) -> Iterator[tuple[Site, ...]]:
    """Hold interventions over a block: any forward pass of `model` inside it, `generate` too.

    In cached decoding positions stay columns of the whole sequence: an intervention on a query's
    column acts in the step that computes it, one on a key's column in every step that reads it.
    Values from another run (`patch`, `freeze`, `resample`, `mean` per position) act at the columns
    that run had; later ones are left alone. Blocks nest, the outer one's interventions first, and
    each thread has its own. In `HookedAttention.decode` positions are columns of the sequence too.
    What runs inside is the caller's own call, its padding included: give `generate` the
    attention_mask (`tokens.mask`), without which it takes every pad_token_id of the text, a BOS of
    that number too, for padding.

    Do not use it with layers wrapped in `torch.utils.checkpoint`, which runs them again in the
    backward pass, without the interventions: gradients would be silently wrong.

    Args:
        model: a transformers model, or a `HookedAttention` or a module that holds some.
        interventions: one intervention, or a list of them (which may hold lists).

    Returns:
        A context manager that yields the model's attention sites.

    Raises:
        InputError: on entry: an unknown head, or values of the wrong width; in a forward pass:
            another number of sequences than the values have.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> import torch
        >>> from headatlas.interp.interventions import gate
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> with intervene(model, gate("L0H1", 0.5)):
        ...     ids = torch.tensor([[1, 2, 3]])
        ...     ids = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2,
        ...         do_sample=False, pad_token_id=0)
        >>> ids.shape
        torch.Size([1, 5])
    """
    if holds_layers(model):
        with attach_layers(model, edits=layer_edits(model, _flat(interventions))) as sites:
            yield sites
        return
    known = check_model(model)
    # a bridge goes in as it is, since the caller runs it
    with attach(model, edits=edits_for(known, _flat(interventions))) as sites:
        yield sites


def _refuse_hidden(call: AttentionCall) -> None:
    """Refuse attention that runs without gradients where they were asked for."""
    if not torch.is_grad_enabled():
        raise InputError(
            f"grad=True, but gradients are off where {call.site.label} attends: a "
            "part of the model runs under no_grad, or in torch.utils.checkpoint, whose backward "
            "pass would run it again without the interventions. Take that off first."
        )


def _flat(interventions: Any) -> Iterator[Intervention]:
    if isinstance(interventions, Intervention):
        yield interventions
        return
    if not isinstance(interventions, list | tuple):
        raise InputError(
            f"expected an Intervention or a list of them; got {type(interventions).__name__}."
        )
    for entry in interventions:
        yield from _flat(entry)
