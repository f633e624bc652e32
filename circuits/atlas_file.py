"""Atlas files: JSON, CSV and Parquet out, JSON and Parquet back in, nothing trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..interp.errors import InputError
from ..interp.files import atomic_write
from .atlas_check import (
    COLUMNS,
    META,
    NULL_CHECK_COLUMNS,
    SCHEMA_VERSION,
    check_head,
    check_null_check,
    check_rows,
)
from .atlas_tables import check_tables

__all__ = ["COLUMNS", "META", "NATURAL", "NULL_CHECK_COLUMNS", "SCHEMA_VERSION"]

NATURAL = {"natural_score": "score", "natural_low": "low", "natural_high": "high"}
"""Columns that tables, CSV and Parquet add out of `details`: a row's numbers on natural text."""

_SUFFIXES = (".json", ".csv", ".parquet")


def with_natural(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the columns of `NATURAL` after `high`; NaN where that set was not scored."""
    found = [
        row if row["details"]["prompts"] == "natural" else row["details"].get("natural", {})
        for row in rows.to_dict("records")
    ]
    wide, place = rows.copy(), list(rows).index("high") + 1
    for shift, (column, name) in enumerate(NATURAL.items()):
        values = [math.nan if (x := numbers.get(name)) is None else x for numbers in found]
        wide.insert(place + shift, column, np.array(values, float))
    return wide


def check_suffix(path: Path) -> None:
    """Refuse a file name whose suffix names no format, before any work is done.

    Raises:
        InputError: the suffix is not .json, .csv or .parquet.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{path.name!r} ends in no known format; use .json, .csv or .parquet.")


def write_atlas(
    rows: pd.DataFrame,
    meta: Mapping[str, Any],
    path: Path,
    *,
    null_check: pd.DataFrame | None = None,
    tables: Mapping[str, pd.DataFrame] | None = None,
) -> Path:
    """Write rows and what stands beside them; the suffix picks the format.

    Raises:
        InputError: another suffix, the folder cannot be written to, or something beside the rows
            could not be read again.
    """
    check_suffix(path)
    write = {".json": _write_json, ".csv": _write_csv, ".parquet": _write_parquet}
    head = {"schema_version": SCHEMA_VERSION, **{name: _plain(meta[name]) for name in META}}
    if null_check is not None:
        head["null_check"] = _plain(null_check.to_dict("records"))
    if tables:
        checked = check_tables(tables)
        head["tables"] = {name: _plain(own.to_dict("records")) for name, own in checked.items()}
    check_head(head)
    with atomic_write(path) as partial:
        write[path.suffix.lower()](rows.loc[:, list(COLUMNS)], head, partial)
    return path


def _write_json(rows: pd.DataFrame, head: dict[str, Any], path: Path) -> None:
    records = [_plain(dict(zip(COLUMNS, row, strict=True))) for row in rows.to_numpy(object)]
    text = json.dumps({**head, "heads": records}, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _write_csv(rows: pd.DataFrame, head: dict[str, Any], path: Path) -> None:
    _flat(rows).to_csv(path, index=False)


def _write_parquet(rows: pd.DataFrame, head: dict[str, Any], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(_flat(rows), preserve_index=False)
    pq.write_table(table.replace_schema_metadata({b"headatlas": json.dumps(head).encode()}), path)


def _flat(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose details are JSON text, for formats without nesting."""
    return with_natural(rows).assign(
        details=[json.dumps(_plain(d), allow_nan=False) for d in rows["details"]]
    )


def read_atlas(path: Path) -> dict[str, Any]:
    """Read what `write_atlas` wrote as JSON or Parquet, and check every field.

    Returns:
        The fields of a `HeadAtlas` by name.

    Raises:
        InputError: the file is missing, is not an atlas, or is of another schema.
    """
    readers = {".json": _read_json, ".parquet": _read_parquet}
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}.")
    if path.suffix.lower() not in readers:
        raise InputError(f"{path.name!r} cannot be loaded; an atlas is a .json or .parquet file.")
    try:
        head, rows = readers[path.suffix.lower()](path)
        check_head(head)
        return {
            "rows": check_rows(rows),
            **{name: head[name] for name in META},
            "null_check": check_null_check(head.get("null_check")),
            "tables": check_tables(head.get("tables")),
        }
    except InputError as error:
        raise InputError(f"{str(path)!r} is not an atlas: {error}") from None
    except (ValueError, TypeError, KeyError, OSError, RecursionError, OverflowError) as error:
        # ValueError covers JSON, Unicode and Arrow's own errors
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{str(path)!r} is not an atlas that can be read ({type(error).__name__}: {reason})."
        ) from None


def _read_json(path: Path) -> tuple[Any, Any]:
    content = _read_text(path.read_text(encoding="utf-8"))
    return content, content.get("heads") if isinstance(content, dict) else None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _read_parquet(path: Path) -> tuple[Any, Any]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    head = _read_text((table.schema.metadata or {}).get(b"headatlas", b"null"))
    rows = [
        {name: value for name, value in row.items() if name not in NATURAL}
        for row in table.to_pylist()
    ]
    for row in rows:
        row["details"] = _read_text(row.get("details") or "null")
    return head, rows


def _read_text(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=_refuse_constant)


def _plain(value: Any) -> Any:
    """The value in JSON's own types; a missing number is null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in value.tolist()]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
