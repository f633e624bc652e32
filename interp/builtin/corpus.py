"""What `tiny` reads while it is trained: generated documents, prose, and repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ..grammar import Grammar

BOS, PAD, EOS = "<s>", "<pad>", "</s>"
VOCAB = 1024
PROSE = Path(__file__).with_name("prose.txt")

Ids = np.ndarray


def prose() -> str:
    """The prose written for the project."""
    return PROSE.read_text(encoding="utf-8")


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 1,024 tokens that puts `<s>` before every sequence.

    Args:
        texts: what the merges are learnt from.

    Returns:
        The tokenizer; `<s>`, `<pad>` and `</s>` are tokens 0, 1 and 2.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[BOS, PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


@dataclass(frozen=True)
class Corpus:
    """Token streams that training sequences are cut from.

    Args:
        documents: generated documents, joined by empty lines or `</s>`.
        prose: the project's prose.
        vocab: number of tokens; the first three are special.
    """

    documents: Ids
    prose: Ids
    vocab: int

    def batches(
        self, shapes: list[tuple[int, int, float]], *, seed: int
    ) -> Iterator[tuple[Ids, Ids]]:
        """One batch for each (rows, length, share of random tokens): ids and loss weights.

        A fresh random token that nothing could predict weighs .05, a repeated token 1.5, a token
        of text 1, so that the loss speaks mostly of what can be learnt.
        """
        rng = np.random.default_rng(seed)
        for rows, length, share in shapes:
            pairs = [self._sequence(rng, length, share) for _ in range(rows)]
            yield np.stack([ids for ids, _ in pairs]), np.stack([w for _, w in pairs])

    def _sequence(self, rng: np.random.Generator, length: int, share: float) -> tuple[Ids, Ids]:
        kind = rng.choice(4, p=(share, *((1 - share) * part for part in (0.25, 0.65, 0.1))))
        if kind == 0:
            spans = SHORT if length < 128 else LONG
            ids, copied = repeats(lambda n: rng.integers(3, self.vocab, n), rng, length, spans)
            weights = np.where(copied, 1.5, 0.05)
        elif kind == 1:
            ids, copied = repeats(lambda n: self._cut(self.documents, rng, n), rng, length)
            weights = np.where(copied, 1.5, 0.7)
        else:
            ids = self._cut(self.documents if kind == 2 else self.prose, rng, length)
            weights = np.ones(length)
        ids, weights = np.roll(ids, 1), np.roll(weights, 1)
        ids[0] = 0
        return ids, weights

    def _cut(self, stream: Ids, rng: np.random.Generator, n: int) -> Ids:
        start = int(rng.integers(0, len(stream) - n))
        return stream[start : start + n].copy()


@dataclass(frozen=True)
class Spans:
    """How spans repeat: bounds are inclusive, `fresh` is the chance that the next span is new."""

    shortest: int = 8
    longest: int = 80
    gap: int = 60
    fresh: float = 0.4


LONG, SHORT = Spans(), Spans(2, 6, 1, 0.15)


def repeats(
    draw: Callable[[int], Ids], rng: np.random.Generator, length: int, spans: Spans = LONG
) -> tuple[Ids, np.ndarray]:
    """A sequence in which spans of random lengths come back at random gaps, in random order.

    Filler of 0 to `gap` tokens, then a new span or one of those before, and so on until the
    sequence is full; no span is longer than a third of the sequence, no gap than a sixth.

    Args:
        draw: makes n tokens.
        rng: where lengths, gaps and choices come from.
        length: tokens in the sequence.
        spans: bounds of lengths and gaps.

    Returns:
        The tokens, and for each whether an earlier copy of its span predicts it (the first token
        of a copy is not predicted).
    """
    longest = max(spans.shortest, min(spans.longest, length // 3))
    gap = min(spans.gap, length // 6)
    known: list[Ids] = []
    pieces: list[Ids] = []
    copied: list[np.ndarray] = []
    missing = length
    while missing > 0:
        again = bool(known) and rng.random() >= spans.fresh
        if not again:
            known.append(draw(int(rng.integers(spans.shortest, longest + 1))))
        span = known[int(rng.integers(len(known)))] if again else known[-1]
        filler = draw(int(rng.integers(0, gap + 1)))
        predicted = np.full(len(span), again)
        predicted[0] = False
        pieces += [filler, span]
        copied += [np.zeros(len(filler), bool), predicted]
        missing -= len(filler) + len(span)
    return np.concatenate(pieces)[:length], np.concatenate(copied)[:length]


def build(seed: int, *, n_documents: int) -> tuple[PreTrainedTokenizerFast, Corpus]:
    """Generate the documents, learn the tokens and encode everything.

    Args:
        seed: of the grammar.
        n_documents: how many documents; the tokens are learnt from the first 4,000.
    """
    texts = [document.text for document in Grammar(seed).documents(n_documents)]
    tokenizer = train_tokenizer([*texts[:4000], prose()])
    rng = np.random.default_rng(seed)
    ends = ["</s>" if rng.random() < 0.3 else "\n\n" for _ in texts]
    joined = [text + end for text, end in zip(texts, ends, strict=True)]
    encode = tokenizer.backend_tokenizer.encode_batch
    streams = [
        np.concatenate([np.asarray(part.ids) for part in encode(parts, add_special_tokens=False)])
        for parts in (joined, [prose()])
    ]
    return tokenizer, Corpus(streams[0], streams[1], len(tokenizer))
