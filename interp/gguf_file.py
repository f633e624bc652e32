"""A strict look at a GGUF file before any other reader trusts its numbers.

A truncated or hostile file can claim 2^60 array elements; readers that loop over such a claim
never come back. Here every length is checked against the bytes that are there.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from .checkpoint import Held
from .errors import InputError

# width in bytes of the fixed-size metadata types; 8 is a string, 9 an array
_WIDTH = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_INTEGER = {4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
_MAX_DIMENSIONS = 4  # of a ggml tensor
_MAX_NESTING = 4  # arrays in arrays


class _BrokenError(Exception):
    """The file contradicts itself; the text says where."""


class _Cursor:
    """Reads little-endian values and refuses to run past the end."""

    def __init__(self, data: mmap.mmap):
        self.data = data
        self.at = 0

    def skip(self, count: int) -> int:
        start = self.at
        if count > len(self.data) - start:
            raise _BrokenError(f"it ends early: {count} bytes are announced at byte {start}")
        self.at = start + count
        return start

    def number(self, code: str) -> int:
        start = self.skip(struct.calcsize(code))
        return struct.unpack_from(code, self.data, start)[0]

    def string(self) -> str:
        count = self.number("<Q")
        start = self.skip(count)
        return self.data[start : start + count].decode("utf-8", "replace")


def check_gguf(path: Path) -> Held:
    """Check that `path` is a complete GGUF file whose lengths, counts and offsets hold.

    Args:
        path: an existing file.

    Returns:
        How many tensors and weights it holds.

    Raises:
        InputError: it is not a GGUF file, has been cut off, or contradicts itself.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _walk(_Cursor(data))
    except (OSError, ValueError) as error:  # mmap refuses an empty file with a ValueError
        raise InputError(f"cannot read {str(path)!r}: {error}.") from error
    except _BrokenError as error:
        raise InputError(
            f"{str(path)!r} is not a usable GGUF file: {error}. "
            f"Fetch it again, or give another file."
        ) from error


def _walk(cursor: _Cursor) -> Held:
    if len(cursor.data) < 24 or cursor.data[:4] != b"GGUF":
        raise _BrokenError("it does not start with the GGUF header")
    cursor.skip(4)
    version = cursor.number("<I")
    if version not in (2, 3):
        raise _BrokenError(f"its version is {version}, and 2 and 3 are readable")
    n_tensors, n_keys = cursor.number("<Q"), cursor.number("<Q")
    known: dict[str, int | str | None] = {"general.alignment": 32}
    for _ in range(n_keys):  # every key takes bytes, so a false count runs into the end
        key = cursor.string()
        known[key] = _value(cursor, cursor.number("<I"))
    layers = known.get(f"{known.get('general.architecture')}.block_count")
    if not isinstance(layers, int) or layers > n_tensors:  # a reader would take a default
        raise _BrokenError(f"it announces {layers} layers and holds {n_tensors} tensors")
    alignment = known["general.alignment"]
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise _BrokenError(f"its alignment is {alignment}, which is not a power of two")
    tensors = [_tensor(cursor) for _ in range(n_tensors)]
    data_start = -(-cursor.at // alignment) * alignment
    for name, _, offset, n_bytes in tensors:
        if data_start + offset + n_bytes > len(cursor.data):
            raise _BrokenError(f"it ends before the tensor {name[:80]!r} is complete")
    return Held(n_tensors, sum(elements for _, elements, _, _ in tensors))


def _value(cursor: _Cursor, kind: int, depth: int = 0) -> int | str | None:
    """Step over one metadata value; 32- and 64-bit integers and strings are returned."""
    if kind in _INTEGER:
        return cursor.number(_INTEGER[kind])
    if kind in _WIDTH:
        cursor.skip(_WIDTH[kind])
    elif kind == _STRING:
        return cursor.string()
    elif kind == _ARRAY and depth < _MAX_NESTING:
        inner, count = cursor.number("<I"), cursor.number("<Q")
        if inner in _WIDTH:
            cursor.skip(_WIDTH[inner] * count)
        else:
            for _ in range(count):
                _value(cursor, inner, depth + 1)
    else:
        raise _BrokenError(f"byte {cursor.at} holds a value of the unknown type {kind}")
    return None


def _tensor(cursor: _Cursor) -> tuple[str, int, int, int]:
    """(name, elements, offset in the data section, bytes) of one tensor."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name = cursor.string()
    n_dimensions = cursor.number("<I")
    if n_dimensions > _MAX_DIMENSIONS:
        raise _BrokenError(f"the tensor {name[:80]!r} claims {n_dimensions} dimensions")
    elements = 1
    for _ in range(n_dimensions):
        elements *= cursor.number("<Q")
    kind, offset = cursor.number("<I"), cursor.number("<Q")
    try:
        block_elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise _BrokenError(f"the tensor {name[:80]!r} has the unknown type {kind}") from None
    return name, elements, offset, elements // block_elements * block_bytes
