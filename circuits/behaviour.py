"""What a kind of head is for: the behaviour that removing such a head should harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from ..interp.errors import InputError, shown
from ..interp.probes import PROMPT_SETS, Prompts
from .label_vectors import previous_copy

Rows = Callable[[Prompts], Bool[np.ndarray, "document pos"]]


@dataclass(frozen=True)
class Behaviour:
    """Mean loss in nats of the next token, over chosen positions.

    The measure is the mean of −log p(token[t + 1] | tokens ≤ t) over the positions t that `rows`
    marks; harm is its rise.

    Args:
        name: a lower-case identifier.
        definition: one sentence that says what is measured and where.
        prompts: the documents: the name of a prompt set, or a `Prompts` of one's own.
        rows: marks the positions t, [document, pos]; those whose next token is missing do not
            count.

    Raises:
        InputError: one of them is not of the sort described.

    Example:
        >>> everywhere = Behaviour("text", "Loss on all of the text.", "natural", lambda p: p.mask)
        >>> everywhere.name, everywhere.set_name
        ('text', 'natural')
    """

    name: str
    definition: str
    prompts: str | Prompts
    rows: Rows

    def __post_init__(self) -> None:
        _check(self)
        if not callable(self.rows):
            raise InputError(f"behaviour {self.name}: rows is a function; got {self.rows!r}.")

    @property
    def set_name(self) -> str:
        """Name of its prompt set."""
        return self.prompts if isinstance(self.prompts, str) else self.prompts.name

    def marked(self, prompts: Prompts) -> Bool[np.ndarray, "document pos"]:
        """The positions whose next token is predicted and measured.

        Raises:
            InputError: `rows` gives something of another sort, or marks no position.
        """
        marked = predicted_rows(self.rows, prompts, f"behaviour {self.name}: rows")
        if not marked.any():
            raise InputError(
                f"behaviour {self.name} measures no position of the {prompts.name} prompts "
                f"({len(prompts)} documents of up to {int(prompts.mask.sum(1).max())} tokens). "
                "Lengthen the documents, or mend its rows."
            )
        return marked


@dataclass(frozen=True)
class Downstream:
    """Mean label mass of another kind in the heads that are labelled with it.

    For heads that do nothing to the output by themselves but feed others: a previous-token head
    is for the induction heads that read it. Harm is the fall of the mass.

    Args:
        name: a lower-case identifier.
        definition: one sentence that says what is measured.
        kind: the other kind, by its name in the registry.
        prompts: as in `Behaviour`.

    Raises:
        InputError: one of them is not of the sort described.

    Example:
        >>> Downstream("fed", "Prefix matching of induction heads.", "induction").set_name
        'random'
    """

    name: str
    definition: str
    kind: str
    prompts: str | Prompts = "random"

    def __post_init__(self) -> None:
        _check(self)
        if not isinstance(self.kind, str) or not self.kind.isidentifier():
            raise InputError(f"behaviour {self.name}: kind is a kind's name; got {self.kind!r}.")

    @property
    def set_name(self) -> str:
        """Name of its prompt set."""
        return self.prompts if isinstance(self.prompts, str) else self.prompts.name


AnyBehaviour = Behaviour | Downstream


def _check(behaviour: Any) -> None:
    name, prompts = behaviour.name, behaviour.prompts
    if not isinstance(name, str) or not name.isidentifier() or name != name.lower():
        raise InputError(f"a behaviour's name is a lower-case identifier; got {name!r}.")
    if not isinstance(behaviour.definition, str):
        raise InputError(
            f"behaviour {name}: definition is a sentence; got {behaviour.definition!r}."
        )
    named = isinstance(prompts, str) and prompts in PROMPT_SETS
    if not named and not isinstance(prompts, Prompts):
        raise InputError(
            f"behaviour {name}: prompts are a Prompts or one of {', '.join(PROMPT_SETS)}; got "
            f"{prompts!r}."
        )


def has_next(prompts: Prompts) -> Bool[np.ndarray, "document pos"]:
    """Positions that hold a token and are followed by one, of those whose prediction counts."""
    follows = np.zeros_like(prompts.mask)
    follows[:, :-1] = prompts.mask[:, :-1] & prompts.mask[:, 1:]
    return follows if prompts.counted is None else follows & prompts.counted


def predicted_rows(
    rows: Any, prompts: Prompts, name: str = "rows"
) -> Bool[np.ndarray, "document pos"]:
    """The positions that `rows` marks and whose next token is there to be predicted.

    Args:
        rows: as in `Behaviour`.
        prompts: the documents; `rows` cannot change them.
        name: how messages call `rows`.

    Raises:
        InputError: `rows` is no function, or gives something of another sort.

    Example:
        >>> prompts = Prompts("random", np.array([[9, 4, 5]]), np.ones((1, 3), bool), bos=True)
        >>> predicted_rows(lambda p: p.ids < 9, prompts).tolist()
        [[False, True, False]]
    """
    if not callable(rows):
        raise InputError(f"{name} is a function of the prompts; got {shown(rows)}.")
    marked = rows(prompts.read_only())
    if not isinstance(marked, np.ndarray) or marked.dtype != np.bool_:
        raise InputError(
            f"{name} gives a NumPy array of truth values; it gave "
            f"{getattr(marked, 'dtype', type(marked).__name__)}."
        )
    if marked.shape != prompts.ids.shape:
        raise InputError(
            f"{name} gives the prompts' shape {prompts.ids.shape}; it gave {marked.shape}."
        )
    return marked & has_next(prompts)


def copied_next(prompts: Prompts) -> Bool[np.ndarray, "document pos"]:
    """Positions whose token occurred before and whose next token is the one that came then.

    Example:
        >>> ids = np.array([[9, 4, 5, 6, 4, 5, 7]])
        >>> copied_next(Prompts("random", ids, ids > 0, bos=True)).astype(int).tolist()
        [[0, 0, 0, 0, 1, 0, 0]]
    """
    last = previous_copy(prompts)
    after_copy = np.take_along_axis(prompts.ids, np.maximum(last, 0) + (last >= 0), 1)
    following = np.roll(prompts.ids, -1, axis=1)
    return (last >= 0) & has_next(prompts) & (after_copy == following)


def repeated(prompts: Prompts) -> Bool[np.ndarray, "document pos"]:
    """Positions whose token occurred before."""
    return (previous_copy(prompts) >= 0) & has_next(prompts)


INDUCTION = Behaviour(
    "second_copy_loss",
    "Mean loss at tokens of a second copy whose next token is the copied one, on random tokens.",
    "random",
    copied_next,
)
DUPLICATE = Behaviour(
    "repeated_token_loss",
    "Mean loss at tokens that occurred before, on random tokens.",
    "random",
    repeated,
)
FEEDS_INDUCTION = Downstream(
    "induction_mass",
    "Mean prefix-matching mass of the induction heads, on random tokens.",
    "induction",
)


def behaviour_of(kind: Any) -> AnyBehaviour:
    """The behaviour that a kind names; by default the loss at the rows that it scores.

    Those of natural text where the kind is graded on it, else those of its first prompt set.

    Args:
        kind: a `Kind`.

    Example:
        >>> from headatlas.circuits.kinds import KINDS
        >>> behaviour_of(KINDS["induction"]).name, behaviour_of(KINDS["delimiter"]).name
        ('second_copy_loss', 'delimiter_loss')
    """
    if kind.behaviour is not None:
        return kind.behaviour

    def rows(prompts: Prompts) -> np.ndarray:
        scored = [pairs[0].q >= 0 for pairs in kind.variants(prompts).values()]
        return np.logical_or.reduce(scored)

    name = "natural" if "natural" in kind.prompts else kind.prompts[0]
    return Behaviour(
        f"{kind.name}_loss",
        f"Mean loss on the {name} prompts at the rows that {kind.name} scores.",
        name,
        rows,
    )
