"""Calls of the kernels that read A once the log-sum-exp is known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float, Int32
from torch import Tensor

from .configs import Blocks
from .few import few_kernel
from .launch import Inputs, Launch
from .weights import pooled_kernel, received_kernel, weights_kernel

_ROW_STEP = 16
"""Rows of A start at multiples of it: 128-bit writes need no less."""


@dataclass(frozen=True, eq=False)
class ReadCall:
    """A call that reads A of some heads.

    Args:
        inputs: Scores and mask.
        lse: The known log-sum-exp.
        heads: Chosen query heads; all of them, in order, where every head is read.
    """

    inputs: Inputs
    lse: Float[Tensor, "batch head query"]
    heads: Int32[Tensor, " chosen_head"]

    def weights(self, rows: Int32[Tensor, "batch row"] | None, into: Tensor) -> Launch:
        """Whole rows of A, all of them or the chosen ones (−1: an unused slot).

        Args:
            rows: Chosen query rows; None takes all.
            into: As `empty_weights` makes it; the padding is written as well, with zeros.
        """
        inputs = self.inputs
        batch, heads, n_query, n_key = inputs.sizes
        blocks = inputs.blocks()
        n_row, n_chosen = into.shape[2], len(self.heads)
        return self._launch(
            weights_kernel,
            blocks,
            programs=triton.cdiv(n_row, blocks.rows) * n_chosen * batch,
            tensors=(self.heads, inputs.lo if rows is None else rows, into),
            numbers=(*into.stride()[:3], heads, n_query, n_key, n_chosen, n_row, into.stride(2)),
            CHOSEN_ROWS=rows is not None,
        )

    def pooled(self, cell: tuple[int, int], *, largest: bool, into: Tensor) -> Launch:
        """Sums or maxima over cells of (queries, keys).

        Args:
            cell: Queries and keys per cell.
            largest: Maxima instead of sums.
            into: [batch, chosen_head, band, column] as `empty_grid` makes it.
        """
        inputs = self.inputs
        batch, heads, n_query, n_key = inputs.sizes
        n_chosen, n_band, n_column = into.shape[1:]
        return self._launch(
            pooled_kernel,
            self.cell_blocks(cell),
            programs=n_band * n_chosen * batch,
            tensors=(self.heads, into),
            numbers=(heads, n_query, n_key, n_chosen, n_band, n_column, *cell),
            LARGEST=largest,
        )

    def received(self, into: Tensor) -> Launch:
        """Column sums of A over all rows.

        Args:
            into: [batch, head, key], float32.
        """
        batch, heads, n_query, n_key = self.inputs.sizes
        blocks = self.inputs.blocks()
        return self._launch(
            received_kernel,
            blocks,
            programs=triton.cdiv(n_key, blocks.keys) * heads * batch,
            tensors=(into,),
            numbers=(heads, n_query, n_key),
        )

    def few(self, keys: Int32[Tensor, "batch match query most"], into: Tensor) -> Launch:
        """Masses of matches with few keys per row, all of which are listed (−1: none).

        Args:
            keys: Visible keys that match, contiguous.
            into: [batch, match, head, query], float32.
        """
        batch, heads, n_query, _ = self.inputs.sizes
        narrow = self.inputs.q.shape[-1] <= 128
        blocks = Blocks(32 if narrow else 16, keys.shape[3], 4, 1)
        return self._launch(
            few_kernel,
            blocks,
            programs=triton.cdiv(n_query, blocks.rows) * heads * batch,
            tensors=(keys, into),
            numbers=(heads, n_query, keys.shape[1]),
        )

    def empty_weights(self, n_row: int, dtype: torch.dtype) -> Float[Tensor, "b h row padded_key"]:
        """Uninitialised rows of A, each padded to a multiple of 16 numbers."""
        batch, _, _, n_key = self.inputs.sizes
        padded = (n_key + _ROW_STEP - 1) // _ROW_STEP * _ROW_STEP
        return self.inputs.q.new_empty(batch, len(self.heads), n_row, padded, dtype=dtype)

    def empty_grid(self, cell: tuple[int, int]) -> Float[Tensor, "batch chosen_head band column"]:
        """An uninitialised grid."""
        batch, _, n_query, n_key = self.inputs.sizes
        shape = batch, len(self.heads), -(-n_query // cell[0]), -(-n_key // cell[1])
        return self.inputs.q.new_empty(shape, dtype=torch.float32)

    def cell_blocks(self, cell: tuple[int, int]) -> Blocks:
        """The usual blocks, no larger than a cell needs."""
        usual = self.inputs.blocks()
        rows, keys = (max(16, triton.next_power_of_2(n)) for n in cell)
        return Blocks(min(usual.rows, rows), min(usual.keys, keys), usual.warps, usual.stages)

    def _launch(
        self, kernel, blocks: Blocks, *, programs: int, tensors: tuple, numbers: tuple, **switches
    ) -> Launch:
        inputs = self.inputs
        bias, bias_strides = inputs.bias_or_any
        return Launch(
            kernel=kernel,
            grid=(programs,),
            arguments=(
                inputs.q,
                inputs.k,
                bias,
                inputs.lo,
                inputs.hi,
                self.lse,
                *tensors,
                *inputs.q.stride(),
                *inputs.k.stride(),
                *bias_strides,
                *numbers,
                *inputs.numbers,
            ),
            constants={
                **inputs.constants(d_key=inputs.q.shape[-1]),
                **switches,
                "BLOCK_M": blocks.rows,
                "BLOCK_N": blocks.keys,
            },
            warps=blocks.warps,
            stages=blocks.stages,
        )
