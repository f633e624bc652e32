"""What cutting heads out saves: weights, cache, arithmetic, measured time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import EncoderDecoderCache
from transformers.models.falcon.modeling_falcon import FalconAttention

from ....interp.bridge import refuse_bridge
from ....interp.errors import InputError, shown
from ....interp.sites import attention_sites, check_model
from ....interp.tokens import context_length
from ...cost.read import config_shapes, removed_shapes
from ...cost.totals import prefill_cost
from .latency import cache_of, latencies, run
from .modules import NoHeads
from .pruning import pruning_of

_CACHED = 4  # tokens run to see what a cache keeps


@dataclass(frozen=True, eq=False)
class RemovalReport:
    """A model before and after heads were cut out of it.

    It prints as a table, in a notebook too.

    Attributes:
        frame: rows of quantity, before, after and ratio (after / before), as floats; NaN where a
            quantity does not exist. parameters counts tied weights once; kv_bytes_per_token is that
            of the cache the model really fills, in its dtype, over all layers; attention_flops is
            the attention's share of a forward pass by `circuits.cost`; prefill_ms and decode_ms are
            medians, taken in turns.
        seq_len: tokens of the forward pass, and the context of the decoding step.
        repeats: runs behind each median.
        notes: what must be known to read it.
    """

    frame: pd.DataFrame
    seq_len: int
    repeats: int
    notes: tuple[str, ...] = ()

    def table(self) -> pd.DataFrame:
        """The frame as text: whole numbers as such, milliseconds with three digits."""
        rows = [
            {
                "quantity": row["quantity"],
                "before": _number(row["quantity"], row["before"]),
                "after": _number(row["quantity"], row["after"]),
                "ratio": "–" if math.isnan(row["ratio"]) else f"{row['ratio']:.3f}",
            }
            for row in self.frame.to_dict("records")
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return "\n".join([self.table().to_string(index=False), *self.notes])

    def _repr_html_(self) -> str:
        from html import escape

        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return self.table().to_html(index=False) + notes


def _number(quantity: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    if quantity.endswith("_ms"):
        return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def removal_report(
    model: nn.Module, pruned: nn.Module, *, seq_len: int = 128, repeats: int = 7
) -> RemovalReport:
    """Parameters, cache, FLOPs and measured latency of a model before and after `remove_heads`.

    Everything is read off the two models, so that the second may also have been saved and loaded
    again, by whichever reader, and tuned.

    Args:
        model: the whole model.
        pruned: the model of the same class with fewer heads.
        seq_len: tokens of the forward pass; cut to the models' context.
        repeats: runs to take medians of. The models run in turns, after one run each unmeasured.

    Raises:
        InputError: the models are of different classes, a model whose heads cannot be seen, a
            TransformerLens bridge, or a number is not positive.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from headatlas.circuits.prune.remove.remove import remove_heads
        >>> config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16,
        ...     num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> report = removal_report(model, remove_heads(model, "L0KV0"), seq_len=8, repeats=1)
        >>> report.table().head(3)
                     quantity before  after  ratio
        0               heads      8      6  0.750
        1          parameters  4,752  4,368  0.919
        2  kv_bytes_per_token    128     96  0.750
    """
    for name, value in (("seq_len", seq_len), ("repeats", repeats)):
        if type(value) is not int or value < 1:
            raise InputError(f"{name} must be a positive whole number; got {shown(value)}.")
    for one in (model, pruned):
        refuse_bridge(one, "removal_report")
    both = check_model(model), check_model(pruned)
    kinds = [type(one).__name__ for one in both]
    if kinds[0] != kinds[1]:
        raise InputError(
            f"a {kinds[0]} and a {kinds[1]} cannot be compared. Pass two models of one class, the "
            "whole one and the pruned one."
        )
    n = min(seq_len, *(context_length(one) or seq_len for one in both))
    notes: list[str] = []
    rows = [
        ("heads", *map(_heads, both)),
        ("parameters", *map(_parameters, both)),
        ("kv_bytes_per_token", *map(cache_bytes_per_token, both)),
        ("attention_flops", *_flops(both, n, notes)),
        *latencies(both, n, repeats),
    ]
    frame = pd.DataFrame(rows, columns=["quantity", "before", "after"])
    frame[["before", "after"]] = frame[["before", "after"]].astype(float)
    frame["ratio"] = frame["after"] / frame["before"]
    return RemovalReport(frame, n, repeats, (*notes, *_remarks(both[1], n, repeats)))


def _heads(model: PreTrainedModel) -> int:
    """Query heads of all layers, as they are."""
    pruning = pruning_of(model)
    if pruning is not None and not pruning.ordinary:  # maybe none is left to be seen
        return sum(len(cut.kept) for cut in pruning.cuts)
    falcon = [part for part in model.modules() if isinstance(part, FalconAttention)]
    if falcon:  # which goes past transformers' registry
        return sum(part.num_heads for part in falcon)
    return sum(site.n_heads for site in attention_sites(model))


def _parameters(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def cache_bytes_per_token(model: PreTrainedModel) -> float:
    """Bytes that the model's own cache holds per token and sequence; NaN where it keeps none.

    Of an encoder-decoder pair, the sum of those for a token of either side.
    """
    cache = cache_of(run(model, _CACHED, use_cache=True))
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


def _flops(models: Sequence[PreTrainedModel], n: int, notes: list[str]) -> tuple[float, ...]:
    """FLOPs of the attention over n tokens, of each model."""
    try:
        return tuple(float(_attention_flops(model, n)) for model in models)
    except InputError as error:
        notes.append(f"attention_flops is not counted: {error}")
        return (float("nan"),) * len(models)


def _attention_flops(model: PreTrainedModel, n: int) -> int:
    if _heads(model) == 0:
        return 0
    return prefill_cost(removed_shapes(model) or config_shapes(model.config), n).flops


def _remarks(pruned: PreTrainedModel, n: int, repeats: int) -> list[str]:
    taken = f"medians of {repeats} runs each, taken in turns"
    if repeats == 1:
        taken = "one run each, which is noise; ask for more repeats"
    said = [f"Milliseconds: at {n} tokens, batch 1, {taken}."]
    if getattr(pruned.config.get_text_config(), "kv_lora_rank", None) is not None:
        said.append(
            "The cache holds latents, whose size does not depend on the heads: cutting heads saves "
            "no cache, but for layers without any."
        )
    if pruned.can_generate() and any(isinstance(part, NoHeads) for part in pruned.modules()):
        said.append("A layer without heads still caches one number per token, to count them.")
    pruning = pruning_of(pruned)
    if pruning is not None:
        said.append(f"save_pruned makes of it {pruning.saved_as}.")
    return said
