"""Text to tokens with the beginning and the padding said out loud, and tokens a person can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from .errors import InputError
from .files import read_text
from .visible import visible, visible_all

__all__ = [
    "Tokens",
    "context_length",
    "habit_of_bos",
    "read_text",
    "tokenize",
    "visible",
    "visible_all",
    "windows",
]


@dataclass(frozen=True, eq=False)
class Tokens:
    """A batch of token sequences, padded to one length.

    Args:
        ids: token ids; padding holds the tokenizer's padding token (id 0 when it has none).
        mask: True where a real token stands, False on padding.
        strings: the vocabulary's own strings, one per position of `ids`, padding included;
            `visible` makes them readable.
        bos: whether every sequence begins with a special token (BOS or CLS), the usual sink.
    """

    ids: Int64[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    strings: list[list[str]]
    bos: bool

    @property
    def lengths(self) -> list[int]:
        """Real tokens per sequence."""
        return self.mask.sum(dim=1).tolist()


def tokenize(
    tokenizer: Any,
    texts: str | Sequence[str],
    *,
    prepend_bos: bool | None = None,
    seq_len: int | None = None,
    padding_side: str = "right",
) -> Tokens:
    """Turn texts into one padded batch of token ids.

    Each sequence is prefix + text + suffix: the special tokens that the tokenizer puts around a
    text by habit, with the prefix changed by `prepend_bos`.

    Args:
        tokenizer: a Hugging Face tokenizer.
        texts: one text or several.
        prepend_bos: True: a BOS (else CLS) token comes first; False: the text comes first;
            None: the tokenizer's own habit.
        seq_len: keep at most this many tokens per sequence, special ones included; the text is cut
            at its end. None: keep all.
        padding_side: `"right"` or `"left"`.

    Returns:
        The batch, as long as its longest sequence.

    Raises:
        InputError: no text, a text without tokens, no BOS token where one is asked for, a length
            that leaves no room for text.

    Example:
        >>> from headatlas.interp.load import load
        >>> tokens = tokenize(load("tiny")[1], ["a cat", "a"], prepend_bos=True)  # doctest: +SKIP
    """
    if padding_side not in ("left", "right"):
        raise InputError(f"padding_side must be 'left' or 'right'; got {padding_side!r}.")
    texts = _checked(texts)
    prefix, suffix = _frame(tokenizer, prepend_bos)
    room = None if seq_len is None else seq_len - _special(seq_len, prefix, suffix)
    rows = []
    for number, body in enumerate(_encode(tokenizer, texts)):
        if not body:
            raise InputError(
                f"text {number} gives no tokens: {texts[number][:40]!r}; give some text."
            )
        rows.append([*prefix, *body[:room], *suffix])
    return _pad(tokenizer, rows, padding_side=padding_side, bos=bool(prefix))


def windows(tokenizer: Any, text: str, *, seq_len: int, prepend_bos: bool | None = None) -> Tokens:
    """Cut one long text into consecutive sequences of `seq_len` tokens each.

    Every window carries its own special tokens, so it holds `seq_len` minus those of the text. A
    rest too short for a full window is left out, unless it is all there is.

    Args:
        tokenizer: a Hugging Face tokenizer.
        text: the text to cut.
        seq_len: tokens per window, special ones included.
        prepend_bos: as in `tokenize`.

    Returns:
        Tokens [windows, seq_len] without padding; one shorter row for a text shorter than a window.

    Raises:
        InputError: empty text, or a length that leaves no room for text.
    """
    (body,) = _encode(tokenizer, _checked(text))
    if not body:
        raise InputError(f"the text gives no tokens: {text[:40]!r}; give some text.")
    prefix, suffix = _frame(tokenizer, prepend_bos)
    room = seq_len - _special(seq_len, prefix, suffix)
    full = max(len(body) // room, 1)
    rows = [[*prefix, *body[i * room : (i + 1) * room], *suffix] for i in range(full)]
    return _pad(tokenizer, rows, padding_side="right", bos=bool(prefix))


def habit_of_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer, left alone, begins a sequence with a special token."""
    return bool(_frame(tokenizer, None)[0])


def context_length(model: nn.Module) -> int | None:
    """The longest sequence the model has positions for, in tokens.

    Returns:
        None when its positions have no end (T5's relative buckets, ALiBi, models without any).
    """
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    if hasattr(config, "relative_attention_num_buckets") and not hasattr(
        config, "max_position_embeddings"
    ):
        return None  # T5: its files carry an n_positions that nothing reads
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"):
        length = getattr(config, name, None)
        if isinstance(length, int) and length > 0:
            return length - _reserved_positions(model)
    return None


def _reserved_positions(model: nn.Module) -> int:
    """RoBERTa counts positions from its padding index: the rows up to there are never used."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def _checked(texts: str | Sequence[str]) -> list[str]:
    texts = [texts] if isinstance(texts, str) else list(texts)
    if not texts:
        raise InputError("no texts; give at least one.")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {number} is a {type(text).__name__}, not a string.")
        if not text:
            raise InputError(f"text {number} is empty; give some text.")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"text {number} holds a lone surrogate, which no UTF-8 text can.")
    return texts


def _encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Ids of the texts alone, without special tokens, padding or a cut."""
    options = {"add_special_tokens": False, "padding": False, "truncation": False}
    # verbose: no complaint about length, which is the caller's to check
    return tokenizer(texts, return_attention_mask=False, verbose=False, **options)["input_ids"]


def _frame(tokenizer: Any, prepend_bos: bool | None) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    probe = "a"
    (body,) = _encode(tokenizer, [probe])
    whole = tokenizer(probe, padding=False, truncation=False)["input_ids"]
    start = next((i for i in range(len(whole)) if body and whole[i : i + len(body)] == body), None)
    if start is None:
        raise InputError(f"{type(tokenizer).__name__} changes a text when it adds special tokens.")
    prefix, suffix = list(whole[:start]), list(whole[start + len(body) :])
    if prepend_bos is False:
        prefix = []
    elif prepend_bos and not prefix:
        first = tokenizer.bos_token_id
        first = getattr(tokenizer, "cls_token_id", None) if first is None else first
        if first is None:
            raise InputError(
                "prepend_bos=True, but the tokenizer has no BOS or CLS token; use False."
            )
        prefix = [first]
    return prefix, suffix


def _special(seq_len: int, prefix: list[int], suffix: list[int]) -> int:
    """How many of `seq_len` tokens are special; some must be left for text."""
    special = len(prefix) + len(suffix)
    if seq_len <= special:
        raise InputError(
            f"seq_len={seq_len} leaves no room for text beside {special} special tokens; "
            f"give at least {special + 1}."
        )
    return special


def _pad(tokenizer: Any, rows: list[list[int]], *, padding_side: str, bos: bool) -> Tokens:
    width = max(map(len, rows))
    filler = 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ids = torch.full((len(rows), width), filler, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        place = slice(0, len(row)) if padding_side == "right" else slice(width - len(row), width)
        ids[number, place] = torch.tensor(row)
        mask[number, place] = True
    strings = [
        [
            _string(token, i)
            for token, i in zip(tokenizer.convert_ids_to_tokens(row), row, strict=True)
        ]
        for row in ids.tolist()
    ]
    return Tokens(ids, mask, strings, bos)


def _string(token: Any, token_id: int) -> str:
    """Vocabularies may have holes (None), and a few slow tokenizers keep bytes."""
    if isinstance(token, bytes):
        return token.decode("utf-8", "backslashreplace")
    return f"<id {token_id}>" if token is None else str(token)
