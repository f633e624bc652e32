"""The one error that users cause: a wrong input, with what arrived and what to do."""

from __future__ import annotations


class InputError(ValueError):
    """Something the caller passed cannot be used; the message says what and what to do.

    The command line prints it in one line and exits with status 2.
    """


def shown(value: object, most: int = 80) -> str:
    """What a message shows of a value: the start of its repr, also where it has none.

    Args:
        value: anything.
        most: characters to show.

    Example:
        >>> shown("a" * 100, 10), shown(10**5000)
        ("'aaaaaaaaa", 'an integer of more than 30 digits')
    """
    if isinstance(value, int) and value.bit_length() > 100:  # Python writes out no very long ones
        return "an integer of more than 30 digits"
    try:
        return repr(value)[:most]
    except Exception:  # such as a list of them
        return f"a {type(value).__name__} that cannot be shown"


def one_line(error: BaseException) -> str:
    """The message of an error as one short line without a full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 240 else text[:239] + "…").rstrip(".")
