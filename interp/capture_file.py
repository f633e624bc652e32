"""A capture in a file: safetensors, written tensor by tensor and read back one at a time."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from .cache import Cache
from .capture_text import Text, text_from_json, text_to_json
from .checkpoint import is_panic
from .errors import InputError, one_line
from .files import atomic_write, check_target

_KEY = "headatlas_cache"
_MAX_HEADER = 100_000_000  # bytes; the format's readers refuse more
_IDS, _MASK = "token_ids", "mask"
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.bool: "BOOL",
}
_SIZES = {code: dtype.itemsize for dtype, code in _CODES.items()}


@dataclass(frozen=True)
class Spec:
    """What a tensor will be, before it is there."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def n_bytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@contextmanager
def stream_cache(
    path: str | os.PathLike[str], specs: Sequence[Spec], text: Text
) -> Iterator[Callable[[str, Tensor], None]]:
    """Give a function that puts one tensor where it belongs in the file.

    The file stands at `path` only when the block ends well with every tensor written.

    Args:
        path: where the file shall stand.
        specs: the tensors to come, in any order.
        text: what they were computed from.

    Yields:
        put(name, tensor).

    Raises:
        InputError: `path` cannot be written, the disk lacks room, a tensor came that was not
            announced, in another shape or dtype, or did not come.
    """
    own = [
        Spec(_IDS, tuple(text.token_ids.shape), torch.int64),
        *specs,
        Spec(_MASK, tuple(text.mask.shape), torch.bool),  # last: its size aligns nothing
    ]
    header, starts = _header(own, text)
    need = len(header) + sum(spec.n_bytes for spec in own)
    free = shutil.disk_usage(check_target(Path(path)).parent).free
    if need > free:
        raise InputError(
            f"{str(path)!r} would take {need / 2**30:.1f} GiB, and the disk has "
            f"{free / 2**30:.1f} GiB left. Narrow the capture, or choose another disk."
        )
    with atomic_write(path) as temporary, temporary.open("r+b") as file:
        file.write(header)
        waiting = {spec.name: spec for spec in own}

        def put(name: str, tensor: Tensor) -> None:
            spec = waiting.pop(name, None)
            if spec is None or (tuple(tensor.shape), tensor.dtype) != (spec.shape, spec.dtype):
                said = "one" if spec is None else f"{spec.shape} {spec.dtype}"
                raise InputError(
                    f"{name} came as {tuple(tensor.shape)} {tensor.dtype}, not as {said} as "
                    "announced, so it cannot go to a file. Capture it to memory instead."
                )
            _write(file, len(header) + starts[name], tensor)

        put(_IDS, text.token_ids)
        put(_MASK, text.mask)
        yield put
        if waiting:
            raise InputError(f"{', '.join(sorted(waiting)[:3])} did not occur in the forward pass.")


def _write(file: BinaryIO, start: int, tensor: Tensor) -> None:
    if tensor.numel():
        file.seek(start)
        file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def _header(specs: Sequence[Spec], text: Text) -> tuple[bytes, dict[str, int]]:
    """The file's beginning, and where each tensor's bytes start after it."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", _KEY: text_to_json(text)}}
    starts, at = {}, 0
    for spec in specs:
        starts[spec.name] = at
        end = at + spec.n_bytes
        code = _CODES[spec.dtype]
        entries[spec.name] = {"dtype": code, "shape": spec.shape, "data_offsets": [at, end]}
        at = end
    body = json.dumps(entries).encode()
    body += b" " * (-len(body) % 8)
    if len(body) > _MAX_HEADER:
        raise InputError("the text is too long for one file. Capture it in several.")
    return len(body).to_bytes(8, "little") + body, starts


def load_cache(path: str | os.PathLike[str]) -> Cache:
    """Open a cache that `capture(..., save=path)` wrote; tensors are read when asked for.

    Args:
        path: the file.

    Returns:
        The cache, on the CPU, as `capture` would have returned it.

    Raises:
        InputError: no such file, or not a whole file of this kind.

    Example:
        >>> import tempfile
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from headatlas.interp.capture import capture
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> path = Path(tempfile.mkdtemp()) / "run.safetensors"
        >>> _ = capture(model, None, torch.tensor([[1, 2, 3]]), names_filter="z", save=path)
        >>> load_cache(path)["z", 0].shape
        torch.Size([1, 3, 2, 4])
    """
    name, file = str(path), Path(path)
    if not file.is_file():  # reading a pipe or a device might never end
        raise InputError(f"no file {name!r}; give one that capture saved.")
    try:
        stored = _Stored(file)
        text = _read_text(stored)
    except BaseException as error:  # the reader's panics are no Exception
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise InputError(
            f"{name!r} is not a whole cache file that capture saved: {one_line(error)}."
        ) from error
    return Cache(
        stored,
        tokens=text.tokens,
        token_ids=text.token_ids,
        mask=text.mask,
        heads=text.heads,
        rows=text.rows,
    )


class _Stored(Mapping[str, Tensor]):
    """The captured tensors of a file."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self.file = safe_open(path, framework="pt")
        self.names = [name for name in self.file.offset_keys() if name not in (_IDS, _MASK)]
        self.known = frozenset(self.names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.known:
            raise KeyError(name)
        return self.file.get_tensor(name)

    def n_bytes(self, name: str) -> int:
        """The size of a tensor in bytes, without reading it."""
        part = self.file.get_slice(name)
        return math.prod(part.get_shape()) * _SIZES[part.get_dtype()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _read_text(stored: _Stored) -> Text:
    metadata = stored.file.metadata() or {}
    if _KEY not in metadata:
        raise ValueError("it says nothing of a capture")
    ids, mask = stored.file.get_tensor(_IDS), stored.file.get_tensor(_MASK)
    kinds = (torch.int64, torch.bool)
    if (ids.dtype, mask.dtype) != kinds or ids.shape != mask.shape or ids.ndim != 2:
        raise ValueError("token ids and mask do not fit together")
    shapes = {}
    for name in stored:
        part = stored.file.get_slice(name)
        if part.get_dtype() not in ("F64", "F32", "F16", "BF16"):
            raise ValueError(f"{name[:60]} holds {part.get_dtype()}, not floating-point numbers")
        shapes[name] = tuple(part.get_shape())
    return text_from_json(metadata[_KEY], ids, mask, shapes)
