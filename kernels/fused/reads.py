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
    """A call that reads A.

    Args:
        inputs: Scores and mask.
        lse: The known log-sum-exp.
    """

    inputs: Inputs
    lse: Float[Tensor, "batch head query"]

    def weights(
        self,
        heads: Int32[Tensor, " chosen_head"],
        rows: Int32[Tensor, "batch row"] | None,
        into: Tensor,
    ) -> Launch:
        """Whole rows of A, all of them or the chosen ones (−1: an unused slot).

        Args:
            heads: Chosen query heads.
            rows: Chosen query rows; None takes all.
            into: As `empty_weights` makes it; the padding is written as well, with zeros.
        """
        inputs = self.inputs
        batch, n_head, n_query, n_key = inputs.sizes
        blocks = inputs.blocks()
        n_chosen, n_row, n_padded = into.shape[1:]
        return self._launch(
            weights_kernel,
            blocks,
            programs=triton.cdiv(n_row, blocks.rows) * n_chosen * batch,
            tensors=(heads, inputs.lo if rows is None else rows, into),
            numbers=(*into.stride()[:3], n_head, n_query, n_key, n_chosen, n_row, n_padded),
            CHOSEN_ROWS=rows is not None,
        )

    def pooled(
        self,
        heads: Int32[Tensor, " chosen_head"],
        cell: tuple[int, int],
        *,
        largest: bool,
        into: Tensor,
    ) -> Launch:
        """Sums or maxima over cells of (queries, keys).

        Args:
            heads: Chosen query heads.
            cell: Queries and keys per cell.
            largest: Maxima instead of sums.
            into: [batch, chosen_head, band, column] as `empty_grid` makes it.
        """
        batch, n_head, n_query, n_key = self.inputs.sizes
        n_chosen, n_band, n_column = into.shape[1:]
        return self._launch(
            pooled_kernel,
            self.cell_blocks(cell),
            programs=n_band * n_chosen * batch,
            tensors=(heads, into),
            numbers=(n_head, n_query, n_key, n_chosen, n_band, n_column, *cell),
            LARGEST=largest,
        )

    def received(self, into: Tensor) -> Launch:
        """Column sums of A over all rows.

        Args:
            into: [batch, head, key], float32.
        """
        batch, heads, n_query, n_key = self.inputs.sizes
        blocks = self.key_blocks()
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

    def empty_weights(
        self, n_chosen: int, n_row: int, dtype: torch.dtype
    ) -> Float[Tensor, "batch chosen_head row padded_key"]:
        """Uninitialised rows of A, each padded to a multiple of 16 numbers."""
        batch, _, _, n_key = self.inputs.sizes
        padded = (n_key + _ROW_STEP - 1) // _ROW_STEP * _ROW_STEP
        return self.inputs.q.new_empty(batch, n_chosen, n_row, padded, dtype=dtype)

    def empty_grid(
        self, n_chosen: int, cell: tuple[int, int]
    ) -> Float[Tensor, "batch chosen_head band column"]:
        """An uninitialised grid."""
        batch, _, n_query, n_key = self.inputs.sizes
        shape = batch, n_chosen, -(-n_query // cell[0]), -(-n_key // cell[1])
        return self.inputs.q.new_empty(shape, dtype=torch.float32)

    def cell_blocks(self, cell: tuple[int, int]) -> Blocks:
        """Blocks for a kernel that sums over cells as well, no larger than a cell needs."""
        inputs = self.inputs
        usual = inputs.blocks(inputs.shape(load=1))
        rows, keys = (max(16, triton.next_power_of_2(n)) for n in cell)
        if inputs.q.itemsize == 4 and inputs.q.shape[-1] > 256:
            rows = 16  # of 32 rows the scores and the cells' sums leave the registers
        return Blocks(min(usual.rows, rows), min(usual.keys, keys), usual.warps, usual.stages)

    def key_blocks(self) -> Blocks:
        """Blocks for a kernel that keeps sums of its keys over all rows."""
        usual = self.inputs.blocks()
        if self.inputs.q.itemsize == 2:
            return usual
        # in full float32 neither 32 keys nor a second stage leave room for the sums
        return Blocks(usual.rows, min(usual.keys, 16), usual.warps, 1)

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
                **inputs.constants,
                **switches,
                "BLOCK_M": blocks.rows,
                "BLOCK_N": blocks.keys,
            },
            warps=blocks.warps,
            stages=blocks.stages,
        )
