"""The formulas of docs/kinds.md read a second time: which keys each row of a document matches.

A reading knows nothing of label vectors. It gives for every scored row its keys with +1 or −1.
"""

import numpy as np

from headatlas.interp.probes import Prompts

RARE = 500
GRID = ("grid_neighbour", "grid_surround", "grid_row", "grid_column", "outside_grid")
SAME_IN_ENCODERS = ("previous_token", "offset", *GRID)


def document(causal):
    """Forty tokens of eight sorts in four sentences; words of two topics, in pairs.

    All but the first and the last are patches too, in two rows.
    """
    ids = np.random.default_rng(0).integers(0, 8, (1, 40))
    marks = {
        "sentence": np.arange(40)[None] // 10,
        "rarity": np.array([100, 700, 5, 800, 600, 50, 900, 20])[ids],
        "topic": ids % 2, "word": ids, "partner": ids ^ 1, "end": np.ones_like(ids),
        "row": np.array([[-1, *[0] * 19, *[1] * 19, -1]]),
        "column": np.array([[-1, *range(19), *range(19), -1]]),
    }  # fmt: skip
    real = np.ones_like(ids, bool)
    return Prompts("ngrams", ids, real, False, np.isin(ids, (2, 5)), causal, marks)


def matched(pairs, causal):
    """What label vectors match, as a reading says it."""
    q = pairs[0].q[0]
    rows = {int(i): {} for i in np.flatnonzero(q >= 0)}
    for pair in pairs:
        for i, keys in rows.items():
            for j in range(len(q) if not causal else i + 1):
                if pair.q[0, i] >= 0 and pair.q[0, i] == pair.k[0, j]:
                    keys[j] = keys.get(j, 0) + pair.sign * (not pair.strict or i != j)
    return {i: {j: sign for j, sign in keys.items() if sign} for i, keys in rows.items()}


def _at(place, first, *, in_encoders=None):
    """One key per row, from row `first` on; in encoders from another."""

    def read(doc, causal):
        start = first if causal or in_encoders is None else in_encoders
        return {i: {place(i): 1} for i in range(start, len(doc.ids[0]))}

    return read


def _seen(i, n, causal):
    return range(i + 1) if causal else range(n)


def _duplicate(doc, causal):
    t = doc.ids[0]
    return {
        i: {j: 1 for j in _seen(i, len(t), causal) if t[j] == t[i] and j != i}
        for i in range(len(t))
        if t[i] in t[:i]
    }


def _induction(doc, causal):
    t = doc.ids[0]
    return {
        i: {
            j: 1 for j in _seen(i, len(t), causal)
            if j >= 1 and t[j - 1] == t[i] and (causal or j != i + 1)
        }
        for i in range(len(t))
        if t[i] in t[:i]
    }  # fmt: skip


def _delimiter(doc, causal):
    n = len(doc.ids[0])
    return {
        i: {j: 1 for j in _seen(i, n, causal) if doc.delimiter[0, j]}
        for i in range(1 if causal else 0, n)
    }


def _rare_token(doc, causal):
    t, sentence, rarity = doc.ids[0], doc.marks["sentence"][0], doc.marks["rarity"][0]
    found = {}
    for i in range(len(t)):
        own = [j for j in range(len(t)) if sentence[j] == sentence[i] and (j <= i or not causal)]
        rarest = max(own, key=lambda j: rarity[j])
        if rarity[rarest] >= RARE and rarity[rarest] > rarity[i]:
            found[i] = {j: 1 for j in own if t[j] == t[rarest]}
    return found


def _ngram_induction(doc, causal):
    t, found = doc.ids[0], {}
    for i in range(1, len(t)):
        both = [j for j in range(1, i) if t[j] == t[i] and t[j - 1] == t[i - 1]]
        last = [j for j in range(i) if t[j] == t[i] and j not in both]
        if both and last:
            found[i] = {
                j: 1 if j >= 2 and t[j - 2] == t[i - 1] else -1
                for j in _seen(i, len(t), causal)
                if j >= 1 and t[j - 1] == t[i] and (causal or j != i + 1)
            }
    return found


def _semantic(doc, causal):
    topic, word, partner = (doc.marks[name][0] for name in ("topic", "word", "partner"))
    found = {}
    for i in range(len(word)):
        seen = [j for j in range(len(word)) if j < i or not causal]
        same = [j for j in seen if topic[j] == topic[i] and word[j] != word[i]]
        rivals = [j for j in seen if topic[j] != topic[i] and word[j] != partner[i]]
        if same and rivals:
            found[i] = dict.fromkeys(same, 1) | dict.fromkeys(rivals, -1)
    return found


