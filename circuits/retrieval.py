"""Retrieval heads: those that look at the very token of a far-off sentence that comes next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int

from ..interp.attach import AttentionCall, attach
from ..interp.encode import encode
from ..interp.errors import InputError
from ..interp.forward import run_whole
from ..interp.grammar import Grammar
from ..interp.heads import HeadId
from ..interp.probes import MIN_PROMPTS
from ..interp.sites import attention_sites, unbridged
from ..interp.tokens import bos_token, context_length
from .arguments import whole_number
from .bootstrap import Sample, halves, simultaneous_bounds
from .grade import GRADES, Rule
from .score import one_direction

LEGACY_THRESHOLD = 0.1
"""Wu 2024: a retrieval head copies more than this share of the needle's tokens."""

_SHORTEST = 64
_NEEDLE = (8, 24)  # tokens
_CUE_SHARE = 3  # the cue is the needle's first third


@dataclass(frozen=True, eq=False)
class Haystack:
    """A text with a sentence hidden in it, whose beginning and rest follow at its end.

    Args:
        ids: the document's tokens.
        needle: column of the needle's first token.
        copy: column of its first token in the copy.
        n_needle: tokens of the needle.
        n_cue: how many of the copy's tokens are given; the others are scored.
    """

    ids: Int[np.ndarray, " pos"]
    needle: int
    copy: int
    n_needle: int
    n_cue: int

    @property
    def rows(self) -> Int[np.ndarray, " scored"]:
        """Columns whose next token is scored."""
        return np.arange(self.copy + self.n_cue - 1, self.copy + self.n_needle - 1)


@dataclass(frozen=True, eq=False)
class RetrievalScores:
    """How much of the needles each head copies.

    Args:
        rows: one row per head: site, layer, head, score, expected, excess, low, high, p, n (scored
            tokens), grade, legacy (score above 0.1).
        haystacks: how many there were.
        seq_len: tokens per haystack.
        recalled: share of the scored tokens that the model itself ranks first.
    """

    rows: pd.DataFrame
    haystacks: int
    seq_len: int
    recalled: float

    def heads(self, grade: str = "weak") -> list[HeadId]:
        """Heads of at least this grade, the highest score first."""
        if grade not in GRADES:
            raise InputError(f"a grade is one of {', '.join(GRADES)}; got {grade!r}.")
        at_least = GRADES[GRADES.index(grade) :]
        records: list[dict[Any, Any]] = self.rows.to_dict("records")
        found = sorted((r for r in records if r["grade"] in at_least), key=lambda r: -r["score"])
        return [HeadId(r["site"], r["layer"], r["head"]) for r in found]

    def __repr__(self) -> str:
        legacy = sum(bool(above) for above in self.rows["legacy"])
        return (
            f"<retrieval scores of {len(self.rows)} heads over {self.haystacks} haystacks of "
            f"{self.seq_len} tokens: {len(self.heads('strong'))} strong, "
            f"{len(self.heads('weak')) - len(self.heads('strong'))} weak, {legacy} above "
            f"{LEGACY_THRESHOLD}; the model recalls {self.recalled:.0%}>"
        )


