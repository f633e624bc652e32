"""Label vectors: what each detector matches, as two integers per token.

Every detector is one primitive: the attention mass that row i puts on the keys j with
`q_label[i] == k_label[j]`. Rows whose q_label is negative are not scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Integer

from ..interp.errors import InputError
from ..interp.probes import Prompts

NO_QUERY, NO_KEY = -1, -2
"""Sentinels of the two sides: different, so that "no label" never matches "no label"."""


_LARGEST = np.iinfo(np.int64).max


class UnfitPromptsError(InputError):
    """A kind's labels cannot be built on a set of prompts, which lacks what they are about."""


@dataclass(frozen=True, eq=False)
class Labels:
    """One pair of label vectors; its mass enters the statistic with `sign`.

    Args:
        q: label of each query, [document, pos]; negative where the row is not scored.
        k: label of each key, [document, pos]; negative where the key never matches.
        strict: the row's own key never matches.
        sign: +1, or −1 for mass to be taken off (see `induction` in encoders).
    """

    q: Integer[np.ndarray, "document pos"]
    k: Integer[np.ndarray, "document pos"]
    strict: bool = False
    sign: int = 1

    def __post_init__(self) -> None:
        for name in ("q", "k"):
            array = np.asarray(getattr(self, name))
            if array.ndim != 2 or array.dtype.kind not in "iu":
                raise InputError(
                    f"labels are whole numbers [document, pos]; {name} is {array.dtype} of shape "
                    f"{array.shape}."
                )
            if array.dtype.kind == "u" and array.size and int(array.max()) > _LARGEST:
                raise InputError(
                    f"labels are below 2**63, as int64 holds them; {name} has {array.max()}."
                )
            object.__setattr__(self, name, array.astype(np.int64))
        if self.sign not in (1, -1):
            raise InputError(f"the sign of a pair of label vectors is 1 or -1; got {self.sign!r}.")


Variants = Mapping[str, tuple[Labels, ...]]
"""Statistics of a kind by name. `""` is the kind's own; others are candidates or companions."""


def offset_labels(prompts: Prompts, offset: int) -> Labels:
    """Row i matches the key at i + offset; rows where that key does not exist are not scored.

    Row 0 is never scored in a causal model: it sees only itself, so its weight there is 1 in
    every head.
    """
    position = prompts.position
    length = prompts.mask.sum(1)[:, None]
    target = position + offset
    exists = prompts.mask & (target >= 0) & (target < length) & _has_choice(prompts)
    return Labels(np.where(exists, target, NO_QUERY), np.where(prompts.mask, position, NO_KEY))


def first_position_labels(prompts: Prompts, *, rows: slice | None = None) -> Labels:
    """Every row matches the first real key; by default row 0 is left out (its weight is 1)."""
    position = prompts.position
    scored = prompts.mask & (_has_choice(prompts) if rows is None else _in_slice(position, rows))
    return Labels(np.where(scored, 0, NO_QUERY), np.where(prompts.mask, position, NO_KEY))


def duplicate_labels(prompts: Prompts) -> Labels:
    """Row i matches every other copy of its token; rows without an earlier copy are not scored."""
    k = np.where(prompts.content, prompts.ids, NO_KEY)
    q = np.where(previous_copy(prompts) >= 0, prompts.ids, NO_QUERY)
    return Labels(q, k, strict=True)


def recent_duplicate_labels(prompts: Prompts) -> Labels:
    """Row i matches the most recent earlier copy of its token."""
    position = prompts.position
    last = previous_copy(prompts)
    target = np.where(last >= 0, np.take_along_axis(position, np.maximum(last, 0), 1), NO_QUERY)
    return Labels(target, np.where(prompts.mask, position, NO_KEY))


def induction_labels(prompts: Prompts) -> tuple[Labels, ...]:
    """Row i matches the keys right after each earlier copy of its token.

    In an encoder the key i + 1 follows the row's own token and would always match: its mass is
    taken off again.
    """
    content = prompts.content
    before = np.roll(np.where(content, prompts.ids, NO_KEY), 1, axis=1)
    before[:, 0] = NO_KEY
    k = np.where(prompts.mask, before, NO_KEY)
    scored = previous_copy(prompts) >= 0
    pairs = (Labels(np.where(scored, prompts.ids, NO_QUERY), k),)
    if prompts.causal:
        return pairs
    return (*pairs, next_token_labels(prompts, scored))


def next_token_labels(prompts: Prompts, scored: np.ndarray) -> Labels:
    """Scored rows match the key right after their own, with sign −1: mass to be taken off."""
    position = prompts.position
    next_exists = scored & (position + 1 < prompts.mask.sum(1)[:, None])
    return Labels(
        np.where(next_exists, position + 1, NO_QUERY),
        np.where(prompts.mask, position, NO_KEY),
        sign=-1,
    )


def delimiter_labels(prompts: Prompts) -> Labels:
    """Every row matches the keys that are punctuation, line breaks or separator tokens."""
    if prompts.delimiter is None:
        raise UnfitPromptsError(
            "the kind delimiter needs a tokenizer that says which tokens are one."
        )
    scored = prompts.mask & _has_choice(prompts)
    return Labels(
        np.where(scored, 0, NO_QUERY),
        np.where(prompts.delimiter & prompts.content, 0, NO_KEY),
    )


def previous_copy(prompts: Prompts) -> Int[np.ndarray, "document pos"]:
    """Column of the most recent earlier copy of each token in its document, or −1.

    Neither the BOS nor padding counts as a copy or has one.

    Example:
        >>> ids = np.array([[9, 4, 5, 4, 4]])
        >>> previous_copy(Prompts("natural", ids, ids > 0, bos=True)).tolist()
        [[-1, -1, -1, 1, 3]]
    """
    ids, content = prompts.ids, prompts.content
    found = np.full(ids.shape, -1, dtype=np.int64)
    for row in range(len(ids)):
        columns = np.flatnonzero(content[row])
        order = columns[np.argsort(ids[row, columns], kind="stable")]
        same = ids[row, order[1:]] == ids[row, order[:-1]]
        found[row, order[1:][same]] = order[:-1][same]
    return found


def _has_choice(prompts: Prompts) -> np.ndarray:
    """Rows that see more than one key."""
    return prompts.position >= 1 if prompts.causal else prompts.mask.sum(1)[:, None] > 1


def _in_slice(position: np.ndarray, rows: slice) -> np.ndarray:
    return (position >= (rows.start or 0)) & (position < rows.stop)
