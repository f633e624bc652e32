"""What a cache file says in words: written with a capture, checked on reading."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from .heads import HeadId
from .hook_names import HEADS_FIRST, KINDS, PER_HEAD

SCHEMA_VERSION = 1
_NAME = re.compile(
    rf"(?:(enc|dec|cross)\.)?blocks\.(\d{{1,4}})\.attn\.hook_({'|'.join(KINDS)})", re.ASCII
)


@dataclass(frozen=True, eq=False)
class Text:
    """What was read: the part of a cache that is known before the model runs.

    Attributes:
        tokens: the visible strings of each sequence.
        token_ids: of the encoder, or of the only stack.
        mask: True where a token stands.
        heads: query heads that were kept, or None for all.
        rows: query positions that were kept, or None for all.
        decoder_length: tokens that the decoder read; None in a model with one stack.
    """

    tokens: list[list[str]]
    token_ids: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    heads: tuple[HeadId, ...] | None
    rows: tuple[int, ...] | None
    decoder_length: int | None = None


def text_to_json(text: Text) -> str:
    """What the file's metadata says; ids and mask are tensors of their own."""
    known = {
        "schema_version": SCHEMA_VERSION,
        "tokens": text.tokens,
        "heads": None if text.heads is None else [str(head) for head in text.heads],
        "rows": None if text.rows is None else list(text.rows),
        "decoder_length": text.decoder_length,
    }
    return json.dumps(known)


def text_from_json(
    metadata: str,
    ids: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"],
    shapes: Mapping[str, tuple[int, ...]],
) -> Text:
    """Read a file's metadata, and check that its tensors are of such a capture.

    Args:
        metadata: as `text_to_json` gives it.
        ids: the file's token ids.
        mask: the file's mask.
        shapes: name -> shape of each captured tensor.

    Raises:
        ValueError: it is not what a capture writes, or contradicts the tensors.
    """
    known = json.loads(metadata)
    version = known["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(f"schema_version must be {SCHEMA_VERSION}; got {str(version)[:20]!r}")
    batch, length = ids.shape
    heads = _optional(known["heads"], str)
    text = Text(
        tokens=_strings(known["tokens"], batch, length),
        token_ids=ids,
        mask=mask,
        heads=None if heads is None else tuple(map(HeadId.parse, heads)),
        rows=_optional(known["rows"], int),
        decoder_length=known.get("decoder_length"),  # the first files do not say it
    )
    own = text.decoder_length
    if own is not None and (type(own) is not int or own < 1):
        raise ValueError(f"decoder_length must be a positive number; got {str(own)[:20]!r}")
    parts = {name: _NAME.fullmatch(name) for name in shapes}
    for name, shape in shapes.items():
        if parts[name] is None or len(shape) != _axes(parts[name]):
            raise ValueError(f"no captured tensor is called {name[:60]!r} with shape {list(shape)}")
    places = {(part[1] or "", int(part[2])) for part in parts.values() if part is not None}
    lost = [head for head in text.heads or () if (head.site, head.layer) not in places]
    if lost:
        raise ValueError(f"it says that head {lost[0]} was kept, but holds nothing of its layer")
    for name, part in parts.items():
        if part is not None:
            _check_shape(text, name, part, shapes[name])
    _check_head_counts(text, parts, shapes)
    return text


def _axes(part: re.Match[str] | None) -> int:
    return 3 if part is not None and part[3] == "sink" else 4


def _check_shape(text: Text, name: str, part: re.Match[str], shape: tuple[int, ...]) -> None:
    """Refuse a tensor whose batch or positions are not those of the text."""
    stack, kind = part[1] or "", part[3]
    batch, length = text.token_ids.shape
    if stack in ("dec", "cross") and text.decoder_length is None:
        raise ValueError(
            f"{name} is of a decoder, whose decoder_length it does not say; capture it again"
        )
    decoder = text.decoder_length or length
    queries, keys = decoder if stack in ("dec", "cross") else length, length
    if stack == "dec":
        keys = decoder
    rows = text.rows
    if rows is not None and not all(0 <= row < queries for row in rows):
        raise ValueError(f"rows must be positions 0 to {queries - 1}; got {str(rows)[:40]}")
    kept = queries if rows is None else len(rows)
    if kind in HEADS_FIRST:
        columns = () if kind == "sink" else (keys,)
        fits = (shape[0], *shape[2:]) == (batch, kept, *columns)
    else:
        fits = shape[:2] == (batch, kept if kind in PER_HEAD else keys)
    if not fits or min(shape) < 1:
        raise ValueError(f"{name} has shape {list(shape)}, which does not fit the text and rows")


def _check_head_counts(
    text: Text, parts: Mapping[str, re.Match[str] | None], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse head axes that are not those of the heads kept, or differ within a layer."""
    seen: dict[tuple[str, int, bool], int] = {}
    for name, part in parts.items():
        if part is None:
            continue
        stack, layer, kind = part[1] or "", int(part[2]), part[3]
        per_head = kind in PER_HEAD
        count = shapes[name][1 if kind in HEADS_FIRST else 2]
        if per_head and text.heads is not None:
            expected = sum((head.site, head.layer) == (stack, layer) for head in text.heads)
        else:
            expected = seen.setdefault((stack, layer, per_head), count)
        if count != expected:
            raise ValueError(f"{name} holds {count} heads; the file says {expected} for its layer")


def _strings(tokens: Any, batch: int, length: int) -> list[list[str]]:
    whole = isinstance(tokens, list) and len(tokens) == batch
    if not whole or not all(
        isinstance(row, list) and len(row) == length and all(type(t) is str for t in row)
        for row in tokens
    ):
        raise ValueError(f"tokens must be {batch} lists of {length} strings")
    return tokens


def _optional(items: Any, kind: type) -> tuple[Any, ...] | None:
    if items is None:
        return None
    if not isinstance(items, list) or not items or not all(type(item) is kind for item in items):
        raise ValueError(f"expected a list of {kind.__name__}; got {str(items)[:40]!r}")
    return tuple(items)
