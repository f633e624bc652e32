"""Compare a model whose heads are cut out with the same model whose heads are silenced."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....interp.closeness import half_digits
from ....interp.forward import embedding_weight, undisturbed
from ....interp.interventions import intervene, zero
from ....interp.signals import reads_signal
from ....interp.survey_probe import is_encoder_decoder, probe_inputs
from .copies import comparison_twin
from .cut import Cut

_ROWS, _TOKENS, _PADDED, _DECODER_TOKENS = 3, 8, 3, 5


def limit_of(dtype: torch.dtype) -> float:
    """How far rounding may move the logits, relative to the largest: 3.5e-4 in float32.

    Half-precision models are compared in float32 too (`comparison_twin`), unless they are
    quantised. It is what `attention_sites` allows. Shorter sums round otherwise, and a deep model
    amplifies that: smollm2-135m moves by 2e-6 to 4e-5 when 27 to 243 of its 270 heads are cut out
    at random.
    """
    return half_digits(dtype)


@contextmanager
def silenced(model: PreTrainedModel, cuts: Sequence[Cut]) -> Iterator[None]:
    """Hold z = 0 for the heads that the cuts take out.

    In a model that can be hooked it is `zero(heads)`. In Falcon, which cannot, the inputs of the
    output projection are zeroed, which is the same.
    """
    if any(cut.stack or _hookable(model, cut) for cut in cuts):
        heads = [
            f"{cut.stack}.L{cut.layer}H{head}".removeprefix(".")
            for cut in cuts
            for head in range(cut.n_heads)
            if head not in cut.kept
        ]
        with intervene(model, zero(heads)):
            yield
        return
    handles = [
        model.get_submodule(cut.output).register_forward_pre_hook(_Zeroed(cut)) for cut in cuts
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hookable(model: nn.Module, cut: Cut) -> bool:
    return not hasattr(model.get_submodule(cut.module), "_split_heads")


class _Zeroed:
    """A forward pre-hook that zeroes the inputs of heads that a cut takes out."""

    def __init__(self, cut: Cut) -> None:
        self.keep = torch.zeros(cut.n_heads)
        self.keep[list(cut.kept)] = 1
        self.width = cut.d_value

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        z = inputs[0]
        return (z * self.keep.repeat_interleave(self.width).to(z), *inputs[1:])


def probe_logits(model: PreTrainedModel) -> Tensor:
    """Logits, or last hidden states, on a few tokens: unpadded, left-padded and right-padded.

    A model of images or sounds runs on noise. It runs in eval mode and stays as it was.
    """
    if reads_signal(model):
        inputs = probe_inputs(model)
        with undisturbed(model), torch.no_grad():
            return _values(model(**inputs)).double()
    ids, mask, more = probe(model)
    inputs: dict[str, Any] = {"input_ids": ids, **more}
    takes = inspect.signature(model.forward).parameters
    if "use_cache" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        inputs["use_cache"] = False
    with undisturbed(model), torch.no_grad():
        values = _values(model(**inputs, **({} if mask is None else {"attention_mask": mask})))
        if mask is not None and values.shape[:2] == mask.shape:
            values = values[mask.bool()]
        if not bool(torch.isfinite(values).all()):
            # transformers' own eager attention is NaN at padded queries in float64
            values = _values(model(**inputs))
    return values.double()


def _values(output: Any) -> Tensor:
    values = getattr(output, "logits", None)
    return output[0] if values is None else values


def probe(model: PreTrainedModel) -> tuple[Tensor, Tensor | None, Mapping[str, Tensor]]:
    """Token ids, their mask where the model takes one, and what a decoder reads."""
    takes = inspect.signature(model.forward).parameters
    table = embedding_weight(model)
    steps = torch.arange(_ROWS * _TOKENS, device=table.device)
    ids = ((table.shape[0] // 4 + 3 * steps) % table.shape[0]).reshape(_ROWS, _TOKENS)
    mask = torch.ones_like(ids)
    mask[1, :_PADDED], mask[2, -_PADDED:] = 0, 0
    more = {"decoder_input_ids": ids.flip(1)[:, :_DECODER_TOKENS]}
    return (
        ids,
        mask if "attention_mask" in takes else None,
        more if is_encoder_decoder(model) else {},
    )


def drift_of(model: PreTrainedModel, wanted: Tensor) -> float:
    """How far a model's logits are from those wanted, computed as `comparison_twin` says."""
    return distance(probe_logits(comparison_twin(model)), wanted)


def distance(found: Tensor, wanted: Tensor) -> float:
    """max |found − wanted| / max |wanted|."""
    scale = max(wanted.abs().max().item(), torch.finfo(wanted.dtype).tiny)
    return (found - wanted).abs().max().item() / scale
