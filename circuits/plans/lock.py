"""One process at a time: a lock that the kernel takes back however its holder ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...interp.errors import InputError


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of a file while the block runs; False where another process has it.

    Args:
        path: of the lock file, made where there is none. It stays: were it deleted, two processes
            might lock two files of one name.
        wait: until the other lets go.

    Raises:
        InputError: the file cannot be opened, or the system knows no such locks.
    """
    try:
        import fcntl
    except ImportError as error:
        raise InputError("plans need file locks (fcntl), which this system lacks.") from error
    try:
        file = path.open("ab")
    except OSError as error:
        raise InputError(f"cannot lock {str(path)!r}: {error.strerror}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise InputError(f"cannot lock {str(path)!r}: {error.strerror}.") from error
        yield True  # closing the file unlocks it
