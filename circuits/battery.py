"""The battery of `classify`: how much text to score on, and the prompt sets that follow."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..interp.errors import InputError
from ..interp.probes import (
    MIN_PROMPTS,
    MIN_TOKENS,
    Prompts,
    classic_prompts,
    natural_prompts,
    random_prompts,
    token_pool,
)
from ..interp.tokens import bos_token, context_length
from .kind import Kind

_CLASSIC_PROMPTS = 16
_MOST_DRAWS = 1000
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def whole_number(name: str, value: Any, least: int) -> int:
    """The value as an int; NumPy's integers are taken, bools are not.

    Raises:
        InputError: it is no whole number, or below `least`; the message calls it `name`.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{name} is a whole number of at least {least}; got {value!r}.")
    return number


@dataclass(frozen=True)
class Battery:
    """How much text to score on.

    Args:
        prompts: documents per prompt set; at least 16.
        seq_len: tokens per document, BOS included; None takes 256, or the model's context.
        text: running text for the natural set; None generates it.
        prepend_bos: True, False, or None for the tokenizer's habit.
        null_draws: permutations of the content labels to score beside the true ones.
        seed: seed of prompts, sampled rows, halves and bootstrap.

    Raises:
        InputError: one of them is not of the sort described.
    """

    prompts: int = 64
    seq_len: int | None = None
    text: str | None = None
    prepend_bos: bool | None = None
    null_draws: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"prompts": MIN_PROMPTS, "seq_len": MIN_TOKENS, "null_draws": 0, "seed": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None or name != "seq_len":
                object.__setattr__(self, name, whole_number(name, value, low))
        if self.null_draws > _MOST_DRAWS:
            raise InputError(f"at most {_MOST_DRAWS} null draws; got {self.null_draws}.")
        if self.text is not None and not isinstance(self.text, str):
            raise InputError(f"text is a str; got {type(self.text).__name__}.")
        if isinstance(self.prepend_bos, np.bool_):
            object.__setattr__(self, "prepend_bos", bool(self.prepend_bos))
        if self.prepend_bos is not None and not isinstance(self.prepend_bos, bool):
            raise InputError(f"prepend_bos is True, False or None; got {self.prepend_bos!r}.")

    def check(self, kinds: Sequence[Kind]) -> None:
        """Refuse what was asked for but would not take place with these kinds.

        Raises:
            InputError: a text that no kind reads, or null draws where no labels are permuted.
        """
        names = ", ".join(kind.name for kind in kinds)
        if self.text is not None and not any("natural" in kind.reads for kind in kinds):
            raise InputError(
                f"no kind among {names} is scored on natural text, so the text would go unread; "
                "leave it out, or add a kind such as delimiter."
            )
        if self.null_draws and not any(kind.is_permuted for kind in kinds):
            raise InputError(
                f"null draws permute the labels of content kinds only, those whose null is the "
                f"profile and whose variants do not compete; {names} has none. Add a kind such as "
                "induction, or leave null_draws at 0."
            )

    def prompt_sets(
        self, model: Any, tokenizer: Any, kinds: Sequence[Kind], *, causal: bool
    ) -> dict[str, Prompts]:
        """The sets of documents that the kinds read, by name.

        Raises:
            InputError: the lengths do not fit the model, or the text is too short.
        """
        seq_len = self._fit(model)
        pool = _pool(model, tokenizer)
        bos = bos_token(tokenizer, self.prepend_bos)
        wanted = frozenset[str]().union(*(kind.reads for kind in kinds))
        sets = {}
        if "random" in wanted:
            sets["random"] = random_prompts(
                pool, self.prompts, seq_len, bos_id=bos, seed=self.seed, causal=causal
            )
        if "natural" in wanted and tokenizer is not None:
            sets["natural"] = natural_prompts(
                tokenizer, self.prompts, seq_len, text=self.text,
                prepend_bos=bos is not None, seed=self.seed, causal=causal,
            )  # fmt: skip
        if "classic" in wanted:
            sets["classic"] = classic_prompts(
                pool, min(self.prompts, _CLASSIC_PROMPTS), seq_len, bos_id=bos,
                seed=self.seed, causal=causal,
            )  # fmt: skip
        return sets

    def _fit(self, model: Any) -> int:
        """The sequence length, checked against the model's context."""
        context = context_length(model)
        if context is not None and context < MIN_TOKENS:
            raise InputError(
                f"the model's context of {context} tokens is too short to score on; documents "
                f"need {MIN_TOKENS} or more."
            )
        seq_len = min(256, context or 256) if self.seq_len is None else self.seq_len
        if context is not None and seq_len > context:
            raise InputError(
                f"sequences of {seq_len} tokens are longer than the model's context of {context}; "
                f"pass a sequence length of {context} or less."
            )
        return seq_len


def _pool(model: Any, tokenizer: Any) -> Any:
    """Ids that random prompts draw from."""
    config = model.config.get_text_config()
    special = [getattr(config, name, None) for name in _SPECIAL]
    flat = [i for entry in special for i in (entry if isinstance(entry, list) else [entry])]
    ids = tuple(i for i in flat if isinstance(i, int))
    return token_pool(config.vocab_size, tokenizer, special=ids)
