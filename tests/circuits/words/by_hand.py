"""Word-level scores recomputed cell by cell from whole patterns, by code of their own."""

from __future__ import annotations

import numpy as np


def between_words(pattern, word_of, mask, n_words, *, causal):
    """W[query word, key word] of one head, and W with what may not be chosen at −1."""
    first = int(np.flatnonzero(mask)[0])
    tokens = [np.flatnonzero(word_of == word) for word in range(n_words)]
    weights, chosen = np.zeros((n_words, n_words)), -np.ones((n_words, n_words))
    for query in range(n_words):
        if not len(tokens[query]):
            continue
        rows = tokens[query][-1:] if causal else tokens[query]
        for key in range(n_words):
            weights[query, key] = np.mean([pattern[row, tokens[key]].sum() for row in rows])
            allowed = [t for t in tokens[key] if not (causal and t == first)]
            if allowed and key != query and not (causal and key > query):
                chosen[query, key] = np.mean([pattern[row, allowed].sum() for row in rows])
    return weights, chosen


def scores(patterns, prompts, links):
    """Mass, hits and chosen of every head, with instances and linked words.

    Args:
        patterns: [layer, sequence, head, query, key].
        prompts: WordPrompts.
        links: for each sequence, a list of (query, keys), all visible.
    """
    layers, _, heads = patterns.shape[:3]
    total = {name: np.zeros((layers, heads)) for name in ("mass", "hits", "chosen")}
    n, linked_words = 0, 0
    for sequence, pairs in enumerate(links):
        n += len(pairs)
        linked = {}
        for query, keys in pairs:
            for key in keys:
                linked.setdefault(key, set()).add(query)
        linked_words += len(linked)
        n_words = len(prompts.documents[sequence].spans)
        for layer in range(layers):
            for head in range(heads):
                weights, chosen = between_words(
                    patterns[layer, sequence, head], prompts.word_of[sequence],
                    prompts.mask[sequence], n_words, causal=prompts.causal,
                )  # fmt: skip
                for query, keys in pairs:
                    total["mass"][layer, head] += weights[query, list(keys)].sum()
                    total["hits"][layer, head] += chosen[query].argmax() in keys
                for key, queries in linked.items():
                    total["chosen"][layer, head] += chosen[:, key].argmax() in queries
    return {name: value.ravel() for name, value in total.items()} | {
        "n": n,
        "linked": linked_words,
    }
