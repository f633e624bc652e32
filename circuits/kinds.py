"""The kinds of head: what each one is, in words and as pairs of label vectors.

Every detector is one primitive: the attention mass that row i puts on the keys j with
`q_label[i] == k_label[j]`. A kind names its label vectors; `score` runs any number of them in one
forward pass; `label` turns the sums into grades. Rows whose q_label is negative are not scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from ..interp.errors import InputError
from ..interp.probes import Prompts

NO_QUERY, NO_KEY = -1, -2
"""Sentinels of the two sides: different, so that "no label" never matches "no label"."""


@dataclass(frozen=True, eq=False)
class Labels:
    """One pair of label vectors; its mass enters the statistic with `sign`.

    Args:
        q: label of each query, [document, pos]; negative where the row is not scored.
        k: label of each key, [document, pos]; negative where the key never matches.
        strict: the row's own key never matches.
        sign: +1, or −1 for mass to be taken off (see `induction` in encoders).
    """

    q: Int[np.ndarray, "document pos"]
    k: Int[np.ndarray, "document pos"]
    strict: bool = False
    sign: int = 1


Variants = Mapping[str, tuple[Labels, ...]]
"""Statistics of a kind by name. `""` is the kind's own; others are candidates or companions."""


@dataclass(frozen=True)
class Legacy:
    """The field's own verdict for a kind, printed beside ours.

    Args:
        variant: the statistic that it reads.
        prompts: the prompt set that it reads.
        threshold: the verdict is yes above it.
        rule: the verdict in words, with its source.
    """

    variant: str
    prompts: str
    threshold: float
    rule: str


@dataclass(frozen=True)
class Kind:
    """A kind of head: a name, a written definition, and a builder of label vectors.

    Args:
        name: snake_case; what tables and files call it.
        definition: one sentence that says what the score measures and on which rows.
        labels: builds the label vectors for a set of prompts.
        null: what mass is expected by chance: `uniform` (every visible key alike; for kinds
            that are about position) or `profile` (the head's own habits of position applied to
            the same label pairs; for kinds that are about content).
        prompts: sets on which it is scored; numbers come from the first, and where there are
            several the grade must hold on all of them.
        candidates: True if the variants compete and the best is chosen (on one half of the
            documents, reported on the other).
        legacy: the field's own verdict, if there is one.

    Example:
        >>> import numpy as np
        >>> def every_other(prompts):
        ...     position = prompts.position
        ...     return {"": (Labels(q=position - 2, k=position),)}
        >>> kind = Kind("two_back", "Mean weight on the token two back.", every_other)
        >>> kind.null, kind.prompts
        ('uniform', ('random', 'natural'))
    """

    name: str
    definition: str
    labels: Callable[[Prompts], Variants]
    null: str = "uniform"
    prompts: tuple[str, ...] = ("random", "natural")
    candidates: bool = False
    legacy: Legacy | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name != self.name.lower():
            raise InputError(f"a kind's name is a lower-case identifier; got {self.name!r}.")
        if self.null not in ("uniform", "profile"):
            raise InputError(f"null is 'uniform' or 'profile'; kind {self.name} has {self.null!r}.")
        unknown = set(self.prompts) - {"random", "natural", "classic"}
        if unknown or not self.prompts:
            raise InputError(
                f"prompts are random, natural or classic; kind {self.name} has {self.prompts!r}."
            )


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
    k = np.where(_content(prompts), prompts.ids, NO_KEY)
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
    content = _content(prompts)
    before = np.roll(np.where(content, prompts.ids, NO_KEY), 1, axis=1)
    before[:, 0] = NO_KEY
    k = np.where(prompts.mask, before, NO_KEY)
    scored = previous_copy(prompts) >= 0
    pairs = (Labels(np.where(scored, prompts.ids, NO_QUERY), k),)
    if prompts.causal:
        return pairs
    position = prompts.position
    next_exists = scored & (position + 1 < prompts.mask.sum(1)[:, None])
    after = Labels(
        np.where(next_exists, position + 1, NO_QUERY),
        np.where(prompts.mask, position, NO_KEY),
        sign=-1,
    )
    return (*pairs, after)


def delimiter_labels(prompts: Prompts) -> Labels:
    """Every row matches the keys that are punctuation, line breaks or separator tokens."""
    if prompts.delimiter is None:
        raise InputError("the kind delimiter needs a tokenizer that says which tokens are one.")
    scored = prompts.mask & _has_choice(prompts)
    return Labels(
        np.where(scored, 0, NO_QUERY),
        np.where(prompts.delimiter & _content(prompts), 0, NO_KEY),
    )


