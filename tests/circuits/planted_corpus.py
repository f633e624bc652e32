"""Sentences of a planted language: a dependent's governor stands earlier, and comes again after it.

In `w012 w063 w005 w031 w100 w063 w009`, w100 is the dependent of w063 (both of class 0), and the
word after a dependent is its governor once more, so a model that finds the governor can predict it.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from headatlas.interp.parsed import Parsed

from .planted import CLASSES, DEPENDENTS, GOVERNORS, VARIANTS, VOCAB

RELATION = "nsubj"
_FILLERS = range(1, 60)


def _word(number: int) -> str:
    return f"w{number:03}"  # of one width: the BOS, a special token, must not stand in another word


def planted_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word `w000` … `w119`; `w000` is the BOS, which is not added by itself."""
    vocabulary = {_word(number): number for number in range(VOCAB)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=_word(1)))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=_word(0), unk_token=_word(1)
    )


def planted_documents(
    n: int, *, seed: int = 0, fixed_offset: float = 0.0, length: int = 40
) -> list[Parsed]:
    """Documents of one sentence each, with one dependent per class that fits.

    Args:
        n: how many.
        seed: seed of the words and gaps.
        fixed_offset: share of the dependents whose governor stands exactly two words back.
        length: words of a document.
    """
    rng = np.random.default_rng((seed, 17))
    return [_document(rng, index, fixed_offset, length) for index in range(n)]


def planted_text(n_words: int, *, seed: int = 0) -> str:
    """Words drawn at random, the BOS aside."""
    rng = np.random.default_rng((seed, 19))
    return " ".join(_word(int(word)) for word in rng.integers(1, VOCAB, n_words))


def _document(rng: np.random.Generator, index: int, fixed: float, length: int) -> Parsed:
    words: list[int] = []
    heads: dict[int, int] = {}
    for kind in rng.permutation(CLASSES):
        gap = 1 if rng.random() < fixed else int(rng.integers(0, 9))
        before = int(rng.integers(0, 3))
        if len(words) + before + gap + 3 > length:
            break
        governor = GOVERNORS[int(kind) * VARIANTS + int(rng.integers(VARIANTS))]
        words += [int(x) for x in rng.choice(_FILLERS, before)] + [governor]
        place = len(words) - 1
        words += [int(x) for x in rng.choice(_FILLERS, gap)] + [DEPENDENTS[int(kind)]]
        heads[len(words) - 1] = place
        words.append(governor)
    words += [int(x) for x in rng.choice(_FILLERS, max(0, length - len(words)))]
    texts = [_word(word) for word in words]
    ends = np.cumsum([len(text) + 1 for text in texts])
    spans = tuple(
        (int(end) - len(text) - 1, int(end) - 1) for text, end in zip(texts, ends, strict=True)
    )
    n = len(texts)
    return Parsed(
        text=" ".join(texts),
        spans=spans,
        sentences=(0,) * n,
        heads=tuple(heads.get(word, -1) for word in range(n)),
        relations=tuple(RELATION if word in heads else "root" for word in range(n)),
        name=f"planted document {index}",
    )
