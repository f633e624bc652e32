"""Add documents until the labels have settled, and say what that took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..interp.errors import InputError
from ..interp.probes import MIN_PROMPTS, Prompts
from .arguments import whole_number
from .bootstrap import halves
from .grade import Rule
from .kinds import Kind
from .label import label
from .score import score
from .sums import Sums

LABELLED = ("weak", "strong")
"""The grades that count as a label."""


@dataclass(frozen=True)
class Round:
    """What one round of documents showed.

    Args:
        documents: documents per set so far.
        tokens: tokens scored so far, over all sets.
        between_halves: share of the labels given by either half of the documents that both give.
        between_rounds: the same for this round and the one before it; None in the first.
    """

    documents: int
    tokens: int
    between_halves: float
    between_rounds: float | None


@dataclass(frozen=True, eq=False)
class Settled:
    """Where adding documents ended.

    Args:
        sums: sums of all documents scored, by prompt set.
        frame: their labels, as `label` gives them.
        rounds: what each round showed.
        settled: whether the labels agreed; False where the documents ran out first.
    """

    sums: dict[str, Sums]
    frame: pd.DataFrame
    rounds: tuple[Round, ...]
    settled: bool

    def settings(self) -> dict[str, Any]:
        """The budget, for an atlas's settings: plain numbers and lists."""
        return {
            "settled": self.settled,
            "documents": [one.documents for one in self.rounds],
            "tokens": [one.tokens for one in self.rounds],
            "between_halves": [one.between_halves for one in self.rounds],
            "between_rounds": [one.between_rounds for one in self.rounds],
        }


def settle(
    score_more: Callable[[slice], Mapping[str, Sums]],
    sets: Mapping[str, Prompts],
    kinds: Sequence[Kind],
    rule: Rule | None = None,
    *,
    first: int = 2 * MIN_PROMPTS,
    agreement: float = 0.95,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Settled:
    """Score documents in rounds of doubling size and stop when the labels agree.

    A label is a head and a kind graded weak or strong. With L_A and L_B the labels from either
    half of the documents and L_r those of round r from all of them,

        between halves = |L_A ∩ L_B| / |L_A ∪ L_B|
        between rounds = |L_r ∩ L_{r−1}| / |L_r ∪ L_{r−1}|

    and 1 where neither side gives a label; as long as there is none and some head is *ambiguous*,
    it goes on. Unlabelled pairs, which are most, do not count as
    agreement. It stops when either reaches `agreement`: halves hold half the documents and so
    wider intervals, and near the margin they go on differing when the whole has long settled.
    Nothing is scored twice: each round adds its sums to those before.

    Args:
        score_more: scores the documents of a slice of every prompt set (`scorer` makes one); a set
            without documents there is left out.
        sets: the prompts by name; it stops when the longest of them is used up.
        kinds: what is scored.
        rule: margins, level and resamples.
        first: documents in the first round, at least 32; each round doubles what there is.
        agreement: above 0, up to 1.
        seed: seed of the halves and of the bootstrap.
        progress: called with ("settle", documents so far, documents there are) after each round.

    Returns:
        The sums of all documents, the labels and the rounds.

    Raises:
        InputError: a number out of range, or a set that has no documents in the first round.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.circuits.battery import Battery
        >>> from headatlas.circuits.kinds import choose_kinds
        >>> model, tokenizer = ha.load("tiny")
        >>> kinds = choose_kinds("previous_token")
        >>> sets = Battery(64, 32).prompt_sets(model, tokenizer, kinds, causal=True)
        >>> settle(scorer(model, sets, kinds), sets, kinds).settled
        True

    Reference:
        Westfall and Young 1993 for the labels' intervals; the stopping rule is this project's.
    """
    rule = Rule() if rule is None else rule
    most = max((len(prompts) for prompts in sets.values()), default=0)
    first = whole_number("first", first, 2 * MIN_PROMPTS)
    if most < first or not 0 < agreement <= 1:
        raise InputError(
            f"settling needs at least {first} documents and 0 < agreement ≤ 1; got {most} "
            f"documents, agreement {agreement}."
        )
    sums: dict[str, Sums] = {}
    rounds: list[Round] = []
    before: frozenset[tuple[str, str]] | None = None
    scored, wanted = 0, first
    while True:
        sums = _joined(sums, score_more(slice(scored, wanted)))
        scored = wanted
        frame = label(sums, kinds, rule, seed=seed)
        now = labels_of(frame)
        one, other = (
            labels_of(label(half, kinds, rule, seed=seed)) for half in _halved(sums, seed)
        )
        between = None if before is None else overlap(before, now)
        tokens = sum(int(prompts.mask[:scored].sum()) for prompts in sets.values())
        rounds.append(Round(scored, tokens, overlap(one, other), between))
        if progress is not None:
            progress("settle", scored, most)
        agrees = max(rounds[-1].between_halves, between or 0.0) >= agreement
        # without any label there is nothing to agree on as long as some might still become one
        settled = agrees and (bool(now) or "ambiguous" not in {*frame["grade"]})
        if settled or scored == most:
            return Settled(sums, frame, tuple(rounds), settled)
        before, wanted = now, min(2 * scored, most)


def scorer(
    model: Any, sets: Mapping[str, Prompts], kinds: Sequence[Kind], **options: Any
) -> Callable[[slice], dict[str, Sums]]:
    """A function that scores some documents of every set, for `settle`.

    Documents keep the numbers they have in their set, which random draws follow, so that sums
    joined over slices are those of one run over all.

    Args:
        model: a transformers model.
        sets: prompts by name, made for the most documents that may be asked for.
        kinds: what to score; each on the sets that it reads.
        **options: of `score`, such as `seed` and `null_draws`.
    """

    def score_more(documents: slice) -> dict[str, Sums]:
        found = {}
        for name, prompts in sets.items():
            chosen = range(len(prompts))[documents]
            asked = [kind for kind in kinds if name in kind.reads]
            if len(chosen) and asked:
                part = prompts.select(slice(chosen.start, chosen.stop))
                found[name] = score(model, part, asked, **options)
        return found

    return score_more


def labels_of(frame: pd.DataFrame) -> frozenset[tuple[str, str]]:
    """The labels of a table of grades: (head, kind) pairs graded weak or strong."""
    given = frame[frame["grade"].isin(LABELLED)]
    head = given["site"] + "." + given["layer"].astype(str) + "." + given["head"].astype(str)
    return frozenset(zip(head, given["kind"], strict=True))


def overlap(one: frozenset[Any], other: frozenset[Any]) -> float:
    """|A ∩ B| / |A ∪ B|; 1 where both are empty.

    Example:
        >>> overlap(frozenset("abc"), frozenset("bcd"))
        0.5
    """
    either = one | other
    return len(one & other) / len(either) if either else 1.0


def _joined(sums: Mapping[str, Sums], more: Mapping[str, Sums]) -> dict[str, Sums]:
    if not more and not sums:
        raise InputError("score_more scored no document of the first round.")
    late = [name for name in more if sums and name not in sums]
    if late:
        raise InputError(f"the set {late[0]} has no documents in the first round.")
    names = [*dict.fromkeys([*sums, *more])]
    parts = {name: [s[name] for s in (sums, more) if name in s] for name in names}
    return {name: Sums.join(found) for name, found in parts.items()}


def _halved(sums: Mapping[str, Sums], seed: int) -> list[dict[str, Sums]]:
    """The sums of either half of the documents."""
    marks = {name: halves(len(own.rows), seed=seed + 1) for name, own in sums.items()}
    return [
        {name: own.take(marks[name] == side) for name, own in sums.items()}
        for side in (True, False)
    ]
