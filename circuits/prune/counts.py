"""How many heads a share of them is, the same wherever it is asked."""

from __future__ import annotations

from collections.abc import Iterable


def nearest_count(share: float, n_heads: int, reachable: Iterable[int] | None = None) -> int:
    """The number of heads nearest to a share of them; of two as near, the larger.

    Args:
        share: of all heads.
        n_heads: how many there are.
        reachable: the numbers that can be cut; None: any.

    Example:
        >>> nearest_count(0.25, 270), nearest_count(0.5, 5), nearest_count(0.3, 8, [0, 4, 8])
        (68, 3, 4)
    """
    counts = range(n_heads + 1) if reachable is None else reachable
    return min(counts, key=lambda count: (abs(count - share * n_heads), -count))
