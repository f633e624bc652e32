"""Tables as files: JSON, CSV or Parquet by the suffix, written whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..interp.errors import InputError, one_line
from ..interp.files import atomic_write

_SUFFIXES = (".json", ".csv", ".parquet")


def check_suffix(path: Path) -> None:
    """Refuse a file name whose suffix names no format, before any work is done.

    Raises:
        InputError: the suffix is not .json, .csv or .parquet.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{path.name!r} ends in no known format; use .json, .csv or .parquet.")


@contextmanager
def refusing(path: Path, what: str) -> Iterator[None]:
    """Tell of a file whose content is refused, or breaks its reader, that it is `what`.

    Raises:
        InputError: whatever went wrong in the block.

    Example:
        >>> with refusing(Path("a.json"), "not an atlas"):
        ...     raise KeyError("heads")
        Traceback (most recent call last):
        ...
        headatlas.interp.errors.InputError: 'a.json' is not an atlas that can be read (KeyError: ...
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{str(path)!r} is {what}: {error}") from None
    except (ValueError, TypeError, KeyError, OSError, RecursionError, OverflowError) as error:
        # ValueError covers JSON, Unicode and Arrow's own errors
        raise InputError(
            f"{str(path)!r} is {what} that can be read ({type(error).__name__}: {one_line(error)})."
        ) from None


def write_table(
    path: Path,
    rows: pd.DataFrame,
    meta: Mapping[str, Any],
    *,
    name: str = "rows",
    records: Sequence[Mapping[str, Any]] | None = None,
    beside: Mapping[str, Any] | None = None,
) -> Path:
    """Write a table; the suffix picks the format.

    Args:
        path: where to.
        rows: the table, which CSV and Parquet hold.
        meta: what stands beside it in JSON, and in Parquet's metadata under `headatlas`.
        name: the table's name in JSON.
        records: the rows as JSON holds them; None: those of `rows`.
        beside: what JSON alone holds.

    Raises:
        InputError: another suffix, or the file cannot be written.
    """
    check_suffix(path)
    with atomic_write(path) as partial:
        if path.suffix.lower() == ".json":
            listed = plain_records(rows) if records is None else records
            write_json({**meta, name: listed, **(beside or {})}, partial)
        elif path.suffix.lower() == ".csv":
            rows.to_csv(partial, index=False)
        else:
            _write_parquet(rows, meta, partial)
    return path


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write JSON text, which has no NaN."""
    text = json.dumps(content, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def plain_records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON's own types; a number that is missing or infinite is None.

    Example:
        >>> plain_records(pd.DataFrame({"n": [1], "p": [float("nan")]}))
        [{'n': 1, 'p': None}]
    """
    return plain(rows.to_dict("records"))


def plain(value: Any) -> Any:
    """The value in JSON's own types; a number that is missing or infinite is None."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return [plain(entry) for entry in value.tolist()]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _write_parquet(rows: pd.DataFrame, meta: Mapping[str, Any], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(rows, preserve_index=False)
    told = json.dumps(meta, allow_nan=False).encode()
    pq.write_table(table.replace_schema_metadata({b"headatlas": told}), path)
