"""One layer's cost, operation by operation.

Counted are the matrix products and the softmax. Left out, as small beside them: biases, norms,
RoPE, masks, scaling, softcaps and sinks. A multiplication and an addition are two FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ...interp.errors import InputError
from .devices import Device, bytes_per_number
from .shapes import LayerShape

SOFTMAX_FLOPS = 5
"""FLOPs per score: compare, subtract, exponentiate, add, divide."""

Regime = Literal["compute-bound", "memory-bound"]


@dataclass(frozen=True)
class Operation:
    """One step of attention, run as one kernel.

    Attributes:
        name: `"qkv"`, `"scores"`, `"softmax"`, `"av"`, `"output"` or `"fused"`.
        flops: floating-point operations.
        bytes: moved between memory and the chip if every input is read and every output written
            once: the least an implementation can do.
    """

    name: str
    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOP per byte (Williams 2009)."""
        return self.flops / self.bytes

    def regime(self, device: Device, dtype: str) -> Regime:
        """Which roof binds: arithmetic from an intensity of peak / bandwidth on, else memory."""
        return "compute-bound" if self.intensity >= device.ridge(dtype) else "memory-bound"

    def time_ms(self, device: Device, dtype: str) -> float:
        """The roofline's lower bound, max(FLOPs / peak, bytes / bandwidth), in milliseconds.

        Optimistic for the softmax, which does not run on matrix units.
        """
        return 1e3 * max(self.flops / device.peak(dtype), self.bytes / device.bandwidth)


@dataclass(frozen=True)
class Cost:
    """The cost of one pass through attention layers.

    Attributes:
        operations: qkv, scores, softmax, av and output, each a kernel of its own that writes the
            scores and the pattern to memory.
        fused: scores, softmax and av as one kernel that writes neither (Dao 2022).
    """

    operations: tuple[Operation, Operation, Operation, Operation, Operation]
    fused: Operation

    def __getitem__(self, name: str) -> Operation:
        """The operation of a name, `"fused"` included."""
        found = {operation.name: operation for operation in (*self.operations, self.fused)}
        if name not in found:
            raise InputError(f"no operation {name!r}; there are {', '.join(found)}.")
        return found[name]

    @property
    def flops(self) -> int:
        """FLOPs of all operations; fusing does not change them."""
        return sum(operation.flops for operation in self.operations)

    @property
    def unfused_bytes(self) -> int:
        """Bytes moved when scores and pattern go through memory."""
        return sum(operation.bytes for operation in self.operations)

    @property
    def fused_bytes(self) -> int:
        """Bytes moved when they do not."""
        return sum(operation.bytes for operation in self.kernels(fused=True))

    def kernels(self, *, fused: bool) -> tuple[Operation, ...]:
        """The kernels that run: all five operations, or qkv, fused and output."""
        return (self["qkv"], self.fused, self["output"]) if fused else self.operations

    def time_ms(self, device: Device, dtype: str, *, fused: bool) -> float:
        """The kernels' lower bounds one after the other, in milliseconds."""
        return sum(one.time_ms(device, dtype) for one in self.kernels(fused=fused))


@dataclass(frozen=True)
class Pass:
    """What each of `batch` sequences does in a layer.

    Attributes:
        batch: sequences.
        n_query: queries.
        n_key: keys they could see.
        pairs: of query and key that count, of the n_query × n_key.
        absorbed: whether MLA's up-projections are absorbed into query and output.
    """

    batch: int
    n_query: int
    n_key: int
    pairs: int
    absorbed: bool


def layer_cost(layer: LayerShape, one: Pass, dtype: str) -> Cost:
    """The cost of one layer; `prefill_cost` and `decode_cost` have the formulas."""
    width, h, batch = bytes_per_number(dtype), layer.n_heads, one.batch
    queries, keys = batch * one.n_query, batch * one.n_key
    cells = h * queries * one.n_key  # of the score matrix
    d_key, d_value = layer.d_head, layer.d_value
    key_numbers, value_numbers = layer.n_kv_heads * d_key, layer.n_kv_heads * d_value
    both_numbers = key_numbers + value_numbers
    if one.absorbed and layer.latent is not None:
        d_key, d_value = layer.cache_width, layer.latent.d_latent
        key_numbers, value_numbers = d_key, d_value
        both_numbers = layer.cache_width  # the latent serves as key and as value

    q_flops, q_numbers = _project_in(layer, one)
    o_flops, o_numbers = _project_out(layer, one)
    scores, softmax, av = (
        factor * h * batch * one.pairs for factor in (2 * d_key, SOFTMAX_FLOPS, 2 * d_value)
    )
    in_and_out = queries * h * (d_key + d_value)
    return Cost(
        (
            Operation("qkv", q_flops, width * q_numbers),
            Operation("scores", scores, width * (queries * h * d_key + keys * key_numbers + cells)),
            Operation("softmax", softmax, width * 2 * cells),
            Operation("av", av, width * (cells + keys * value_numbers + queries * h * d_value)),
            Operation("output", o_flops, width * o_numbers),
        ),
        Operation("fused", scores + softmax + av, width * (in_and_out + keys * both_numbers)),
    )


def _project_in(layer: LayerShape, one: Pass) -> tuple[int, int]:
    """FLOPs, and numbers moved, of what makes queries, keys and values."""
    h, queries, keys = layer.n_heads, one.batch * one.n_query, one.batch * one.n_key
    direct = layer.query_weights + layer.down_weights
    flops = 2 * queries * direct
    numbers = direct + queries * (layer.d_model + h * layer.d_head + layer.cache_width)
    if layer.latent is None:
        return flops, numbers
    numbers += 2 * queries * (layer.latent.q_rank or 0)  # the query's latent, out and in again
    if one.absorbed:
        per_head = layer.latent.d_latent * layer.d_plain
        into = queries * h * (layer.d_plain + layer.latent.d_latent)
        return flops + 2 * queries * h * per_head, numbers + h * per_head + into
    out = layer.cache_width + h * (layer.d_head + layer.d_value)
    return flops + 2 * keys * layer.up_weights, numbers + layer.up_weights + keys * out


def _project_out(layer: LayerShape, one: Pass) -> tuple[int, int]:
    """FLOPs, and numbers moved, of what takes z to the residual stream."""
    h, queries = layer.n_heads, one.batch * one.n_query
    flops = 2 * queries * layer.output_weights
    numbers = layer.output_weights + queries * (h * layer.d_value + layer.d_model)
    if one.absorbed and layer.latent is not None:
        weights = layer.latent.d_latent * h * layer.d_value
        flops += 2 * queries * weights
        numbers += weights + queries * h * (layer.latent.d_latent + layer.d_value)
    return flops, numbers


def total_cost(costs: Iterable[tuple[Cost, int]]) -> Cost:
    """Costs, each so many times, added up operation by operation."""
    repeated = list(costs)
    times = [count for _, count in repeated]
    columns = zip(*((*cost.operations, cost.fused) for cost, _ in repeated), strict=True)
    qkv, scores, softmax, av, output, fused = (
        Operation(
            column[0].name,
            sum(n * one.flops for one, n in zip(column, times, strict=True)),
            sum(n * one.bytes for one, n in zip(column, times, strict=True)),
        )
        for column in columns
    )
    return Cost((qkv, scores, softmax, av, output), fused)
