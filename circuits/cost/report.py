"""The cost of a model's attention as one value: tables, and files of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from ...interp.errors import InputError
from ..table_file import write_table
from .devices import Device, bytes_per_number, find_device
from .kv_cache import cache_bytes, cache_variants
from .operations import Cost
from .shapes import AttentionShapes, check_count
from .totals import check_mla, crossover, decode_cost, prefill_cost

SCHEMA_VERSION = 1
"""Raised when a reader of the old files would misread the new ones."""

_MAX_INTEGER = 2**63 - 1  # of Parquet


@dataclass(frozen=True, repr=False)
class CostReport:
    """What a model's attention costs at one length, batch and number format, on one device.

    It prints as the command's tables, in a notebook too.

    Attributes:
        shapes: the model's attention.
        seq_len: N, tokens of the prefill, and the context of the decoding step.
        batch: sequences.
        dtype: of weights, activations and cache.
        device: whose roofline decides the regime.
        exact: whether prefill counts only the pairs the mask keeps.
        mla: how latents are used in decoding.
    """

    shapes: AttentionShapes
    seq_len: int
    batch: int
    dtype: str
    device: Device
    exact: bool = False
    mla: str = "absorbed"

    def __post_init__(self) -> None:
        check_count("seq_len", self.seq_len)
        check_count("batch", self.batch)
        if type(self.exact) is not bool:
            raise InputError(f"exact must be True or False; got {self.exact!r}.")
        self.device.peak(self.dtype)  # refuses a format the device lacks
        check_mla(self.mla)

    def __repr__(self) -> str:
        from .show import as_text  # which shows reports, and so needs them from here

        return as_text(self)

    def _repr_html_(self) -> str:
        from .show import as_html

        return as_html(self)

    @cached_property
    def prefill(self) -> Cost:
        """Cost of the forward pass over `seq_len` tokens."""
        return self._prefill(self.shapes)

    @cached_property
    def decode(self) -> Cost | None:
        """Cost of one token at a context of `seq_len`; None for a model that is not causal."""
        return self._decode(self.shapes) if self.shapes.causal else None

    @cached_property
    def crossover(self) -> float | None:
        """Length from which scores and AV outweigh the projections; see `crossover`."""
        return crossover(self.shapes, exact=self.exact)

    def table(self) -> pd.DataFrame:
        """Every operation of all layers together (layer `"all"`) and of each layer.

        Returns:
            Rows of phase (prefill, decode), layer, operation (qkv, scores, softmax, av, output,
            fused), flops, bytes, intensity (FLOP per byte), regime and time_ms (lower bound).
            Operation "fused" stands for scores, softmax and av in one kernel. Numbers beyond
            2^63 − 1 turn their column into float64.
        """
        return self._table.copy()

    def cache_table(self) -> pd.DataFrame:
        """The cache of each kind of key-value heads, for this model and as "what if".

        Returns:
            Rows of kind, numbers (kept per token and layer, mean over layers), bytes_per_token (of
            all layers, one sequence, inside the windows), bytes (after seq_len tokens, whole
            batch), of_mha (ratio of bytes_per_token to MHA's) and own (whether it is the model's).
            A model whose layers differ in kind comes first, as kind "mixed".

        Raises:
            InputError: a model that is not causal.
        """
        variants = cache_variants(self.shapes)
        if self.shapes not in variants.values():
            variants = {"mixed": self.shapes, **variants}
        per_token = {
            kind: bytes_per_number(self.dtype) * _cache_width(shapes)
            for kind, shapes in variants.items()
        }
        return pd.DataFrame(
            {
                "kind": kind,
                "numbers": _cache_width(shapes) / len(shapes.layers),
                "bytes_per_token": per_token[kind],
                "bytes": cache_bytes(shapes, self.seq_len, batch=self.batch, dtype=self.dtype),
                "of_mha": per_token[kind] / per_token["MHA"],
                "own": shapes == self.shapes,
            }
            for kind, shapes in variants.items()
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report; the suffix picks the format.

        JSON holds everything, with exact integers. CSV and Parquet hold `table()`; Parquet carries
        the rest as metadata under the key `headatlas`.

        Raises:
            InputError: another suffix, or the file cannot be written.
        """
        return write_table(
            Path(path), self.table(), self._meta(), name="operations", records=self._records
        )

    def _prefill(self, shapes: AttentionShapes) -> Cost:
        return prefill_cost(
            shapes, self.seq_len, batch=self.batch, dtype=self.dtype, exact=self.exact
        )

    def _decode(self, shapes: AttentionShapes) -> Cost:
        return decode_cost(shapes, self.seq_len, batch=self.batch, dtype=self.dtype, mla=self.mla)

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        """The table's rows; layers of one shape share what was computed once."""
        phases: dict[str, tuple[Cost | None, Callable[[AttentionShapes], Cost]]]
        phases = {"prefill": (self.prefill, self._prefill), "decode": (self.decode, self._decode)}
        records = []
        for phase, (whole, cost) in phases.items():
            if whole is None:
                continue
            alone = {
                layer: self._rows(cost(AttentionShapes((layer,)))) for layer in self.shapes.counts
            }
            named = [(str(i), alone[layer]) for i, layer in enumerate(self.shapes.layers)]
            records += [
                {"phase": phase, "layer": name, **row}
                for name, rows in [("all", self._rows(whole)), *named]
                for row in rows
            ]
        return records

    @cached_property
    def _table(self) -> pd.DataFrame:
        frame = pd.DataFrame(self._records)
        for column in ("flops", "bytes"):
            if max(record[column] for record in self._records) > _MAX_INTEGER:
                frame[column] = frame[column].astype(float)
        return frame

    def _rows(self, cost: Cost) -> list[dict[str, Any]]:
        return [
            {
                "operation": one.name, "flops": one.flops, "bytes": one.bytes,
                "intensity": one.intensity, "regime": one.regime(self.device, self.dtype),
                "time_ms": one.time_ms(self.device, self.dtype),
            }
            for one in (*cost.operations, cost.fused)
        ]  # fmt: skip

    def _meta(self) -> dict[str, Any]:
        peak = self.device.peak(self.dtype)
        device = {"name": self.device.name, "flops": peak, "bandwidth": self.device.bandwidth}
        settings = {
            "seq_len": self.seq_len, "batch": self.batch, "dtype": self.dtype,
            "exact": self.exact, "mla": self.mla, "device": device,
        }  # fmt: skip
        layers = {layer: asdict(layer) for layer in self.shapes.counts}
        cache = self.cache_table().to_dict("records") if self.shapes.causal else []
        return {
            "schema_version": SCHEMA_VERSION,
            "model": {
                "name": self.shapes.name,
                "layers": [layers[layer] for layer in self.shapes.layers],
            },
            "settings": settings,
            "crossover": self.crossover,
            "cache": cache,
        }


