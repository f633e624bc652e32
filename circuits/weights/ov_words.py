"""What OV circuits do to some words: the own logit, and the logit of the next in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...interp.sites import Site
from .ordinals import frequent_tokens
from .reading import Reading
from .vocabulary import Vocabulary, effective_embedding

_FREQUENT = 512
_ORDERS = 1000  # random orders of the ordinal sequences

Sequences = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Words:
    """The words that OV circuits are tried on, as heads read them and as logits.

    Attributes:
        frequent: how many of the tokens, the first ones, are the frequent words.
        tokens: ids; the frequent words, then those of the sequences.
        embedded: [n, d_model], mean embedding taken off, as layer 0 reads them.
        effective: the same as later layers read them.
        logits: columns of the unembedding [d_model, n].
        sequences: each as indices into `tokens`, in order.
    """

    frequent: int
    embedded: Float[Tensor, "n d_model"]
    effective: Float[Tensor, "n d_model"]
    logits: Float[Tensor, "d_model n"]
    sequences: Sequences

    def circuit(self, reading: Reading, site: Site, some: slice | Sequence[int]) -> Tensor:
        """W_E W_OV W_U among some of the words, [head, from, to]."""
        one, group = reading.weights[site], site.n_heads // site.n_kv_heads
        embedded = self.embedded if site.layer == 0 else self.effective
        value = embedded[some] @ one.W_V.float()
        return value.repeat_interleave(group, 0) @ (one.W_O.float() @ self.logits[:, some])


def read_words(
    model: Any, tokenizer: Any, ends: Vocabulary, sequences: Sequences, *, effective: bool
) -> Words:
    """The 512 frequent words and the ordinal sequences, ready for every head."""
    vocab = min(len(ends.embedding), len(ends.unembedding))
    frequent = frequent_tokens(tokenizer, vocab, _FREQUENT)
    flat = [token for line in sequences for token in line]
    tokens = torch.tensor([*frequent.tolist(), *flat], device=ends.embedding.device)
    plain = ends.embedding[tokens].float() - ends.embedding.float().mean(0)
    later = plain
    if effective:
        later = effective_embedding(model, tokens)
        later = later - later.mean(0)
    ends_at = np.cumsum([len(frequent), *map(len, sequences)])
    places = tuple(tuple(range(int(a), int(b))) for a, b in pairwise(ends_at))
    return Words(len(frequent), plain, later, ends.logits(tokens), places)


def token_columns(reading: Reading, ends: Vocabulary, words: Words) -> dict[str, Any]:
    """The shares copied and suppressed of the frequent words, [head] each, and their chance."""
    copied, suppressed = [], []
    own = torch.arange(words.frequent, device=ends.embedding.device)
    for site in reading.weights:
        moved = words.circuit(reading, site, slice(0, words.frequent))
        copied.append((moved.argmax(2) == own).double().mean(1))
        suppressed.append((moved.argmin(2) == own).double().mean(1))
    return {
        "copied": torch.cat(copied).cpu().numpy(),
        "suppressed": torch.cat(suppressed).cpu().numpy(),
        "token_chance": 1 / words.frequent,
    }


def successor_columns(
    reading: Reading, ends: Vocabulary, words: Words, rng: np.random.Generator
) -> dict[str, Any]:
    """successor, successor_expected, successor_n and successor_p, [head]; see `ov_scores`."""
    n_heads = len(reading.heads)
    elements = sum(len(line) - 1 for line in words.sequences)
    hits, null = np.zeros(n_heads), np.zeros((_ORDERS, n_heads))
    for line in words.sequences:
        chosen = _favourites(reading, words, line)
        hits += (chosen[:, :-1] == np.arange(1, len(line))).sum(1)
        for draw in range(_ORDERS):
            order = rng.permutation(len(line))
            null[draw] += (chosen[:, order[:-1]] == order[1:]).sum(1)
    if not elements:
        missing = np.full(n_heads, np.nan)
        return {
            "successor": missing, "successor_expected": np.nan, "successor_n": 0,
            "successor_p": missing,
        }  # fmt: skip
    return {
        "successor": hits / elements,
        "successor_expected": len(words.sequences) / elements,  # a line gives (n − 1) · 1 / (n − 1)
        "successor_n": elements,
        "successor_p": (1 + (null >= hits).sum(0)) / (1 + _ORDERS),
    }


def _favourites(reading: Reading, words: Words, line: Sequence[int]) -> np.ndarray:
    """For each element the other one whose logit every head raises most, [head, element]."""
    found = []
    for site in reading.weights:
        moved = words.circuit(reading, site, list(line))
        moved.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        found.append(moved.argmax(2))
    return torch.cat(found).cpu().numpy()
