"""Writing so that nothing is ever left half-written, and reading text with clear errors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path whose file replaces `path` only when the block ends without an error.

    The temporary file lies in the same folder (a rename across file systems would not be atomic)
    and keeps the suffix of `path`, because many writers choose their format by it. When the block
    raises, the temporary file goes and whatever stood at `path` before is untouched.

    Args:
        path: where the finished file shall stand.

    Yields:
        The path to write to. The file exists already and is empty.

    Raises:
        InputError: the folder is missing, `path` is a folder, or it cannot be written.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "table.csv"
        >>> with atomic_write(target) as temporary:
        ...     _ = temporary.write_text("head,score")
        >>> target.read_text()
        'head,score'
    """
    target = Path(path)
    check_target(target)
    # an existing link keeps pointing where it did: the file behind it is what gets replaced
    target = target.resolve()
    try:
        handle, name = tempfile.mkstemp(
            prefix=f".{target.stem[:32]}-", suffix=target.suffix, dir=target.parent
        )
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {_reason(error)}.") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _adopt_mode(temporary, target)
        try:
            temporary.replace(target)
        except OSError as error:
            raise InputError(f"cannot write {str(path)!r}: {_reason(error)}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_text(path: str | os.PathLike[str]) -> str:
    r"""Read a UTF-8 text file; a byte-order mark goes, and `\r\n` becomes `\n`.

    Raises:
        InputError: no such file, a folder, not readable, not UTF-8 text (with the byte's position),
            or nothing but blanks.
    """
    name = str(path)
    file = Path(path)
    try:
        if file.is_dir():
            raise InputError(f"{name!r} is a folder; give a text file.")
        if not file.exists():
            raise InputError(f"no file {name!r}; give the path of a UTF-8 text file.")
        if not file.is_file():  # reading a pipe or a device might never end
            raise InputError(f"{name!r} is not a regular file; give a UTF-8 text file.")
        data = file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot read {name!r}: {getattr(error, 'strerror', None) or error}."
        ) from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name!r} is UTF-16 text; save it as UTF-8.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name!r} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}. "
            f"Save it as UTF-8, or give a text file."
        ) from error
    if "\0" in text:
        raise InputError(f"{name!r} is binary: byte {data.index(0)} is zero. Give a text file.")
    if not text.strip():
        raise InputError(f"{name!r} is empty; give a file with some text.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_target(target: Path) -> None:
    """Refuse a path that cannot be written, before any work is done for it.

    Raises:
        InputError: the folder is missing, `target` is a folder, or it cannot be written.
    """
    if not target.name or "\0" in str(target):
        raise InputError(f"{str(target)!r} is not a file name; give the path of a file to write.")
    try:
        is_folder, has_parent = target.is_dir(), target.parent.is_dir()
    except OSError as error:
        raise InputError(f"cannot write {str(target)!r}: {_reason(error)}.") from error
    if is_folder:
        raise InputError(f"{str(target)!r} is a folder; give the path of a file to write.")
    if not has_parent:
        raise InputError(
            f"cannot write {str(target)!r}: the folder {str(target.parent)!r} does not exist. "
            f"Create it, or choose another path."
        )
    if target.exists() and not os.access(target, os.W_OK):
        raise InputError(f"cannot write {str(target)!r}: the file is read-only.")


def _adopt_mode(temporary: Path, target: Path) -> None:
    """mkstemp makes private files; give the result the permissions an ordinary `open` would."""
    if target.exists():
        mode = target.stat().st_mode & 0o777
    else:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    temporary.chmod(mode)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
