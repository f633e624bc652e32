"""What a kind of head is: a name, a written definition, and a builder of label vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..interp.errors import InputError
from ..interp.probes import PROMPT_SETS, SIGNAL_SET, TEXT_SETS, Prompts
from .behaviour import AnyBehaviour, Behaviour, Downstream
from .label_vectors import Labels, Variants
from .sums import OFFSETS

_NULLS = ("uniform", "profile")
_OFFSET_NAMES = frozenset(f"{offset:+d}" for offset in OFFSETS)


@dataclass(frozen=True)
class Legacy:
    """The field's own verdict for a kind, printed beside ours.

    Args:
        variant: the statistic that it reads; `"argmax"` for the share of rows whose largest weight
            stands at the best offset, where offsets such as `"-1"` compete.
        prompts: the prompt set that it reads.
        threshold: the verdict is yes above it.
        rule: the verdict in words, with its source.
    """

    variant: str
    prompts: str
    threshold: float
    rule: str

    def __post_init__(self) -> None:
        if self.prompts not in PROMPT_SETS:
            raise InputError(
                f"a legacy verdict reads one of {', '.join(PROMPT_SETS)}; got {self.prompts!r}."
            )


@dataclass(frozen=True)
class Kind:
    """A kind of head: a name, a written definition, and a builder of label vectors.

    Args:
        name: snake_case; what tables and files call it.
        definition: one sentence that says what the score measures and on which rows.
        labels: builds the label vectors for a set of prompts, whose arrays it may not change.
        null: what mass is expected by chance: `uniform` (every visible key alike; for kinds
            that are about position) or `profile` (the head's own habits of position applied to
            the same label pairs; for kinds that are about content).
        prompts: sets on which it is scored; numbers come from the first, and where there are
            several the grade must hold on all of them. ("signals",) makes a kind of models that
            read images or sounds alone; there, any kind is scored on these.
        candidates: True if the variants compete and the best is chosen (on one half of the
            documents, reported on the other).
        legacy: the field's own verdict, if there is one.
        behaviour: what removing such a head should harm, for `causal_effects`; None: the loss at
            the rows that the kind scores, on natural text if it is graded there.

    Raises:
        InputError: one of them is not of the sort described.

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
    behaviour: AnyBehaviour | None = None

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not name.isidentifier() or name != name.lower():
            raise InputError(f"a kind's name is a lower-case identifier; got {name!r}.")
        if isinstance(self.prompts, list):
            object.__setattr__(self, "prompts", tuple(self.prompts))
        checks = (
            (isinstance(self.definition, str), "definition is a sentence", self.definition),
            (callable(self.labels), "labels is a function that builds label vectors", self.labels),
            (self.null in _NULLS, "null is 'uniform' or 'profile'", self.null),
            (_are_sets(self.prompts), f"prompts are {_SETS}, each once, in a tuple", self.prompts),
            (isinstance(self.candidates, bool), "candidates is True or False", self.candidates),
            (
                self.legacy is None or isinstance(self.legacy, Legacy),
                "legacy is a Legacy or None",
                self.legacy,
            ),
            (
                self.behaviour is None or isinstance(self.behaviour, Behaviour | Downstream),
                "behaviour is a Behaviour, a Downstream or None",
                self.behaviour,
            ),
        )
        for holds, what, value in checks:
            if not holds:
                raise InputError(f"kind {name}: {what}; got {value!r}.")
        if self.legacy is not None and self.legacy.variant == "argmax" and not self.candidates:
            raise InputError(f"kind {name}: an argmax verdict needs competing offsets.")

    @property
    def reads(self) -> frozenset[str]:
        """The prompt sets it needs, for its grade or for its legacy verdict."""
        return frozenset(self.prompts) | ({self.legacy.prompts} if self.legacy else set())

    @property
    def needs_text(self) -> bool:
        """Whether every set that it is graded on is made of words, which takes a tokenizer."""
        return all(name in TEXT_SETS for name in self.prompts)

    @property
    def of_signals(self) -> bool:
        """Whether it is a kind of models that read images or sounds alone."""
        return self.prompts == (SIGNAL_SET,)

    def on_signals(self) -> Kind:
        """The same kind, scored on images or sounds; verdicts on text do not apply."""
        return replace(self, prompts=(SIGNAL_SET,), legacy=None)

    @property
    def is_permuted(self) -> bool:
        """Whether null draws permute its labels: a content kind without competing variants."""
        return self.null == "profile" and not self.candidates

    def variants(self, prompts: Prompts) -> dict[str, tuple[Labels, ...]]:
        """The kind's label vectors for a set of prompts, checked.

        Raises:
            InputError: the builder returns something that cannot be scored; the message says what.
        """
        built = self.labels(prompts.read_only())
        if not isinstance(built, Mapping) or not built:
            raise InputError(f"kind {self.name}: labels must return a dict of variants.")
        found = {name: self._checked(name, pairs, prompts) for name, pairs in built.items()}
        if self.candidates == ("" in found):
            raise InputError(
                f"kind {self.name}: its own statistic is the variant named '', which competing "
                f"variants (candidates=True) do without; with candidates={self.candidates} it has "
                f"{[*found]}."
            )
        self._check_legacy(found)
        return found

    def _check_legacy(self, found: dict[str, Any]) -> None:
        rule = self.legacy
        if rule is None:
            return
        if rule.variant == "argmax":
            foreign = [name for name in found if name not in _OFFSET_NAMES]
            if foreign:
                raise InputError(
                    f"kind {self.name}: an argmax verdict reads variants that are offsets, "
                    f"{OFFSETS[0]:+d} to {OFFSETS[-1]:+d}; got {foreign[0]!r}."
                )
        elif rule.variant not in found:
            raise InputError(f"kind {self.name}: its legacy verdict reads {rule.variant!r}.")

    def _checked(self, name: str, pairs: Any, prompts: Prompts) -> tuple[Labels, ...]:
        where = f"kind {self.name}, variant {name!r}"
        if not isinstance(name, str) or not name.isprintable():
            raise InputError(f"{where}: the name of a variant is printable text.")
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


_SETS = f"{', '.join(PROMPT_SETS)} or {SIGNAL_SET}"


def _are_sets(names: Any) -> bool:
    return (
        isinstance(names, tuple)
        and bool(names)
        and len(set(names)) == len(names)
        and all(name in (*PROMPT_SETS, SIGNAL_SET) for name in names)
    )
