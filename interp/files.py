"""Writing so that nothing is ever left half-written, and reading text with clear errors."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import InputError, one_line

# what only a disk says: full, over quota, too large for it, broken, suddenly read-only or gone
_DISK_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ENODEV, errno.ESTALE,
}  # fmt: skip
MAX_TEXT_BYTES = 256 * 2**20


@contextlib.contextmanager
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
        InputError: the folder is missing, `path` is a folder, a pipe or a device, it cannot be
            written, or the disk fails or fills up while the block writes.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "table.csv"
        >>> with atomic_write(target) as temporary:
        ...     _ = temporary.write_text("head,score")
        >>> target.read_text()
        'head,score'
    """
    target = check_target(Path(path))
    # the name comes before the file, so that the file never stands outside the `try`; 64 random
    # bits are nobody else's
    name = f".{target.stem[:32]}-{secrets.token_hex(8)}{target.suffix}"
    temporary, in_block = target.with_name(name), False
    try:
        temporary.touch(mode=0o600, exist_ok=False)
        in_block = True
        yield temporary
        in_block = False
        to_disk(temporary)
        _adopt_mode(temporary, target)
        temporary.replace(target)
    except OSError as error:
        if not in_block or error.errno in _DISK_ERRORS:
            raise _cannot_write(path, error) from error
        raise  # the block's own, such as an input that is missing
    finally:
        with contextlib.suppress(OSError):  # it must not hide why the writing failed
            temporary.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Wait until a file's content is on the disk: a rename must not get there before it.

    Raises:
        OSError: the content could not be kept. File systems that cannot wait are let off.
    """
    with path.open("rb") as file:
        try:
            os.fsync(file.fileno())
        except OSError as error:
            if error.errno in _DISK_ERRORS:
                raise


def folder_to_disk(folder: Path) -> None:
    """Wait until the names in a folder are on the disk: a file renamed there stays after a crash.

    Raises:
        OSError: the names could not be kept. File systems that cannot wait are let off.
    """
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folder
        return
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise
    finally:
        os.close(opened)


def read_text(path: str | os.PathLike[str]) -> str:
    r"""Read a UTF-8 text file; a byte-order mark goes, and `\r\n` becomes `\n`.

    Raises:
        InputError: no such file, a folder, not readable, larger than 256 MiB, not UTF-8 text (with
            the byte's position), or nothing but blanks.
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
        with file.open("rb") as opened:  # counted while reading: a file may grow
            data = opened.read(MAX_TEXT_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot read {name!r}: {getattr(error, 'strerror', None) or error}."
        ) from error
    if len(data) > MAX_TEXT_BYTES:
        raise InputError(
            f"{name!r} is larger than {MAX_TEXT_BYTES // 2**20} MiB; give a part of it, such as "
            f"its first megabytes."
        )
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


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "empty"
        >>> path.touch()
        >>> sha256_of(path)[:8]
        'e3b0c442'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, most_mib: int, name: str | None = None) -> Any:
    """Read a JSON file of the package's own or of a checkpoint.

    Args:
        path: of the file.
        most_mib: the size up to which one is believed.
        name: how messages call it; None: by its path.

    Raises:
        InputError: it cannot be read, is larger, or no JSON.
    """
    told = repr(str(path)) if name is None else name
    try:
        with path.open("rb") as opened:
            data = opened.read(most_mib * 2**20 + 1)
        if len(data) > most_mib * 2**20:
            raise InputError(f"{told} is larger than {most_mib} MiB, which no such file is.")
        return json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{told} is not valid JSON: {one_line(error)}.") from error


def check_target(path: Path) -> Path:
    """Refuse a path that cannot be written, before any work is done for it.

    Returns:
        The file to replace: an existing link keeps pointing where it did, and what is behind it
        gets the new content.

    Raises:
        InputError: the folder is missing, `path` (or what a link leads to) is a folder, a pipe or a
            device, or it cannot be written.
    """
    name = str(path)
    if not path.name or "\0" in name:
        raise InputError(f"{name!r} is not a file name; give the path of a file to write.")
    try:
        target = path.resolve()
        existing = _status(path)
        has_parent = target.parent.is_dir()
    except OSError as error:
        raise _cannot_write(path, error) from error
    except RuntimeError as error:  # how pathlib reports links that lead in a circle
        raise InputError(
            f"cannot write {name!r}: its links lead in a circle. Choose another path."
        ) from error
    if not has_parent:
        raise InputError(
            f"cannot write {name!r}: the folder {str(target.parent)!r} does not exist. "
            f"Create it, or choose another path."
        )
    if existing is not None and stat.S_ISDIR(existing.st_mode):
        raise InputError(f"{name!r} is a folder; give the path of a file to write.")
    if existing is not None and not stat.S_ISREG(existing.st_mode):
        # a rename would put a file in its place, and whoever reads the pipe would wait for ever
        raise InputError(
            f"{name!r} is not a regular file but a pipe, a socket or a device; "
            f"give the path of a file to write."
        )
    if existing is not None and not os.access(target, os.W_OK):
        raise InputError(f"cannot write {name!r}: the file is read-only.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {name!r}: the folder is read-only.")
    return target


def _status(path: Path) -> os.stat_result | None:
    """What stands at `path`, following links; None: nothing."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _adopt_mode(temporary: Path, target: Path) -> None:
    """The file is private so far; give it the permissions an ordinary `open` would."""
    if target.exists():
        mode = target.stat().st_mode & 0o777
    else:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    temporary.chmod(mode)


def _cannot_write(path: str | os.PathLike[str], error: OSError) -> InputError:
    reason = error.strerror or type(error).__name__
    return InputError(f"cannot write {str(path)!r}: {reason}. Make room, or choose another path.")
