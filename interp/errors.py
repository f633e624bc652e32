"""The one error that users cause: a wrong input, with what arrived and what to do."""

from __future__ import annotations


class InputError(ValueError):
    """Something the caller passed cannot be used; the message says what and what to do.

    The command line prints it in one line and exits with status 2.
    """