def _on_grid(matches):
    """One key for another where their rows and columns match."""

    def read(doc, causal):
        row, column = doc.marks["row"][0], doc.marks["column"][0]
        cells = list(zip(row.tolist(), column.tolist(), strict=True))
        inside = [i for i, (r, _) in enumerate(cells) if r >= 0]
        found = {}
        for i in inside:
            own = [j for j in _seen(i, len(cells), causal) if matches(cells[i], cells[j])]
            found[i] = dict.fromkeys(own, 1)
        return found

    return read


def _beside(one, other):
    return other[0] >= 0 and max(abs(one[0] - other[0]), abs(one[1] - other[1])) == 1


def _above(doc, causal):
    found = _on_grid(lambda one, other: other == (one[0] - 1, one[1]))(doc, causal)
    return {i: keys for i, keys in found.items() if doc.marks["row"][0, i] > 0}


READ = {
    "previous_token": (("score = mean_i A[i, i−1],  i ≥ 1",), _at(lambda i: i - 1, 1)),
    "offset": (
        ("score = mean_i A[i, i+k*],  k* = argmax_k mean_i A[i, i+k] on the other half",),
        _at(lambda i: i - 3, 3),
    ),
    "first_position": (
        ("score = mean_i A[i, 0],  i ≥ 1", "encoders: i ≥ 0"), _at(lambda i: 0, 1, in_encoders=0)
    ),
    "current_token": (
        ("score = mean_i A[i, i],  i ≥ 1", "encoders: i ≥ 0"), _at(lambda i: i, 1, in_encoders=0)
    ),
    "duplicate_token": (
        ("score = mean_i Σ_{j<i} A[i, j] · [t[j] = t[i]]", "encoders: Σ_{j≠i}"), _duplicate
    ),
    "induction": (
        ("score = mean_i Σ_{j≤i} A[i, j] · [t[j−1] = t[i]]", "encoders: Σ_{j≠i+1}"), _induction
    ),
    "delimiter": (
        ("score = mean_i Σ_j A[i, j] · [t[j] is a delimiter],  i ≥ 1", "encoders: i ≥ 0"),
        _delimiter,
    ),
    "rare_token": (
        (
            "score = mean_i Σ_j A[i, j] · [t[j] = the rarest of the sentence up to i]",
            "encoders: [t[j] = the rarest of the whole sentence]",
        ),
        _rare_token,
    ),
    "ngram_induction": (
        (
            "score = mean_i Σ_j A[i, j] · ([t[j−2..j−1] = t[i−1..i]] − [t[j−1] = t[i], t[j−2] ≠ "
            "t[i−1]])",
            "encoders: Σ_{j≠i+1}",
        ),
        _ngram_induction,
    ),
    "semantic": (
        (
            "score = mean_i Σ_{j<i} A[i, j] · ([same topic, other word] − [partner of such a "
            "word])",
            "encoders: Σ_j",
        ),
        _semantic,
    ),
    "grid_neighbour": (
        (
            "score = mean_i A[i, i + d*],  d* = argmax_d mean_i A[i, i + d] on the other half",
            "d = (±1, 0), (0, ±1), (±1, ±1) in rows and columns; patches at that edge are not "
            "scored",
        ),
        _above,
    ),
    "grid_surround": (
        ("score = mean_i Σ_j A[i, j] · [max(|r[i] − r[j]|, |c[i] − c[j]|) = 1]",),
        _on_grid(_beside),
    ),
    "grid_row": (
        ("score = mean_i Σ_{j≠i} A[i, j] · [r[i] = r[j]]",),
        _on_grid(lambda one, other: one[0] == other[0] and one != other),
    ),
    "grid_column": (
        ("score = mean_i Σ_{j≠i} A[i, j] · [c[i] = c[j]]",),
        _on_grid(lambda one, other: one[1] == other[1] and one != other),
    ),
    "outside_grid": (
        ("score = mean_i Σ_j A[i, j] · [j is no patch]",),
        _on_grid(lambda _, other: other[0] < 0),
    ),
}  # fmt: skip
"""Kind -> (the lines of its formula, the reading)."""