def _cache_width(shapes: AttentionShapes) -> int:
    """Numbers kept per token, of all layers."""
    return sum(n * layer.cache_width for layer, n in shapes.counts.items())


def cost(
    source: AttentionShapes | str | os.PathLike[str] | nn.Module | Any,
    *,
    seq_len: int = 4096,
    batch: int = 1,
    dtype: str = "fp16",
    device: str | Device = "h100",
    exact: bool = False,
    mla: str = "absorbed",
) -> CostReport:
    """What a model's attention costs: FLOPs, bytes and regime of each operation, and the cache.

    Formulas: `prefill_cost`, `decode_cost`, `cache_bytes`, `crossover`.

    Args:
        source: shapes (`uniform_shapes` makes them from numbers), a loaded transformers model, a
            `HookedAttention` or a module that holds some, a transformers config, or a name as for
            `attention_shapes`, of which only the config is read.
        seq_len: N, tokens of the prefill, and the context of the decoding step.
        batch: sequences.
        dtype: of weights, activations and cache: fp32, fp16, bf16 or fp8.
        device: whose roofline decides: a short name such as `"h100"`, or a `Device`.
        exact: count only the pairs of query and key that the mask keeps, in place of all.
        mla: how latents are used in decoding, absorbed or expanded.

    Raises:
        InputError: an unknown model, device or dtype, or numbers that contradict each other.

    Example:
        >>> report = cost("tiny", seq_len=256)
        >>> report.crossover  # of 128 wide, 8 heads and 4 KV heads: 128·(1 + 4/8)
        192.0
        >>> report.prefill.fused.regime(report.device, "fp16")
        'memory-bound'

    Reference:
        Williams 2009 (roofline).
    """
    shapes = source
    if not isinstance(shapes, AttentionShapes):
        from .read import attention_shapes

        shapes = attention_shapes(shapes)
    found = device if isinstance(device, Device) else find_device(device)
    return CostReport(shapes, seq_len, batch, dtype, found, exact, mla)