def previous_copy(prompts: Prompts) -> Int[np.ndarray, "document pos"]:
    """Column of the most recent earlier copy of each token in its document, or −1.

    Neither the BOS nor padding counts as a copy or has one.

    Example:
        >>> ids = np.array([[9, 4, 5, 4, 4]])
        >>> previous_copy(Prompts("natural", ids, ids > 0, bos=True)).tolist()
        [[-1, -1, -1, 1, 3]]
    """
    ids, content = prompts.ids, _content(prompts)
    found = np.full(ids.shape, -1, dtype=np.int64)
    for row in range(len(ids)):
        columns = np.flatnonzero(content[row])
        order = columns[np.argsort(ids[row, columns], kind="stable")]
        same = ids[row, order[1:]] == ids[row, order[:-1]]
        found[row, order[1:][same]] = order[:-1][same]
    return found


def _content(prompts: Prompts) -> np.ndarray:
    """Real tokens other than a BOS in the first position."""
    return prompts.mask & (prompts.position >= int(prompts.bos))


def _has_choice(prompts: Prompts) -> np.ndarray:
    """Rows that see more than one key."""
    return prompts.position >= 1 if prompts.causal else prompts.mask.sum(1)[:, None] > 1


def _in_slice(position: np.ndarray, rows: slice) -> np.ndarray:
    return (position >= (rows.start or 0)) & (position < rows.stop)


def _offsets(prompts: Prompts) -> Variants:
    offsets = [*range(-8, 0), *([] if prompts.causal else range(1, 9))]
    return {f"{offset:+d}": (offset_labels(prompts, offset),) for offset in offsets}


def _first_position(prompts: Prompts) -> Variants:
    alpha = first_position_labels(prompts, rows=slice(0, 64))
    return {"": (first_position_labels(prompts),), "alpha64": (alpha,)}


_BUILT_IN = (
    Kind(
        "previous_token",
        "Mean weight on the key right before the query (A[i, i−1]), over all rows but the first.",
        lambda prompts: {"": (offset_labels(prompts, -1),)},
        legacy=Legacy(
            "", "classic", 0.4, "mean A[i, i−1] > 0.4 on [BOS] + S + S (Olsson 2022; 0.4 by usage)"
        ),
    ),
    Kind(
        "offset",
        "Mean weight on the best fixed offset of −8…−1 (in encoders also +1…+8); the offset is "
        "chosen on one half of the documents and scored on the other.",
        _offsets,
        candidates=True,
        legacy=Legacy(
            "argmax", "natural", 0.9, "argmax at one fixed offset in ≥ 90 % of rows (Voita 2019)"
        ),
    ),
    Kind(
        "first_position",
        "Mean weight on the first position of the document (the sink), over all rows but the "
        "first.",
        _first_position,
        legacy=Legacy(
            "alpha64", "natural", 0.3, "mean A[t, 0] > 0.3 over the first 64 rows (sink metric)"
        ),
    ),
    Kind(
        "current_token",
        "Mean weight on the query's own position (A[i, i]), over all rows but the first.",
        lambda prompts: {"": (offset_labels(prompts, 0),)},
    ),
    Kind(
        "duplicate_token",
        "Mean weight on all earlier copies of the query's token (j < i; in encoders j ≠ i), over "
        "rows whose token occurred before.",
        lambda prompts: {
            "": (duplicate_labels(prompts),),
            "most_recent": (recent_duplicate_labels(prompts),),
        },
        null="profile",
        prompts=("random",),
        legacy=Legacy("", "classic", 0.4, "mean weight on the earlier copy > 0.4 on [BOS] + S + S"),
    ),
    Kind(
        "induction",
        "Mean weight on the keys right after earlier copies of the query's token (prefix "
        "matching), over rows whose token occurred before.",
        lambda prompts: {"": induction_labels(prompts)},
        null="profile",
        prompts=("random",),
        legacy=Legacy(
            "", "classic", 0.4, "prefix-matching score > 0.4 on [BOS] + S + S (Olsson 2022)"
        ),
    ),
    Kind(
        "delimiter",
        "Mean weight on punctuation, line breaks and separator tokens (the first position aside "
        "where it is a BOS), over all rows but the first.",
        lambda prompts: {"": (delimiter_labels(prompts),)},
        null="profile",
        prompts=("natural",),
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _BUILT_IN}
"""The registry: every kind that `classify` knows, by name. `register` adds to it."""


def register(kind: Kind) -> Kind:
    """Add a kind of your own to the registry.

    Raises:
        InputError: another kind has that name already.
    """
    if kind.name in KINDS:
        raise InputError(f"a kind named {kind.name!r} exists; choose another name.")
    KINDS[kind.name] = kind
    return kind


def choose_kinds(names: str | list[str] | tuple[str, ...] | None) -> tuple[Kind, ...]:
    """The kinds of that name, in the registry's order; None means all.

    Raises:
        InputError: a name is not registered.

    Example:
        >>> [kind.name for kind in choose_kinds("induction,previous_token")]
        ['previous_token', 'induction']
    """
    if names is None:
        return tuple(KINDS.values())
    wanted = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    unknown = [name for name in wanted if name not in KINDS]
    if unknown or not wanted:
        raise InputError(
            f"unknown kind {', '.join(unknown) or '(none)'}; known: {', '.join(KINDS)}."
        )
    return tuple(kind for kind in KINDS.values() if kind.name in wanted)
