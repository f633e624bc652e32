"""What a survey runs a model on, a few tokens or noise, and what it compares."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .errors import InputError, one_line
from .forward import embedding_weight, models_inside, undisturbed
from .signals import probe_signal, reads_signal, signal_options

PROBE_TOKENS = 8
PROBE_BATCH = 2
DECODER_TOKENS = 5  # fewer, so that cross-attention shows by its shape


def probe_inputs(model: PreTrainedModel) -> dict[str, Any]:
    """Two short sequences, the second with left padding where the model takes a mask; or noise."""
    if reads_signal(model):
        return _probe_noise(model)
    if model.main_input_name != "input_ids":
        raise InputError(
            f"{type(model).__name__} reads {model.main_input_name}, neither text nor images nor "
            "sounds. Pass a model that reads input_ids, pixel_values, input_features or "
            "input_values."
        )
    takes = inspect.signature(model.forward).parameters
    vocab = embedding_weight(model).shape[0]
    device = embedding_weight(model).device
    ids = (vocab // 4 + 3 * torch.arange(2 * PROBE_TOKENS, device=device)) % vocab
    inputs: dict[str, Any] = {"input_ids": ids.reshape(2, PROBE_TOKENS)}
    if "attention_mask" in takes:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][1, :2] = 0
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = inputs["input_ids"].flip(1)[:, :DECODER_TOKENS]
    if "use_cache" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        inputs["use_cache"] = False
    return inputs


def _probe_noise(model: PreTrainedModel) -> dict[str, Any]:
    """Two images or sounds of noise, and what a decoder reads beside them."""
    more: dict[str, Any] = {}
    if is_encoder_decoder(model):
        vocab = embedding_weight(model)
        ids = torch.arange(PROBE_BATCH * DECODER_TOKENS, device=vocab.device) % vocab.shape[0]
        more["decoder_input_ids"] = ids.reshape(PROBE_BATCH, DECODER_TOKENS)
    with undisturbed(model), torch.no_grad():
        signal = probe_signal(model, PROBE_BATCH, more)
    return signal_options(model, signal) | more


def output_of(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """The model's logits, or its last hidden state, where tokens stand."""
    output = model(**inputs)
    values = getattr(output, "logits", None)
    values = output[0] if values is None else values
    if not isinstance(values, Tensor) or not values.is_floating_point():
        raise InputError(
            f"{type(model).__name__} gives neither logits nor hidden states first, so hooked and "
            "own outputs cannot be compared."
        )
    mask = inputs.get("attention_mask")
    if mask is not None and values.dim() >= 3 and values.shape[:2] == mask.shape:
        values = values[mask.bool()]
    return values


def run_alone(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """The output before any hook; drops padding from `inputs` where the model cannot take it."""
    try:
        own = output_of(model, inputs)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} could not run on {PROBE_TOKENS} token ids, before any hook: "
            f"{type(error).__name__}: {one_line(error)}.{models_inside(model)}"
        ) from error
    if "attention_mask" in inputs and not bool(torch.isfinite(own).all()):
        # transformers' own eager attention is NaN at padded queries in float64
        del inputs["attention_mask"]
        return run_alone(model, inputs)
    if not bool(torch.isfinite(own).all()):
        raise InputError(
            f"{type(model).__name__} gives outputs that are not finite, before any hook. "
            "Load it in a wider dtype, such as float32."
        )
    return own


def is_encoder_decoder(model: PreTrainedModel) -> bool:
    """Whether `model` runs an encoder and a decoder, as opposed to either of them alone."""
    takes = inspect.signature(model.forward).parameters
    return bool(model.config.is_encoder_decoder) and "decoder_input_ids" in takes
