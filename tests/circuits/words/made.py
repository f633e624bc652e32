"""What tests of word-level scoring share: small treebanks, and patterns set by hand."""

from __future__ import annotations

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headatlas.circuits.words.score import _batches
from headatlas.interp.attach import Edit
from headatlas.interp.parsed import Parsed

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def one_token_words(*, bos: bool = True):
    """A tokenizer whose words are single letters, but for `z`-words of two tokens each."""
    vocab = {"<pad>": 0, "<s>": 1, **{letter: 2 + i for i, letter in enumerate(LETTERS)}}
    vocab |= {f"##{letter}": 40 + i for i, letter in enumerate(LETTERS)}
    core = Tokenizer(models.WordPiece(vocab, unk_token="a", max_input_chars_per_word=8))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", pad_token="<pad>")


def sentence(words, links=(), *, relation="obj", clusters=(), name="made", upos=()):
    """A one-sentence document of these words; each link is (dependent, head)."""
    spans, at = [], 0
    for word in words:
        spans.append((at, at + len(word)))
        at += len(word) + 1
    heads, relations = [-1] * len(words), ["root"] * len(words)
    for dependent, head in links:
        heads[dependent], relations[dependent] = head, relation
    return Parsed(
        " ".join(words), tuple(spans), (0,) * len(words), tuple(heads), tuple(relations),
        tuple(clusters), name, tuple(upos),
    )  # fmt: skip


def planted(prompts, heads, batch_tokens=1024):
    """An edit that sets the pattern of each head of layer 0; what it leaves goes to column 0.

    Args:
        prompts: WordPrompts, right padded.
        heads: for each head a function (document, sequence, tokens of each word) that gives
            (row, column, weight) triples.
        batch_tokens: what `score_words` will be given.
    """
    batches = iter(_batches(prompts, batch_tokens))

    def change(call, pattern):
        if call.site.layer:
            return pattern
        rows = next(batches)
        new = torch.zeros_like(pattern)
        for place, sequence in enumerate(rows):
            words = prompts.word_of[sequence]
            tokens = [np.flatnonzero(words == w) for w in range(words.max() + 1)]
            for head, plant in enumerate(heads):
                for row, column, weight in plant(prompts.documents[sequence], tokens):
                    new[place, head, row, column] += weight
        new[..., 0] += 1 - new.sum(-1)
        return new

    return Edit("pattern", change)


def to_words(pairs, weight=0.8):
    """A head's triples: the last token of each query word on the first token of its key word."""

    def plant(document, tokens):
        return [
            (int(tokens[q][-1]), int(tokens[k][0]), weight)
            for q, k in pairs(document)
            if len(tokens[q]) and len(tokens[k])
        ]

    return plant


def to_offset(offset, weight=0.8):
    """A head that looks a fixed number of words back."""
    return to_words(
        lambda d: [(q, q + offset) for q in range(len(d.spans)) if q + offset >= 0], weight
    )


def none(document, tokens):
    """A head that rests on the first column."""
    return []
