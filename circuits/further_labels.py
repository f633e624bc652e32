"""Label vectors of the further kinds: rare tokens, n-grams, words of one topic."""

from __future__ import annotations

import numpy as np

from ..interp.probes import Prompts
from .label_vectors import (
    NO_KEY,
    NO_QUERY,
    Labels,
    UnfitPromptsError,
    next_token_labels,
    previous_copy,
)

COMMON = 500
"""A token is rare if this many ids of the reference text are commoner (Voita 2019)."""


def rare_token_labels(prompts: Prompts) -> Labels:
    """Row i matches the rarest earlier token of its sentence, all its copies there.

    Rows are scored where that token is outside the `COMMON` most frequent ids and rarer than the
    row's own (in encoders: the sentence's rarest token, wherever it stands).

    Raises:
        UnfitPromptsError: the prompts do not say how rare each token is and where sentences end.
    """
    sentence, rarity = _marks(prompts, "rare_token", "sentence", "rarity")
    rarest = np.full(prompts.ids.shape, NO_QUERY, np.int64)
    inside = prompts.content
    for document in range(len(prompts)):
        ranks, ids = rarity[document], prompts.ids[document]
        for number in np.unique(sentence[document][inside[document]]):
            columns = np.flatnonzero(inside[document] & (sentence[document] == number))
            own = ranks[columns]
            best = np.maximum.accumulate(own) if prompts.causal else np.full_like(own, own.max())
            # the column that holds the rarest token so far
            first = np.searchsorted(np.maximum.accumulate(own), best)
            scored = (best >= COMMON) & (best > own)
            rarest[document, columns[scored]] = ids[columns[first[scored]]]
    span = int(prompts.ids.max()) + 1
    q = np.where(rarest >= 0, sentence * span + rarest, NO_QUERY)
    return Labels(q, np.where(inside, sentence * span + prompts.ids, NO_KEY))


def ngram_induction_labels(prompts: Prompts) -> tuple[Labels, ...]:
    """Row i matches the keys after earlier copies of its last two tokens, with sign +1, and those
    after earlier copies of its last token alone, with sign −1.

    Only rows with keys of both sorts are scored. The keys after a copy of both tokens also follow
    a copy of the last one: score = 2 · (after both) − (after the last, whatever came before it).
    In encoders the key after the row itself follows both and is taken off.

    Raises:
        UnfitPromptsError: the prompts are not those in which the two sorts of key are equally many.
    """
    if prompts.name != "ngrams":
        raise UnfitPromptsError(
            "the kind ngram_induction is scored on prompts that hold as many matches of two tokens "
            f"as of one alone (the set ngrams); got the set {prompts.name}."
        )
    inside = prompts.content
    ids = np.where(inside, prompts.ids, -1)
    before = np.roll(ids, 1, axis=1)
    before[:, 0] = -1
    both = np.where((ids >= 0) & (before >= 0), before * (int(ids.max()) + 1) + ids, -1)
    scored = _has_both(prompts, ids, both)
    after_both, after_last = (_shifted(array) for array in (both, ids))
    two = Labels(np.where(scored, both, NO_QUERY), after_both)
    one = Labels(np.where(scored, ids, NO_QUERY), after_last, sign=-1)
    pairs = (two, two, one)
    if prompts.causal:
        return pairs
    return (*pairs, next_token_labels(prompts, scored))


def semantic_labels(prompts: Prompts) -> tuple[Labels, ...]:
    """Row i, a word's last token, matches other words of its topic, with sign +1, and the partners
    of those words, which are of the other topic, with sign −1.

    The row's own word and its partner count for neither. Rows are scored where an earlier word of
    each sort exists.

    Raises:
        UnfitPromptsError: the prompts do not say which token belongs to which topic and word.
    """
    topic, word, partner, end = _marks(prompts, "semantic", "topic", "word", "partner", "end")
    scored = np.zeros(prompts.ids.shape, bool)
    for document in range(len(prompts)):
        for column in np.flatnonzero(end[document] == 1):
            seen = slice(0, column) if prompts.causal else slice(None)
            topics, words = topic[document, seen], word[document, seen]
            same = (topics == topic[document, column]) & (words != word[document, column])
            rival = (topics == 1 - topic[document, column]) & (words != partner[document, column])
            scored[document, column] = same.any() and rival.any()
    sides = ((topic, 1), (word, -1), (1 - topic, -1), (partner, 1))
    keys = (topic, word, topic, word)
    return tuple(
        Labels(np.where(scored, q, NO_QUERY), np.where(k >= 0, k, NO_KEY), sign=sign)
        for (q, sign), k in zip(sides, keys, strict=True)
    )


def _marks(prompts: Prompts, kind: str, *names: str) -> list[np.ndarray]:
    missing = [name for name in names if name not in prompts.marks]
    if missing:
        raise UnfitPromptsError(
            f"the kind {kind} needs prompts that mark the {' and '.join(missing)} of each token; "
            f"the set {prompts.name} does not."
        )
    return [np.asarray(prompts.marks[name], np.int64) for name in names]


def _shifted(labels: np.ndarray) -> np.ndarray:
    """Each key gets the label of the column before it."""
    after = np.roll(labels, 1, axis=1)
    after[:, 0] = NO_KEY
    return np.where(after >= 0, after, NO_KEY)


def _has_both(prompts: Prompts, ids: np.ndarray, both: np.ndarray) -> np.ndarray:
    """Rows whose last token stood earlier after the same token, and earlier after another one."""
    scored = np.zeros(ids.shape, bool)
    copies = previous_copy(prompts) >= 0
    for document, column in np.argwhere(copies & (both >= 0)).tolist():
        earlier = ids[document, :column] == ids[document, column]
        same = both[document, :column] == both[document, column]
        scored[document, column] = same.any() and bool((earlier & ~same).any())
    return scored
