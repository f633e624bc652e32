"""The battery of `classify`: how much text to score on, and the prompt sets that follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..interp.conllu import read_conllu
from ..interp.errors import InputError
from ..interp.grammar import Grammar
from ..interp.made_prompts import ngram_prompts, topic_prompts
from ..interp.parsed import Parsed, from_grammar
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
from .arguments import whole_number
from .kind import Kind
from .words.prompts import WordPrompts, word_prompts

_CLASSIC_PROMPTS = 16
_MOST_DRAWS = 1000
_DOCUMENTS, _MOST_DOCUMENTS = 64, 512
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class Battery:
    """How much text to score on.

    Args:
        prompts: documents per prompt set, at least 16; or `"auto"`: as many as it takes for the
            labels of kinds on tokens to settle (`settle`), 512 at most. Parsed documents do not
            grow: there are those of the treebank, or 64 of the built-in grammar.
        seq_len: tokens per document, BOS included; None takes 256, or the model's context.
        text: running text for the natural set; None generates it.
        prepend_bos: True, False, or None for the tokenizer's habit.
        null_draws: permutations of the content labels to score beside the true ones.
        seed: seed of prompts, sampled rows, halves and bootstrap.
        treebank: parsed documents for the kinds between words, or the path of a CoNLL-U file; kept
            as a tuple of `Parsed`. None takes as many documents of the
            built-in grammar as there are prompts.

    Raises:
        InputError: one of them is not of the sort described.
    """

    prompts: int | str = _DOCUMENTS
    seq_len: int | None = None
    text: str | None = None
    prepend_bos: bool | None = None
    null_draws: int = 0
    seed: int = 0
    treebank: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.prompts, str) and not self.settles:
            raise InputError(
                f"prompts is a whole number of at least {MIN_PROMPTS}, or 'auto'; got "
                f"{self.prompts!r}."
            )
        least = {"prompts": MIN_PROMPTS, "seq_len": MIN_TOKENS, "null_draws": 0, "seed": 0}
        for name, low in least.items():
            value = getattr(self, name)
            unset = (name == "seq_len" and value is None) or (name == "prompts" and self.settles)
            if not unset:
                object.__setattr__(self, name, whole_number(name, value, low))
        if self.null_draws > _MOST_DRAWS:
            raise InputError(f"at most {_MOST_DRAWS} null draws; got {self.null_draws}.")
        if self.text is not None and not isinstance(self.text, str):
            raise InputError(f"text is a str; got {type(self.text).__name__}.")
        if isinstance(self.prepend_bos, np.bool_):
            object.__setattr__(self, "prepend_bos", bool(self.prepend_bos))
        if self.prepend_bos is not None and not isinstance(self.prepend_bos, bool):
            raise InputError(f"prepend_bos is True, False or None; got {self.prepend_bos!r}.")
        if self.treebank is not None:
            object.__setattr__(self, "treebank", _documents(self.treebank))

    @property
    def settles(self) -> bool:
        """Whether documents are added until the labels have settled."""
        return self.prompts == "auto"

    @property
    def n_prompts(self) -> int:
        """Documents to make per prompt set; where labels are to settle, the most there can be."""
        return _MOST_DOCUMENTS if isinstance(self.prompts, str) else self.prompts

    @property
    def documents(self) -> tuple[Parsed, ...]:
        """The parsed documents that kinds between words are scored on."""
        if self.treebank is not None:
            return self.treebank
        n = _DOCUMENTS if self.settles else self.n_prompts
        return tuple(from_grammar(document) for document in Grammar(self.seed).documents(n))

    def check(self, kinds: Sequence[Kind], *, words: bool = False) -> None:
        """Refuse what was asked for but would not take place with these kinds.

        Args:
            kinds: kinds on tokens.
            words: whether there are kinds between words beside them.

        Raises:
            InputError: a text that no kind reads, null draws where no labels are permuted, or
                documents that are to grow where no kind is scored on tokens.
        """
        names = ", ".join(kind.name for kind in kinds) or "those named (none is scored on tokens)"
        if self.text is not None and not any("natural" in kind.reads for kind in kinds):
            raise InputError(
                f"no kind among {names} is scored on natural text, so the text would go unread; "
                "leave it out, or add a kind such as delimiter."
            )
        if self.settles and not kinds:
            raise InputError(
                "prompts 'auto' adds documents until labels settle for kinds on tokens alone, and "
                "none is named. Give a number of documents, or a larger treebank."
            )
        if self.null_draws and not words and not any(kind.is_permuted for kind in kinds):
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
                pool, self.n_prompts, seq_len, bos_id=bos, seed=self.seed, causal=causal
            )
        if "natural" in wanted and tokenizer is not None:
            sets["natural"] = natural_prompts(
                tokenizer, self.n_prompts, seq_len, text=self.text,
                prepend_bos=bos is not None, seed=self.seed, causal=causal,
            )  # fmt: skip
        if "classic" in wanted:
            sets["classic"] = classic_prompts(
                pool, min(self.n_prompts, _CLASSIC_PROMPTS), seq_len, bos_id=bos,
                seed=self.seed, causal=causal,
            )  # fmt: skip
        if "ngrams" in wanted:
            sets["ngrams"] = ngram_prompts(
                pool, self.n_prompts, seq_len, bos_id=bos, seed=self.seed, causal=causal
            )
        if "topics" in wanted and tokenizer is not None:
            sets["topics"] = topic_prompts(
                tokenizer, self.n_prompts, seq_len, prepend_bos=bos is not None,
                seed=self.seed, causal=causal,
            )  # fmt: skip
        return sets

    def word_prompts(self, model: Any, tokenizer: Any, *, causal: bool) -> WordPrompts:
        """The parsed documents as tokens, cut at the ends of sentences to the sequence length.

        Raises:
            InputError: the length does not fit the model, or the tokenizer gives no places.
        """
        return word_prompts(
            tokenizer, self.documents, seq_len=self._fit(model), prepend_bos=self.prepend_bos,
            causal=causal,
        )  # fmt: skip

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


def _documents(treebank: Any) -> tuple[Parsed, ...]:
    """Parsed documents as they were passed, or read from a CoNLL-U file."""
    if isinstance(treebank, str | Path):
        return tuple(read_conllu(treebank))
    if not isinstance(treebank, Iterable) or isinstance(treebank, Mapping):
        raise InputError(
            "a treebank is the path of a CoNLL-U file, or Parsed documents; got "
            f"{type(treebank).__name__}."
        )
    documents = tuple(treebank)
    wrong = next((d for d in documents if not isinstance(d, Parsed)), None)
    if not documents or wrong is not None:
        got = "none" if wrong is None else type(wrong).__name__
        raise InputError(f"a treebank holds Parsed documents, at least one; got {got}.")
    return documents


def _pool(model: Any, tokenizer: Any) -> Any:
    """Ids that random prompts draw from."""
    config = model.config.get_text_config()
    special = [getattr(config, name, None) for name in _SPECIAL]
    flat = [i for entry in special for i in (entry if isinstance(entry, list) else [entry])]
    ids = tuple(i for i in flat if isinstance(i, int))
    return token_pool(config.vocab_size, tokenizer, special=ids)
