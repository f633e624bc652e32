"""Vocabulary strings made readable: blanks, line ends and halves of characters show as such."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_SPACE, _NEWLINE, _TAB = "·", "⏎", "⇥"
_SENTENCEPIECE_SPACE = "\u2581"  # ▁
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE (Radford et al., 2019) writes for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(shifted)}


_BYTES = _byte_alphabet()
_SHIFTED = {character for character in _BYTES if ord(character) >= 256}


def visible(token: str) -> str:
    """Make one vocabulary string readable; plain text, never HTML.

    Blanks become `·`, line ends `⏎`, tabs `⇥`; other control, invisible and direction-changing
    characters are named; bytes that are no whole character show as `<0xE2>`. The string's own
    convention (byte-level `Ġthe`, SentencePiece `▁the`, WordPiece `##ing`) is guessed from it
    alone; `visible_all` sees more.

    Example:
        >>> visible("Ġthe"), visible("\u2581the"), visible("Ċ"), visible("##ing"), visible("âĢ")
        ('·the', '·the', '⏎', '##ing', '<0xE2><0x80>')
    """
    return visible_all([token])[0]


def visible_all(tokens: Sequence[str]) -> list[str]:
    """Make the strings of one vocabulary readable, guessing its convention from all of them.

    Example:
        >>> visible_all(["ĠcafÃ©", "ð", "\u00e9"])  # byte-level: single bytes are no characters
        ['·café', '<0xF0>', '<0xE9>']
        >>> visible_all(["\u2581caf\u00e9", "\u00e9", "<0x0A>"])
        ['·café', 'é', '⏎']
    """
    pieces = any(_SENTENCEPIECE_SPACE in token for token in tokens)
    byte_level = not pieces and any(_SHIFTED & set(token) for token in tokens)
    return [_shown(_text(token, pieces=pieces, byte_level=byte_level)) for token in tokens]


def _text(token: str, *, pieces: bool, byte_level: bool) -> str:
    """Undo the vocabulary's spelling."""
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte:  # SentencePiece's fallback for one byte
        value = int(byte[1], 16)
        return chr(value) if value < 0x80 else token
    if pieces:
        return token.replace(_SENTENCEPIECE_SPACE, " ")
    characters = set(token)
    if not characters <= _BYTES.keys():  # an added token, kept as it was written
        return token
    data = bytes(_BYTES[character] for character in token)
    if byte_level:
        return _decoded(data)
    try:  # "Ã©" alone: surely the two bytes of é, as no language writes it
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return token


def _decoded(data: bytes) -> str:
    """UTF-8 where it is whole, `<0xE2>` where a byte belongs to no whole character."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if "\udc80" <= c <= "\udcff" else c for c in text)


def _shown(text: str) -> str:
    """Replace every character that a reader would not see."""
    if not text:
        return "∅"
    shown = "".join(map(_shown_character, text))
    return f"◌{shown}" if unicodedata.combining(text[0]) else shown


def _shown_character(character: str) -> str:
    named = {" ": _SPACE, "\n": _NEWLINE, "\t": _TAB, "\x7f": "␡"}.get(character)
    if named:
        return named
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures: ␀ ␁ …
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"):
        return f"<U+{code:04X}>"
    return character
