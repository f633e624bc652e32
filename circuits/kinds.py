"""The kinds of head: what each one is, in words and as pairs of label vectors.

A kind names its label vectors; `score` runs any number of them in one forward pass; `label` turns
the sums into grades.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..interp.errors import InputError
from ..interp.probes import Prompts
from .label_vectors import (
    Labels,
    Variants,
    delimiter_labels,
    duplicate_labels,
    first_position_labels,
    induction_labels,
    offset_labels,
    recent_duplicate_labels,
)


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
        >>> from headatlas.circuits.label_vectors import Labels
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

    def variants(self, prompts: Prompts) -> dict[str, tuple[Labels, ...]]:
        """The kind's label vectors for a set of prompts, checked.

        Raises:
            InputError: the builder returns something that cannot be scored; the message says what.
        """
        built = self.labels(prompts)
        if not isinstance(built, Mapping) or not built:
            raise InputError(f"kind {self.name}: labels must return a dict of variants.")
        found = {name: self._checked(name, pairs, prompts) for name, pairs in built.items()}
        if not self.candidates and "" not in found:
            raise InputError(
                f"kind {self.name}: its own statistic is the variant named ''; it has {[*found]}. "
                "Name one so, or set candidates=True to let the variants compete."
            )
        rule = self.legacy
        if rule is not None and rule.variant not in found and rule.variant != "argmax":
            raise InputError(f"kind {self.name}: its legacy verdict reads {rule.variant!r}.")
        return found

    def _checked(self, name: str, pairs: Any, prompts: Prompts) -> tuple[Labels, ...]:
        where = f"kind {self.name}, variant {name!r}"
        if (
            not isinstance(pairs, tuple)
            or not pairs
            or not all(isinstance(p, Labels) for p in pairs)
        ):
            raise InputError(f"{where}: expected a tuple of Labels; got {type(pairs).__name__}.")
        for pair in pairs:
            if pair.q.shape != prompts.ids.shape or pair.k.shape != prompts.ids.shape:
                raise InputError(
                    f"{where}: labels must have the prompts' shape {prompts.ids.shape}; got "
                    f"{pair.q.shape} and {pair.k.shape}."
                )
            if ((pair.q >= 0) & ~prompts.mask).any() or ((pair.k >= 0) & ~prompts.mask).any():
                raise InputError(f"{where}: padding has a label; use a negative value there.")
            if ((pair.q >= 0) & (pairs[0].q < 0)).any():
                raise InputError(f"{where}: a later pair scores rows that the first does not.")
        return pairs

    def __post_init__(self) -> None:
        if self.legacy is not None and self.legacy.variant == "argmax" and not self.candidates:
            raise InputError(f"kind {self.name}: an argmax verdict needs competing offsets.")
        if not self.name.isidentifier() or self.name != self.name.lower():
            raise InputError(f"a kind's name is a lower-case identifier; got {self.name!r}.")
        if self.null not in ("uniform", "profile"):
            raise InputError(f"null is 'uniform' or 'profile'; kind {self.name} has {self.null!r}.")
        unknown = set(self.prompts) - {"random", "natural", "classic"}
        if unknown or not self.prompts:
            raise InputError(
                f"prompts are random, natural or classic; kind {self.name} has {self.prompts!r}."
            )


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
    unknown = [str(name) for name in wanted if name not in KINDS]
    if unknown or not wanted:
        raise InputError(
            f"unknown kind {', '.join(unknown) or '(none)'}; known: {', '.join(KINDS)}."
        )
    return tuple(kind for kind in KINDS.values() if kind.name in wanted)
