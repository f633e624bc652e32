"""What was asked of an ablation, checked, and the documents that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...interp.errors import InputError
from ...interp.frames import is_edited
from ...interp.heads import HeadId, one_or_more, parse_head
from ...interp.named_heads import locate
from ...interp.plain_numbers import as_index
from ...interp.plain_text import counted
from ...interp.probes import MIN_PROMPTS, MIN_TOKENS
from ...interp.sites import Site
from ...interp.texts import Documents, read_documents
from ...interp.tokens import context_length
from ..arguments import whole_number
from ..causal.decoder import check_decoder
from ..causal.stand_in import check_ablations
from .evaluate import check_count, repeated_probe
from .evaluation import Evaluation
from .said import REPEATED, TEXT

DOCUMENTS, SEQ_LEN = 32, 64
"""Defaults: as much as a sweep over hundreds of heads can read on a few cores."""


@dataclass(frozen=True)
class Plan:
    """What was asked for, checked."""

    sites: tuple[Site, ...]
    methods: tuple[str, ...]
    prompts: int
    seq_len: int
    prepend_bos: bool | None
    level: float
    seed: int
    edited: bool = False

    def read(self, model: Any, tokenizer: Any, texts: Any) -> dict[str, Documents]:
        """The text, and the repeated random tokens.

        Raises:
            InputError: text that cannot be read, or too little of it.
        """
        text = texts
        if not isinstance(texts, Documents):
            text = read_documents(
                texts, model, tokenizer, n=self.prompts, seq_len=self.seq_len,
                prepend_bos=self.prepend_bos, seed=self.seed,
            )  # fmt: skip
        for method in self.methods:
            check_count(method, len(text))
        if self.methods != ("zero",):
            text = with_an_equal(text)
        documents, tokens = self._of_second_copies
        probe = repeated_probe(
            model, tokenizer, prompts=documents, seq_len=tokens, prepend_bos=self.prepend_bos,
            seed=self.seed,
        )  # fmt: skip
        return {TEXT: text, REPEATED: probe}

    @property
    def _of_second_copies(self) -> tuple[int, int]:
        """How many documents of repeated tokens, and of how many tokens."""
        return max(self.prompts, MIN_PROMPTS), max(self.seq_len, MIN_TOKENS)

    def settings(self, evaluations: dict[str, dict[str, Evaluation]]) -> dict[str, Any]:
        """Everything needed to run it again."""
        first = {name: next(iter(found.values())) for name, found in evaluations.items()}
        return {
            "methods": [*self.methods], "prompts": self.prompts, "seq_len": self.seq_len,
            "prepend_bos": self.prepend_bos, "level": self.level, "seed": self.seed,
            "origin": {name: one.documents.origin for name, one in first.items()},
            "bos": {name: one.documents.prompts.bos for name, one in first.items()},
            "groups": {name: one.groups for name, one in first.items()},
        }  # fmt: skip

    def caveats(self, evaluations: dict[str, dict[str, Evaluation]]) -> tuple[str, ...]:
        """What limits the figures, in sentences."""
        found = []
        few = int((next(iter(evaluations[TEXT].values())).n > 0).sum())
        if few < MIN_PROMPTS:
            found.append(
                f"{counted(few, 'document')} of text: no interval, which takes {MIN_PROMPTS}"
                + (", and stand-ins from very few." if self.methods != ("zero",) else ".")
            )
        if self.prompts < MIN_PROMPTS or self.seq_len < MIN_TOKENS:
            documents, tokens = self._of_second_copies
            found.append(
                f"second copies are measured on {documents} documents of {tokens} tokens, not on "
                f"{self.prompts} of {self.seq_len}: {MIN_PROMPTS} of {MIN_TOKENS} are the fewest "
                "that do."
            )
        if self.edited:
            found.append("the whole model is the model as it was edited meanwhile.")
        for documents, by_method in evaluations.items():
            for method, one in by_method.items():
                if one.groups > 1 and method != "zero":
                    found.append(
                        f"the {documents} documents were run in {one.groups} groups, each with "
                        f"stand-ins of its own ({method})."
                    )
        return tuple(found)


def make_plan(
    model: Any,
    methods: Any,
    prompts: Any,
    seq_len: Any,
    prepend_bos: Any,
    level: Any,
    seed: Any,
) -> Plan:
    """Check what was asked for.

    Raises:
        InputError: no decoder with a head, an unknown method, or numbers that do not fit.
    """
    sites, ways = check_decoder(model), check_ablations(methods)
    context = context_length(model)
    length = min(SEQ_LEN, context or SEQ_LEN) if seq_len is None else as_index(seq_len)
    if length is None or length < 2:
        raise InputError(f"seq_len is a whole number of tokens, at least 2; got {seq_len!r}.")
    if not isinstance(level, float) or not 0 < level < 1:
        raise InputError(f"level is a number between 0 and 1, such as .95; got {level!r}.")
    count, seed = whole_number("prompts", prompts, 1), whole_number("seed", seed, 0)
    return Plan(sites, ways, count, length, prepend_bos, level, seed, is_edited(model))


def with_an_equal(text: Documents) -> Documents:
    """The documents, the longest cut to the length of the next, so that each has one no shorter.

    Where a single document reaches, no other has a value that could stand in for its own. What is
    before the cut is as it was, because later tokens are not seen.

    Example:
        >>> import numpy as np
        >>> from headatlas.interp.probes import Prompts
        >>> mask = np.arange(5) < np.array([[5], [3], [2]])
        >>> with_an_equal(Documents(Prompts("text", mask * 7, mask, bos=False), "a text"))
        <3 documents of up to 3 tokens, 8 in all, without a BOS; a text, the last 2 tokens of \
document 0 left out (no other is as long)>
    """
    lengths = text.prompts.mask.sum(1)
    limit, most = np.sort(lengths)[-2:].tolist()
    if limit == most:
        return text
    kept = text.prompts.mask & (text.prompts.position < limit)
    prompts = replace(text.prompts, mask=kept).select(slice(None))
    last = f"the last {counted(most - limit, 'token')}"
    if most - limit == 1:
        last = "the last token"
    origin = f"{text.origin}, {last} of document {lengths.argmax()} left out"
    return Documents(prompts, f"{origin} (no other is as long)")


def named_heads(heads: Any, sites: tuple[Site, ...]) -> tuple[HeadId, ...]:
    """The named query heads, in order; a key-value head stands for those of its group.

    Raises:
        InputError: none, one that the model does not have, or one that is named twice.
    """
    listed = [parse_head(head) for head in one_or_more(heads)]
    if not listed:
        raise InputError("no head is named; write L18H6, say.")
    named = locate([*dict.fromkeys(listed)], sites)
    return tuple(
        sorted(HeadId(site.stack, site.layer, i) for site, own in named.items() for i in own.query)
    )
