"""Split rows with interval masks into pieces that a fused attention call can take as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int32
from torch import Tensor

_MOST_PIECES = 8  # per sequence; more, and one masked piece is cheaper than many calls
_BREAK, _DEAD, _CAUSAL, _FULL, _BAND = range(5)

Kind = Literal["causal", "full", "masked"]


@dataclass(frozen=True)
class Piece:
    """A block of rows and keys of neighbouring sequences with one shape of mask.

    Args:
        kind: "causal": row r0 + n sees keys k0 .. k0 + n; "full": every row sees all of k0:k1;
            "masked": anything else inside k0:k1.
        batch: First and one past the last sequence.
        rows: First and one past the last row.
        keys: First and one past the last key.

    Example:
        >>> Piece("full", (0, 1), (0, 4), (2, 6)).keys
        (2, 6)
    """

    kind: Kind
    batch: tuple[int, int]
    rows: tuple[int, int]
    keys: tuple[int, int]


def pieces(lo: Int32[Tensor, "batch query"], hi: Int32[Tensor, "batch query"]) -> list[Piece]:
    """Cover all live rows with as few pieces as their intervals allow.

    Causal, padded on either side and bidirectional sequences become one or two "causal" or "full"
    pieces; windows and ragged intervals become "masked" ones. Equal neighbours share a piece.

    Args:
        lo: First visible key per row.
        hi: One past the last visible key per row; lo == hi is a dead row.

    Returns:
        Pieces in order of sequence and row; dead rows are in none (or inside a masked one).

    Example:
        >>> import torch
        >>> lo = torch.tensor([[0, 2, 2]], dtype=torch.int32)
        >>> hi = torch.tensor([[0, 3, 4]], dtype=torch.int32)
        >>> pieces(lo, hi)
        [Piece(kind='causal', batch=(0, 1), rows=(1, 3), keys=(2, 4))]
    """
    los, his = lo.cpu().numpy(), hi.cpu().numpy()
    batch = los.shape[0]
    starts = [0]
    for b in range(1, batch):
        if (los[b] != los[b - 1]).any() or (his[b] != his[b - 1]).any():
            starts.append(b)
    spans = list(zip(starts, [*starts[1:], batch], strict=True))
    found = [_runs(los[first], his[first]) for first, _ in spans]
    ragged = all(len(runs) == 1 and runs[0][0] == "masked" for runs in found)
    if ragged and len(found) > 1:
        rows = (min(r[0][1] for r in found), max(r[0][2] for r in found))
        live = his > los
        return [Piece("masked", (0, batch), rows, (int(los[live].min()), int(his.max())))]
    return [
        Piece(kind, span, (a, b), (int(los[span[0], a:b].min()), int(his[span[0], a:b].max())))
        for span, runs in zip(spans, found, strict=True)
        for kind, a, b in runs
    ]


def _runs(lo: np.ndarray, hi: np.ndarray) -> list[tuple[Kind, int, int]]:
    """Maximal runs of live rows of one sequence: (kind, first row, one past the last)."""
    n, live = len(lo), hi > lo
    if not live.any():
        return []
    code = _steps(lo, hi, live)
    changes = np.flatnonzero(np.diff(code)) + 1
    runs: list[tuple[Kind, int, int]] = []
    start = 0
    while start < n and len(runs) <= _MOST_PIECES:
        end = start + 1
        if start < n - 1 and code[start] != _BREAK:
            at = np.searchsorted(changes, start, side="right")
            end = (int(changes[at]) if at < len(changes) else n - 1) + 1
        if live[start]:
            runs.append(_kind(lo, hi, start, end))
        start = end
    if len(runs) > _MOST_PIECES:
        rows = np.flatnonzero(live)
        return [("masked", int(rows[0]), int(rows[-1]) + 1)]
    return runs


def _steps(lo: np.ndarray, hi: np.ndarray, live: np.ndarray) -> np.ndarray:
    """How the interval moves from each row to the next, [query - 1]."""
    step_lo, step_hi = np.diff(lo), np.diff(hi)
    both = live[1:] & live[:-1]
    code = np.full(len(lo) - 1, _BREAK)
    code[~live[1:] & ~live[:-1]] = _DEAD
    code[both & (step_lo == 0) & (step_hi == 1)] = _CAUSAL
    code[both & (step_lo == 0) & (step_hi == 0)] = _FULL
    code[both & (step_lo == 1) & (step_hi == 1)] = _BAND
    return code


def _kind(lo: np.ndarray, hi: np.ndarray, a: int, b: int) -> tuple[Kind, int, int]:
    step_lo, step_hi = np.diff(lo[a:b]), np.diff(hi[a:b])
    if (step_lo == 0).all() and (step_hi == 0).all():
        return "full", a, b
    if (step_lo == 0).all() and (step_hi == 1).all() and hi[a] == lo[a] + 1:
        return "causal", a, b
    return "masked", a, b
