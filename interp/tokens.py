"""Text to tokens with the beginning and the padding said out loud, and tokens a person can read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from .encode import as_input_error, beginning, encode
from .errors import InputError
from .files import read_text
from .visible import visible, visible_all

__all__ = [
    "Tokens",
    "bos_token",
    "context_length",
    "fits",
    "read_text",
    "tokenize",
    "visible",
    "visible_all",
    "windows",
]

_SURROGATE = re.compile("[\ud800-\udfff]")
_PROBES = ("a", "the", "1", ".")  # texts that show which special tokens go around a text


@dataclass(frozen=True, eq=False, repr=False)
class Tokens:
    """A batch of token sequences, padded to one length.

    Args:
        ids: token ids; padding holds the tokenizer's padding token (id 0 when it has none).
        mask: True where a real token stands, False on padding.
        spelling: what `strings` gives, or a function that makes it when it is first asked for.
        bos: whether every sequence begins with a special token (BOS or CLS), the usual sink.
    """

    ids: Int64[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    spelling: list[list[str]] | Callable[[], list[list[str]]]
    bos: bool

    @cached_property
    def strings(self) -> list[list[str]]:
        """The vocabulary's own strings, one per position of `ids`, padding included.

        `visible` makes them readable. They take far more memory than the ids.
        """
        return self.spelling() if callable(self.spelling) else self.spelling

    def __repr__(self) -> str:
        n_padding = int((~self.mask).sum())
        padding = f"{n_padding} of them padding" if n_padding else "no padding"
        count, length = self.ids.shape
        bos = "with a BOS" if self.bos else "without a BOS"
        return f"<Tokens: {count} × {length} ids, {padding}, {bos}>"

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
    text by habit, with the prefix changed by `prepend_bos`. What a text spells is text: a `<s>` in
    it never becomes the special token.

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
        >>> tokens = tokenize(load("tiny")[1], ["a cat", "a"], prepend_bos=True)
        >>> tokens
        <Tokens: 2 × 4 ids, 2 of them padding, with a BOS>
        >>> tokens.lengths
        [4, 2]
        >>> tokens.strings
        [['<s>', 'a', 'Ġc', 'at'], ['<s>', 'a', '<pad>', '<pad>']]
    """
    if padding_side not in ("left", "right"):
        raise InputError(f"padding_side must be 'left' or 'right'; got {padding_side!r}.")
    texts = _checked(texts)
    prefix, suffix = _frame(tokenizer, prepend_bos)
    room = None if seq_len is None else seq_len - _special(seq_len, prefix, suffix)
    rows = []
    if room is None:
        bodies = encode(tokenizer, texts)
    else:
        bodies = [beginning(tokenizer, text, room) for text in texts]
    for number, body in enumerate(bodies):
        if not body:
            raise InputError(
                f"text {number} gives no tokens: {texts[number][:40]!r}; give some text."
            )
        rows.append([*prefix, *body[:room], *suffix])
    return _pad(tokenizer, rows, padding_side=padding_side, bos=bool(prefix))


