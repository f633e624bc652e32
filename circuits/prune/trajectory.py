"""How the gates of heads moved along a training: a record that stays small however long it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from ...interp.heads import HeadId

MOST = 200
"""Of the updates, that are recorded."""

COLUMNS = ("update", "site", "layer", "head", "p_open")


def is_recorded(update: int, steps: int) -> bool:
    """Whether gates are recorded after an update: evenly spaced ones, the first and the last.

    Args:
        update: counted from 1; 0 is the start.
        steps: updates of the gates in all; after them gates no longer move.
    """
    every = -(-steps // (MOST - 2))
    return update <= steps and (update % every == 0 or update == steps)


def recorded(done: int, steps: int) -> list[int]:
    """The updates recorded after `done` of them, the start among them.

    Example:
        >>> recorded(3, 5), len(recorded(10_000, 10_000))
        ([0, 1, 2, 3], 198)
    """
    return [update for update in range(done + 1) if is_recorded(update, steps)]


def trajectory_frame(
    heads: Sequence[HeadId], updates: Sequence[int], values: Sequence[Tensor]
) -> pd.DataFrame:
    """One row per recorded update and head.

    Args:
        heads: in the order of the values.
        updates: that were recorded.
        values: P(open) of every head after each of them.

    Returns:
        update (0: the start), site, layer, head, p_open.
    """
    n = len(updates)
    return pd.DataFrame(
        {
            "update": np.repeat(np.array(updates, int), len(heads)),
            "site": [head.site for head in heads] * n,
            "layer": [head.layer for head in heads] * n,
            "head": [head.head for head in heads] * n,
            "p_open": np.array([value.double().numpy() for value in values]).ravel(),
        },
        columns=list(COLUMNS),
    )


def no_trajectory() -> pd.DataFrame:
    """The table of gates of which nothing was recorded."""
    return pd.DataFrame(columns=list(COLUMNS))
