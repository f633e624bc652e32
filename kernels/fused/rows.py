"""Calls of the forward kernel: attention and row statistics of up to four matches at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
import triton
from jaxtyping import Float, Int32
from torch import Tensor

from .configs import Shape
from .forward import forward_kernel
from .launch import Inputs, Launch, split

COLUMNS = 16
"""Key-only labels per launch: the least width of a matrix product."""
VALUE_SLICE = 256
"""Columns of v per launch: wider accumulators do not fit the registers (those of MLA are 512)."""
LABEL_STEP = 128
"""Labels of keys are padded to a multiple of it, so that no load of theirs needs a mask."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The detectors of one launch.

    Args:
        q_code: Equal to k_code where labels are equal; at most 4 matches.
        k_code: Padded to a multiple of 128.
        own: The key that a query stands on, for strict matches.
        strict: Bit j set: match j leaves out the query's own key.
        columns: 1 where a key carries the label of a key-only match, float16 or, for float32
            inputs, float32; 16 columns.
    """

    q_code: Int32[Tensor, "batch match query"] | None = None
    k_code: Int32[Tensor, "batch match padded_key"] | None = None
    own: Int32[Tensor, "batch query"] | None = None
    strict: int = 0
    columns: Float[Tensor, "batch padded_key column"] | None = None

    @property
    def n_match(self) -> int:
        """Matches compared label by label."""
        return 0 if self.q_code is None else self.q_code.shape[1]

    @property
    def n_padded(self) -> int:
        """Keys with padding, 0 without labels."""
        if self.k_code is not None:
            return self.k_code.shape[2]
        return 0 if self.columns is None else self.columns.shape[1]


@dataclass(frozen=True, eq=False)
class RowOutputs:
    """What the forward kernel writes; what was not asked for has no elements."""

    out: Float[Tensor, ...]
    lse: Float[Tensor, ...]
    entropy: Float[Tensor, ...]
    top_weight: Float[Tensor, ...]
    top_key: Int32[Tensor, ...]
    mass: Float[Tensor, ...]
    column_mass: Float[Tensor, ...]

    def all(self) -> tuple[Tensor, ...]:
        """In the order of the fields."""
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True, eq=False)
class RowCall:
    """A call of the forward kernel.

    Args:
        inputs: Scores and mask.
        v: Values; None with a known lse.
        known: The known lse; None computes it, and the output.
        sinks: One logit per head, part of a computed lse.
        labels: The detectors.
        entropy: Whether to write the row entropy (without the sink's share).
        top: Whether to write the largest weight and its key.
    """

    inputs: Inputs
    v: Float[Tensor, "batch kv_head key d_value"] | None = None
    known: Float[Tensor, "batch head query"] | None = None
    sinks: Float[Tensor, " head"] | None = None
    labels: Labels = field(default_factory=Labels)
    entropy: bool = False
    top: bool = False

    @property
    def values(self) -> Float[Tensor, "batch kv_head key d_value"] | None:
        """v, where the output is computed."""
        return self.v if self.known is None else None

    @property
    def asks(self) -> bool:
        """Whether anything is asked of the rows besides output and lse."""
        labels = self.labels
        return self.entropy or self.top or labels.n_match > 0 or labels.columns is not None

    @property
    def shape(self) -> Shape:
        """What the choice of blocks depends on."""
        bent = (self.inputs.softcap is not None) + (self.inputs.bias is not None)
        load = max(bent, int(self.labels.n_match > 2 or self.labels.strict > 0))
        d_value = 0 if self.values is None else self.values.shape[-1]
        return self.inputs.shape(d_value, load if self.asks else 0)

    def outputs(self) -> RowOutputs:
        """Uninitialised outputs; the kernel writes every element."""
        batch, heads, n_query, _ = self.inputs.sizes
        new = self.inputs.q.new_empty
        rows, none, f32 = (batch, heads, n_query), (0,), torch.float32
        v, columns, n_match = self.values, self.labels.columns, self.labels.n_match
        return RowOutputs(
            out=new(none if v is None else (*rows, v.shape[-1])),
            lse=new(none if v is None else rows, dtype=f32),
            entropy=new(rows if self.entropy else none, dtype=f32),
            top_weight=new(rows if self.top else none, dtype=f32),
            top_key=new(rows if self.top else none, dtype=torch.int32),
            mass=new((batch, n_match, heads, n_query) if n_match else none, dtype=f32),
            column_mass=new(none if columns is None else (*rows, COLUMNS), dtype=f32),
        )

    def launches(self, into: RowOutputs) -> list[Launch]:
        """The kernels that fill `into`, in order.

        Values of more than 256 columns go in slices, and what is asked of the rows follows from
        their lse.
        """
        v = self.values
        if v is None or v.shape[-1] <= VALUE_SLICE:
            return [self._launch(into)]
        plain = replace(self, labels=Labels(), entropy=False, top=False)
        made = []
        for first in range(0, v.shape[-1], VALUE_SLICE):
            columns = slice(first, first + VALUE_SLICE)
            part = replace(plain, v=v[..., columns])
            made.append(part._launch(replace(into, out=into.out[..., columns])))
        if self.asks:
            made.append(replace(self, v=None, known=into.lse)._launch(into))
        return made

    def _launch(self, into: RowOutputs) -> Launch:
        inputs, labels = self.inputs, self.labels
        q, k, v = inputs.q, inputs.k, self.values
        batch, heads, n_query, n_key = inputs.sizes
        any_tensor = inputs.lo
        bias, bias_strides = inputs.bias_or_any
        shape = self.shape
        blocks = inputs.blocks(shape)
        block_v, count_v, rest_v = (16, 0, 0) if v is None else split(shape.d_value, q.itemsize)
        optional = (self.sinks, inputs.lo, inputs.hi, labels.own, labels.q_code, labels.k_code,
                    labels.columns, self.known)  # fmt: skip
        return Launch(
            kernel=forward_kernel,
            grid=(triton.cdiv(n_query, blocks.rows) * heads * batch,),
            arguments=(
                q,
                k,
                q if v is None else v,
                bias,
                *(any_tensor if x is None else x for x in optional),
                *into.all(),
                *q.stride(),
                *k.stride(),
                *((0, 0, 0, 0) if v is None else v.stride()),
                *bias_strides,
                heads,
                n_query,
                n_key,
                labels.n_padded,
                *inputs.numbers,
            ),
            constants={
                **inputs.constants,
                "SINK": self.sinks is not None and self.known is None,
                "KNOWN": self.known is not None,
                "ENTROPY": self.entropy,
                "TOP": self.top,
                "MATCHES": labels.n_match,
                "STRICT": labels.strict,
                "COLUMNS": 0 if labels.columns is None else COLUMNS,
                "D_VALUE": shape.d_value,
                "BLOCK_V": block_v,
                "COUNT_V": count_v,
                "REST_V": rest_v,
                "OUT_WIDTH": 0 if v is None else into.out.stride(2),
                "BLOCK_M": blocks.rows,
                "BLOCK_N": blocks.keys,
            },
            warps=blocks.warps,
            stages=blocks.stages,
        )