def windows(
    tokenizer: Any,
    text: str,
    *,
    seq_len: int,
    prepend_bos: bool | None = None,
    limit: int | None = None,
) -> Tokens:
    """Cut one long text into consecutive sequences of `seq_len` tokens each.

    Every window carries its own special tokens, so it holds `seq_len` minus those of the text. A
    rest too short for a full window is left out, unless it is all there is.

    Args:
        tokenizer: a Hugging Face tokenizer.
        text: the text to cut.
        seq_len: tokens per window, special ones included.
        prepend_bos: as in `tokenize`.
        limit: at most this many windows; only as much of the text is encoded as they need, and
            some more, so that they are those of the whole text. None: all.

    Returns:
        Tokens [windows, seq_len] without padding; one shorter row for a text shorter than a window.

    Raises:
        InputError: empty text, a length that leaves no room for text, or a limit below 1.

    Example:
        >>> from headatlas.interp.load import load
        >>> windows(load("tiny")[1], "the cat sat " * 10**5, seq_len=16, limit=2).ids.shape
        torch.Size([2, 16])
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} asks for no window; give at least 1, or None for all.")
    (text,) = _checked(text)
    prefix, suffix = _frame(tokenizer, prepend_bos)
    room = seq_len - _special(seq_len, prefix, suffix)
    body = beginning(tokenizer, text, None if limit is None else limit * room)
    if not body:
        raise InputError(f"the text gives no tokens: {text[:40]!r}; give some text.")
    full = max(len(body) // room, 1)
    if limit is not None:
        full = min(full, limit)
    rows = [[*prefix, *body[i * room : (i + 1) * room], *suffix] for i in range(full)]
    return _pad(tokenizer, rows, padding_side="right", bos=bool(prefix))


def fits(tokenizer: Any, text: str, *, seq_len: int, prepend_bos: bool | None = None) -> bool:
    """Whether a text has at most `seq_len` tokens, without encoding more of it than that takes.

    Args:
        tokenizer: a Hugging Face tokenizer.
        text: the text.
        seq_len: such as the model's `context_length`.
        prepend_bos: as in `tokenize`.

    Raises:
        InputError: empty text.

    Example:
        >>> from headatlas.interp.load import load
        >>> tokenizer = load("tiny")[1]
        >>> fits(tokenizer, "a cat", seq_len=8), fits(tokenizer, "a cat " * 10**5, seq_len=8)
        (True, False)
    """
    (text,) = _checked(text)
    prefix, suffix = _frame(tokenizer, prepend_bos)
    room = seq_len - len(prefix) - len(suffix)
    return room >= 0 and len(beginning(tokenizer, text, room + 1)) <= room


def bos_token(tokenizer: Any, prepend_bos: bool | None) -> int | None:
    """The special token that begins every sequence under the policy, or None.

    Args:
        tokenizer: may be None: then there is no BOS, and asking for one is an error.
        prepend_bos: as in `tokenize`.

    Raises:
        InputError: a BOS is asked for and the tokenizer has none.
    """
    if prepend_bos is False or (prepend_bos is None and tokenizer is None):
        return None
    if tokenizer is None:
        raise InputError("prepend_bos=True needs a tokenizer to say which token that is.")
    prefix, _ = _frame(tokenizer, prepend_bos)
    return prefix[0] if prefix else None


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
        if _SURROGATE.search(text):
            raise InputError(f"text {number} holds a lone surrogate, which no UTF-8 text can.")
    return texts


def _frame(tokenizer: Any, prepend_bos: bool | None) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    name = type(tokenizer).__name__
    for probe in _PROBES:
        (body,) = encode(tokenizer, [probe])
        if body:
            break
    else:
        raise InputError(
            f"{name} gives no tokens for {', '.join(map(repr, _PROBES))}: its vocabulary is "
            f"missing or of another alphabet. Use the tokenizer that belongs to the model."
        )
    with as_input_error(tokenizer):
        whole = tokenizer(probe, padding=False, truncation=False)["input_ids"]
    start = next((i for i in range(len(whole)) if whole[i : i + len(body)] == body), None)
    if start is None:
        raise InputError(
            f"{name} changes a text when it adds special tokens: {probe!r} is {body} without and "
            f"{list(whole)} with them. Use a tokenizer that puts them around the text."
        )
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
    return Tokens(ids, mask, partial(_strings, tokenizer, ids), bos)


def _strings(tokenizer: Any, ids: Int64[Tensor, "batch pos"]) -> list[list[str]]:
    return [
        [
            _string(token, i)
            for token, i in zip(tokenizer.convert_ids_to_tokens(row), row, strict=True)
        ]
        for row in ids.tolist()
    ]


def _string(token: Any, token_id: int) -> str:
    """Vocabularies may have holes (None), and a few slow tokenizers keep bytes."""
    if isinstance(token, bytes):
        return token.decode("utf-8", "backslashreplace")
    return f"<id {token_id}>" if token is None else str(token)
