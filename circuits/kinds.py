"""The kinds of head: what each one is, in words and as pairs of label vectors.

A kind names its label vectors; `score` runs any number of them while the model runs; `label` turns
the sums into grades.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..interp.errors import InputError
from ..interp.probes import SIGNAL_SET, Prompts
from .behaviour import DUPLICATE, FEEDS_INDUCTION, INDUCTION
from .further_labels import ngram_induction_labels, rare_token_labels, semantic_labels
from .grid_labels import (
    column_labels,
    neighbour_labels,
    outside_labels,
    row_labels,
    surround_labels,
)
from .kind import Kind, Legacy
from .label_vectors import (
    NO_QUERY,
    Variants,
    delimiter_labels,
    duplicate_labels,
    first_position_labels,
    induction_labels,
    offset_labels,
    recent_duplicate_labels,
)

_SINK_ROWS = 64


def _offsets(prompts: Prompts) -> Variants:
    offsets = [*range(-8, 0), *([] if prompts.causal else range(1, 9))]
    return {f"{offset:+d}": (offset_labels(prompts, offset),) for offset in offsets}


def _first_position(prompts: Prompts) -> Variants:
    alpha = first_position_labels(prompts, rows=slice(0, _SINK_ROWS))
    # the sink metric is defined at one length: shorter documents would give a larger mean
    whole = prompts.mask.sum(1)[:, None] >= _SINK_ROWS
    alpha = replace(alpha, q=np.where(whole, alpha.q, NO_QUERY))
    return {"": (first_position_labels(prompts),), "alpha64": (alpha,)}


_BUILT_IN = (
    Kind(
        "previous_token",
        "Mean weight on the key right before the query (A[i, i−1]), over all rows but the first.",
        lambda prompts: {"": (offset_labels(prompts, -1),)},
        legacy=Legacy(
            "", "classic", 0.4, "mean A[i, i−1] > 0.4 on [BOS] + S + S (Olsson 2022; 0.4 by usage)"
        ),
        behaviour=FEEDS_INDUCTION,
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
        "first (in encoders over all).",
        _first_position,
        legacy=Legacy(
            "alpha64", "natural", 0.3, "mean A[t, 0] > 0.3 over the first 64 rows (sink metric)"
        ),
    ),
    Kind(
        "current_token",
        "Mean weight on the query's own position (A[i, i]), over all rows but the first (in "
        "encoders over all).",
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
        behaviour=DUPLICATE,
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
        behaviour=INDUCTION,
    ),
    Kind(
        "delimiter",
        "Mean weight on punctuation, line breaks and separator tokens (the first position aside "
        "where it is a BOS), over all rows but the first (in encoders over all).",
        lambda prompts: {"": (delimiter_labels(prompts),)},
        null="profile",
        prompts=("natural",),
    ),
    Kind(
        "rare_token",
        "Mean weight on the rarest token of the query's sentence so far, all its copies there, "
        "over rows where it is rarer than the query's own and outside the 500 most frequent ids of "
        "a reference text.",
        lambda prompts: {"": (rare_token_labels(prompts),)},
        null="profile",
        prompts=("natural",),
    ),
    Kind(
        "ngram_induction",
        "Mean weight on the keys right after earlier copies of the query's last two tokens, less "
        "that on the keys right after copies of its last token alone, over rows with one of each.",
        lambda prompts: {"": ngram_induction_labels(prompts)},
        null="profile",
        prompts=("ngrams",),
    ),
    Kind(
        "semantic",
        "Mean weight on earlier words of the query's topic, its own word aside, less that on "
        "equally many and equally common words of another topic, at the last token of words in "
        "lists of two topics.",
        lambda prompts: {"": semantic_labels(prompts)},
        null="profile",
        prompts=("topics",),
    ),
    Kind(
        "grid_neighbour",
        "Mean weight on the best of the eight patches beside the query's own; which one is chosen "
        "on one half of the images and scored on the other.",
        neighbour_labels,
        prompts=(SIGNAL_SET,),
        candidates=True,
    ),
    Kind(
        "grid_surround",
        "Mean weight on all patches beside the query's own (eight, fewer at an edge), over all "
        "patches.",
        surround_labels,
        prompts=(SIGNAL_SET,),
    ),
    Kind(
        "grid_row",
        "Mean weight on the other patches of the query's row, over all patches.",
        row_labels,
        prompts=(SIGNAL_SET,),
    ),
    Kind(
        "grid_column",
        "Mean weight on the other patches of the query's column, over all patches.",
        column_labels,
        prompts=(SIGNAL_SET,),
    ),
    Kind(
        "outside_grid",
        "Mean weight on the tokens that stand for no part of the image (CLS, registers), the sink "
        "of vision models, over all patches.",
        outside_labels,
        prompts=(SIGNAL_SET,),
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


def choose_kinds(kinds: str | Kind | Sequence[str | Kind] | None = None) -> tuple[Kind, ...]:
    """Kinds by name, in the registry's order, then kinds given as values.

    None means all but those of images and sounds.

    Args:
        kinds: names in one text, separated by commas; a `Kind`; or a sequence of names and `Kind`
            values.

    Raises:
        InputError: a name is not registered, none is given, or two kinds share a name.

    Example:
        >>> [kind.name for kind in choose_kinds("induction,previous_token")]
        ['previous_token', 'induction']
    """
    if kinds is None:
        return tuple(kind for kind in KINDS.values() if not kind.of_signals)
    every = listed(kinds)
    own = [kind for kind in every if isinstance(kind, Kind)]
    named = [kind for kind in every if not isinstance(kind, Kind)]
    known = f"known: {', '.join(KINDS)}."
    if not every:
        raise InputError(f"no kind is named; {known}")
    unknown = [str(name) for name in named if not isinstance(name, str) or name not in KINDS]
    if unknown:
        raise InputError(f"unknown kind {', '.join(unknown)}; {known}")
    chosen = (*(kind for kind in KINDS.values() if kind.name in named), *own)
    names = [kind.name for kind in chosen]
    if len(set(names)) < len(names):
        raise InputError(f"two kinds have the same name among {', '.join(names)}; rename one.")
    return chosen


def listed(kinds: Any, values: tuple[type, ...] = (Kind,)) -> list[Any]:
    """Kinds named in one text, one kind, or a collection of both, as a list.

    Args:
        kinds: what a user passed.
        values: the types that a kind given as a value may have.

    Raises:
        InputError: something else.

    Example:
        >>> listed("induction, offset,")
        ['induction', 'offset']
    """
    if isinstance(kinds, str):
        return [name.strip() for name in kinds.split(",") if name.strip()]
    if isinstance(kinds, values):
        return [kinds]
    if not isinstance(kinds, list | tuple | set | frozenset):
        named = " or ".join(value.__name__ for value in values)
        raise InputError(
            f"kinds are names, {named} values, or a list of them; got {type(kinds).__name__}."
        )
    return list(kinds)
