"""What cutting heads out saves: weights, cache, arithmetic, measured time."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, EncoderDecoderCache

from ....interp.errors import InputError, shown
from ....interp.forward import embedding_weight, undisturbed
from ....interp.sites import check_model
from ....interp.survey import is_encoder_decoder
from ....interp.tokens import context_length
from ...cost.read import config_shapes
from ...cost.shapes import AttentionShapes, LayerShape
from ...cost.totals import prefill_cost
from .cut import Cut
from .pruning import Pruning, pruning_of

_CACHED = 4  # tokens run to see what a cache keeps


@dataclass(frozen=True, eq=False)
class RemovalReport:
    """A model before and after heads were cut out of it.

    Attributes:
        frame: rows of quantity, before, after and ratio (after / before); NaN where a quantity
            does not exist. parameters counts tied weights once; kv_bytes_per_token is that of the
            cache the model really fills, in its dtype, over all layers; attention_flops is the
            attention's share of a forward pass by `circuits.cost`; prefill_ms and decode_ms are
            medians, taken in turns.
        seq_len: tokens of the forward pass, and the context of the decoding step.
        repeats: runs behind each median.
        notes: what must be known to read it.
    """

    frame: pd.DataFrame
    seq_len: int
    repeats: int
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines = [self.frame.to_string(index=False), *self.notes]
        return "\n".join(lines)


def removal_report(
    model: PreTrainedModel, pruned: PreTrainedModel, *, seq_len: int = 128, repeats: int = 7
) -> RemovalReport:
    """Parameters, cache, FLOPs and measured latency of a model before and after `remove_heads`.

    Args:
        model: the whole model.
        pruned: what `remove_heads(model, …)` returned.
        seq_len: tokens of the forward pass; cut to the model's context.
        repeats: runs to take medians of. The models run in turns, after one run each unmeasured.

    Raises:
        InputError: the second model was not made by `remove_heads` or `load_pruned`, or a number
            is not positive.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from headatlas.circuits.prune.remove.remove import remove_heads
        >>> config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16,
        ...     num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> report = removal_report(model, remove_heads(model, "L0KV0"), seq_len=8, repeats=1)
        >>> report.frame.ratio.round(2).tolist()[:3]
        [0.75, 0.92, 0.75]
    """
    for name, value in (("seq_len", seq_len), ("repeats", repeats)):
        if type(value) is not int or value < 1:
            raise InputError(f"{name} must be a positive whole number; got {shown(value)}.")
    both = check_model(model), check_model(pruned)
    pruning = pruning_of(pruned)
    if pruning is None:
        raise InputError(
            "nothing is known of what was cut out of the second model. Pass what remove_heads or, "
            "for a model that its config cannot hold, load_pruned returned."
        )
    n = min(seq_len, context_length(model) or seq_len)
    notes: list[str] = []
    rows = [
        ("heads", sum(cut.n_heads for cut in pruning.cuts), sum(len(c.kept) for c in pruning.cuts)),
        ("parameters", *map(_parameters, both)),
        ("kv_bytes_per_token", *map(cache_bytes_per_token, both)),
        ("attention_flops", *_flops(model, pruning, n, notes)),
        *_latencies(both, n, repeats),
    ]
    frame = pd.DataFrame(rows, columns=["quantity", "before", "after"])
    frame[["before", "after"]] = frame[["before", "after"]].astype(float)
    frame["ratio"] = frame["after"] / frame["before"]
    return RemovalReport(frame, n, repeats, (*notes, *_remarks(model, pruning)))


def _parameters(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def cache_bytes_per_token(model: PreTrainedModel) -> float:
    """Bytes that the model's own cache holds per token and sequence; NaN where it keeps none.

    Of an encoder-decoder pair, the sum of those for a token of either side.
    """
    cache = _cache(_run(model, _CACHED, use_cache=True))
    if cache is None:
        return float("nan")
    parts: list[Any] = [cache]
    if isinstance(cache, EncoderDecoderCache):
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
    held = 0
    for layer in (layer for part in parts for layer in part.layers):
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            held += tensor.numel() * tensor.element_size() if isinstance(tensor, Tensor) else 0
    return held / _CACHED


def _run(model: PreTrainedModel, n: int, **options: Any) -> Any:
    table = embedding_weight(model)
    ids = (torch.arange(n, device=table.device) * 7 % table.shape[0])[None]
    more = {"decoder_input_ids": ids} if is_encoder_decoder(model) else {}
    with undisturbed(model), torch.no_grad():
        try:
            return model(input_ids=ids, **more, **options)
        except TypeError:
            if not options:
                raise
            return model(input_ids=ids, **more)  # an encoder that knows no cache


def _cache(output: Any) -> Cache | None:
    return next((value for value in output.values() if isinstance(value, Cache)), None)


def _flops(
    model: PreTrainedModel, pruning: Pruning, n: int, notes: list[str]
) -> tuple[float, float]:
    """FLOPs of the attention over n tokens, before and after."""
    try:
        shapes = config_shapes(model.config)
    except InputError as error:
        notes.append(f"attention_flops is not counted: {error}")
        return float("nan"), float("nan")
    if len(shapes.layers) != len(pruning.cuts):
        notes.append("attention_flops is not counted: the config lists other attention layers.")
        return float("nan"), float("nan")
    pairs = zip(shapes.layers, pruning.cuts, strict=True)
    after = sum(_layer_flops(layer, cut, n) for layer, cut in pairs)
    return float(prefill_cost(shapes, n).flops), float(after)


def _layer_flops(layer: LayerShape, cut: Cut, n: int) -> int:
    if not cut.kept:
        return 0
    heads, groups = len(cut.kept), len(cut.kv_kept)
    even = heads if layer.latent is not None or not cut.even else groups
    fewer = replace(layer, n_heads=heads, n_kv_heads=even)
    unneeded = 0
    if layer.latent is None and not cut.even:
        # uneven groups share keys and values too, which no LayerShape can say: 2·N·D·(h − g)·2d
        unneeded = 2 * n * layer.d_model * (heads - groups) * (layer.d_head + layer.d_value)
    return prefill_cost(AttentionShapes((fewer,)), n).flops - unneeded


def _latencies(
    models: Sequence[PreTrainedModel], n: int, repeats: int
) -> list[tuple[str, float, float]]:
    """Median milliseconds of a forward pass, and of one cached step after it."""
    passes = [_Timed(lambda: None, lambda _, m=m: _run(m, n)) for m in models]
    found = [("prefill_ms", *_medians(passes, repeats))]
    steps = [step for model in models if (step := _step(model, n)) is not None]
    if len(steps) == len(models):
        found.append(("decode_ms", *_medians(steps, repeats)))
    return found


@dataclass(frozen=True)
class _Timed:
    """What to measure, and what to prepare for each run beforehand."""

    prepare: Callable[[], Any]
    run: Callable[[Any], Any]


def _step(model: PreTrainedModel, n: int) -> _Timed | None:
    """One step of cached decoding at a context of n tokens; None where the model does not."""
    if is_encoder_decoder(model) or not model.can_generate():
        return None
    output = _run(model, max(1, n - 1), use_cache=True)
    cache = _cache(output)
    if cache is None:
        return None
    key = next(key for key, value in output.items() if value is cache)
    token = torch.zeros(1, 1, dtype=torch.int64, device=embedding_weight(model).device)

    def step(fresh: Any) -> Any:
        with undisturbed(model), torch.no_grad():
            return model(input_ids=token, use_cache=True, **{key: fresh})

    return _Timed(lambda: copy.deepcopy(cache), step)


def _medians(runs: Sequence[_Timed], repeats: int) -> tuple[float, float]:
    for one in runs:
        one.run(one.prepare())
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for times, one in zip(taken, runs, strict=True):
            given = one.prepare()
            _finish()
            start = time.perf_counter()
            one.run(given)
            _finish()
            times.append(1000 * (time.perf_counter() - start))
    before, after = (float(np.median(times)) for times in taken)
    return before, after


def _finish() -> None:
    """Wait for what a GPU still has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _remarks(model: PreTrainedModel, pruning: Pruning) -> list[str]:
    said = []
    if getattr(model.config.get_text_config(), "kv_lora_rank", None) is not None:
        said.append(
            "The cache holds latents, whose size does not depend on the heads: cutting heads saves "
            "no cache, but for layers without any."
        )
    if any(not cut.kept for cut in pruning.cuts) and model.can_generate():
        said.append("A layer without heads still caches one number per token, to count them.")
    return said