@torch.no_grad()
def retrieval_scores(
    model: Any,
    tokenizer: Any,
    *,
    haystacks: int = 32,
    seq_len: int | None = None,
    prepend_bos: bool | None = None,
    rule: Rule | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> RetrievalScores:
    """Share of a hidden sentence's tokens that each head copies when the sentence comes again.

    A haystack is generated text with a sentence of another topic at a random depth; at its end
    the sentence is repeated, its first third as a cue. At the row before each further token w of
    the copy, a head copies w if its largest weight is on a token of the hidden sentence that
    equals w:

        score = mean over haystacks of (tokens copied / tokens scored).

    expected is the same with w drawn evenly from the needle's other tokens: what a head gets that
    looks into the needle without looking for the next token. The copy is teacher-forced, so a
    token counts also where the model itself would have said another (`recalled` says how often it
    agrees); Wu 2024 lets the model generate, after a question.

    Args:
        model: a transformers model whose queries see earlier keys only.
        tokenizer: its tokenizer.
        haystacks: how many documents, at least 16.
        seq_len: tokens per document, 64 or more; None takes 512, or the model's context.
        prepend_bos: True, False, or None for the tokenizer's habit.
        rule: margins, level and resamples for the grades.
        seed: seed of the texts and of the bootstrap.
        progress: called with ("retrieval", done, haystacks).

    Returns:
        The scores.

    Raises:
        InputError: a model with attention to both sides or without an LM head, or numbers out of
            range.

    Example:
        >>> import headatlas as ha
        >>> model, tokenizer = ha.load("tiny")
        >>> len(retrieval_scores(model, tokenizer, haystacks=16, seq_len=96).rows)
        32

    Reference:
        Wu 2024 (retrieval heads; score and threshold); the baseline is this project's.
    """
    model = unbridged(model)
    count = whole_number("haystacks", haystacks, MIN_PROMPTS)
    length = _length(model, seq_len)
    sites = attention_sites(model)
    if not one_direction(sites):
        raise InputError("retrieval is about generation: the model's queries see both sides.")
    if model.get_output_embeddings() is None:
        raise InputError(f"{type(model).__name__} has no LM head to generate with.")
    made = make_haystacks(tokenizer, count, length, prepend_bos=prepend_bos, seed=seed)
    heads = [head for site in sites for head in site.heads]
    copied, expected = np.zeros((2, count, len(heads)))
    recalled = 0
    for number, haystack in enumerate(made):
        tops, logits = _largest(model, haystack)
        copied[number], expected[number] = _copied(haystack, tops)
        following = haystack.ids[haystack.rows + 1]
        recalled += int((logits.argmax(-1).cpu().numpy() == following).sum())
        if progress is not None:
            progress("retrieval", number + 1, count)
    rows = np.array([len(haystack.rows) for haystack in made])
    frame = _frame(heads, copied, expected, int(rows.sum()), Rule() if rule is None else rule, seed)
    return RetrievalScores(frame, count, length, recalled / int(rows.sum()))


def make_haystacks(
    tokenizer: Any,
    count: int,
    seq_len: int,
    *,
    prepend_bos: bool | None = None,
    seed: int = 0,
) -> list[Haystack]:
    """Haystacks of `seq_len` tokens each; number n depends on the seed and on n alone.

    Raises:
        InputError: the tokenizer needs too many tokens for the sentences.
    """
    bos = bos_token(tokenizer, prepend_bos)
    start = [] if bos is None else [bos]
    return [_haystack(tokenizer, start, seq_len, (seed, 9, number)) for number in range(count)]


def _haystack(tokenizer: Any, start: list[int], seq_len: int, seeds: tuple[int, ...]) -> Haystack:
    rng = np.random.default_rng(seeds)
    grammar = Grammar(int(rng.integers(2**31)))
    hay = grammar.document(12)
    needle = _needle(tokenizer, grammar, hay.topic, min(_NEEDLE[1], seq_len // 4))
    room = seq_len - len(start) - 2 * len(needle)
    sentences: list[list[int]] = []
    while sum(map(len, sentences)) < room:
        sentences += _spelt(tokenizer, [sentence.text for sentence in hay.sentences])
        hay = grammar.document(12)
    depth = int(rng.integers(len(sentences)))
    before = [i for sentence in sentences[:depth] for i in sentence]
    after = [i for sentence in sentences[depth:] for i in sentence]
    # cut where the haystack starts, so that the text runs on into the copy
    body = [*before, *needle, *after]
    extra = len(before) + len(after) - room
    if extra > len(before):
        body, place = [*needle, *after[extra - len(before) :]], 0
    else:
        body, place = body[extra:], len(before) - extra
    ids = np.array([*start, *body, *needle], np.int64)
    n_cue = max(1, len(needle) // _CUE_SHARE)
    return Haystack(ids, len(start) + place, seq_len - len(needle), len(needle), n_cue)


def _needle(tokenizer: Any, grammar: Grammar, topic: str, longest: int) -> list[int]:
    """A sentence of another topic, of a length that leaves room for the haystack."""
    for _ in range(200):
        document = grammar.document(3)
        if document.topic == topic:
            continue
        for ids in _spelt(tokenizer, [sentence.text for sentence in document.sentences]):
            if _NEEDLE[0] <= len(ids) <= longest and len(set(ids)) > len(ids) // 2:
                return ids
    raise InputError(
        f"no generated sentence has {_NEEDLE[0]} to {longest} tokens under this tokenizer; pass a "
        "larger seq_len."
    )


def _spelt(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Each text as it is spelt within running text, after a full stop."""
    (lead,) = encode(tokenizer, ["."])
    rows = encode(tokenizer, [f". {text}" for text in texts])
    joined = all(row[: len(lead)] == lead for row in rows)
    return [row[len(lead) :] for row in rows] if joined else encode(tokenizer, texts)


def _largest(model: Any, haystack: Haystack) -> tuple[np.ndarray, torch.Tensor]:
    """Column of the largest weight of each head [head, scored], and the logits [scored, vocab]."""
    tops: list[np.ndarray] = []
    rows = torch.from_numpy(haystack.rows).to(model.device)

    def observe(call: AttentionCall) -> None:
        if call.edited:  # statistics no longer follow from q and k
            top = call.pattern[0][:, rows].argmax(-1)
        else:
            found = call.probe(top=True).top_key
            if found is None:
                raise InputError(f"{call.site.module} gave no largest weight.")
            top = found[0][:, rows]
        tops.append(top.cpu().numpy())

    with attach(model, observers=[observe]):
        ids = torch.from_numpy(haystack.ids)[None].to(model.device)
        logits = run_whole(model, ids).logits[0, rows]
    return np.concatenate(tops), logits


def _copied(haystack: Haystack, tops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per head: share of the scored tokens copied, and that expected of another token."""
    place = tops - haystack.needle
    inside = (place >= 0) & (place < haystack.n_needle)
    looked = np.where(inside, haystack.ids[tops.clip(min=0)], -1)
    following = haystack.ids[haystack.rows + 1]
    own = haystack.ids[haystack.needle : haystack.needle + haystack.n_needle]
    others = (own[None] != following[:, None]).sum(1)
    alike = (looked[..., None] == own).sum(-1) * (looked != following)
    return (looked == following).mean(1), (alike / np.maximum(others, 1)).mean(1)


def _frame(
    heads: list[HeadId],
    copied: np.ndarray,
    expected: np.ndarray,
    n: int,
    rule: Rule,
    seed: int,
) -> pd.DataFrame:
    per_document = copied - expected
    excess = per_document.mean(0)
    half = halves(len(copied), seed=seed)
    sample = Sample("retrieval", excess, per_document - excess, half)
    bounds = simultaneous_bounds([sample], level=rule.level, resamples=rule.resamples, seed=seed)
    score = copied.mean(0)
    rows = [
        {
            "site": head.site, "layer": head.layer, "head": head.head,
            "score": float(score[i]), "expected": float(expected[:, i].mean()),
            "excess": float(excess[i]), "low": float(bounds.low[i]), "high": float(bounds.high[i]),
            "p": float(bounds.p[i]), "n": n,
            "grade": rule.grade(float(bounds.low[i]), float(bounds.high[i])),
            "legacy": bool(score[i] > LEGACY_THRESHOLD),
        }
        for i, head in enumerate(heads)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _length(model: Any, seq_len: int | None) -> int:
    context = context_length(model)
    if seq_len is None:
        return min(512, context or 512)
    length = whole_number("seq_len", seq_len, _SHORTEST)
    if context is not None and length > context:
        raise InputError(
            f"haystacks of {length} tokens are longer than the model's context of {context}."
        )
    return length
