"""Text that callers and files give, and what is said of it: strings that can be written out."""

from __future__ import annotations

from typing import Any

from .errors import InputError


def checked_text(text: Any, name: str) -> str:
    """The text, which messages call `name`.

    Raises:
        InputError: no string, or one that no UTF-8 text can hold.

    Example:
        >>> checked_text("a cat", "text 0")
        'a cat'
    """
    if not isinstance(text, str):
        raise InputError(f"{name} is a {type(text).__name__}, not a string.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} holds a lone surrogate, which no UTF-8 text can.") from None
    return text


def counted(n: int, what: str) -> str:
    """A number with its noun, which takes an s unless there is one of it.

    Example:
        >>> counted(1, "document"), counted(0, "head")
        ('1 document', '0 heads')
    """
    return f"{n} {what}{'' if n == 1 else 's'}"


def printable(text: str) -> str:
    """The text with a mark for each sign that cannot be printed, as names of files may hold.

    Example:
        >>> printable("a\\tb\\udcff.txt")
        'a�b�.txt'
    """
    return "".join(sign if sign.isprintable() else "�" for sign in text)
