"""A text's own tokens: nothing it spells is a special token, and only what is needed is encoded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from .checkpoint import is_panic
from .errors import InputError, one_line

# Room beyond what is needed when only the beginning of a text is encoded. A cut changes the tokens
# beside it: the word it falls into, or the few pieces over which a unigram model still wavers.
_SPARE_TOKENS = 64
_SPARE_CHARACTERS = 1024
_CHARACTERS_PER_TOKEN = 8  # of plain English some 4.5; where it is not enough, more is encoded


def beginning(tokenizer: Any, text: str, needed: int | None) -> list[int]:
    """At least the first `needed` ids of a text (all: None, or a short text), without special ones.

    The tokens up to `needed` are those of the whole text wherever a token depends on no more than
    the next `_SPARE_TOKENS` ones, as in every usual tokenizer.
    """
    if needed is None:
        return encode(tokenizer, [text])[0]
    length = needed * _CHARACTERS_PER_TOKEN + _SPARE_CHARACTERS
    while length < len(text):
        # at the end of a word where one is near, else anywhere: the spare tokens absorb it
        cut = max(text.rfind(blank, length // 2, length) for blank in " \n")
        (body,) = encode(tokenizer, [text[: cut if cut > 0 else length]])
        if len(body) >= needed + _SPARE_TOKENS:
            return body
        length *= 2
    return encode(tokenizer, [text])[0]


def encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Ids of the texts alone, without special tokens, padding or a cut."""
    # a "<s>" that the text spells is text; verbose: length is the caller's to check
    options: dict[str, Any] = {"add_special_tokens": False, "split_special_tokens": True}
    options |= {"padding": False, "truncation": False, "verbose": False}
    if type(tokenizer).__name__ == "MistralCommonBackend":  # it has no other way and no switch
        del options["split_special_tokens"]
    with as_input_error(tokenizer):
        rows = tokenizer(texts, return_attention_mask=False, **options)["input_ids"]
    special: set[int] = set(getattr(tokenizer, "all_special_ids", ()))
    special.discard(getattr(tokenizer, "unk_token_id", None))  # what an unknown word becomes
    return [
        row if special.isdisjoint(row) else list(_as_spelled(tokenizer, row, special))
        for row in rows
    ]


def _as_spelled(tokenizer: Any, ids: Sequence[int], special: set[int]) -> Iterator[int]:
    """Special tokens that a model of pieces or words still found in a text, letter by letter.

    Its vocabulary holds them like any other entry, so the switch alone does not keep them out.
    """
    for one in ids:
        if one not in special:
            yield one
            continue
        spelled = tokenizer.convert_ids_to_tokens(one)
        letters = tokenizer.convert_tokens_to_ids(list(spelled))
        if None in letters or not special.isdisjoint(letters):
            raise InputError(
                f"the text spells {spelled!r}, which the tokenizer can only read as its special "
                f"token. Take it out of the text."
            )
        yield from letters


@contextlib.contextmanager
def as_input_error(tokenizer: Any) -> Iterator[None]:
    """A tokenizer that fails on a text does so for what its files say; Rust code may even panic."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, InputError) or not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise InputError(
            f"{type(tokenizer).__name__} cannot encode the text: {type(error).__name__}: "
            f"{one_line(error)}. Check the tokenizer's files, or pass another text."
        ) from error
