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
from .table_file import check_suffix, plain, plain_records, refusing, write_table

__all__ = ["COLUMNS", "META", "NATURAL", "NULL_CHECK_COLUMNS", "SCHEMA_VERSION"]

NATURAL = {"natural_score": "score", "natural_low": "low", "natural_high": "high"}
"""Columns that tables, CSV and Parquet add out of `details`: a row's numbers on natural text."""


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
    head = {"schema_version": SCHEMA_VERSION, **{name: plain(meta[name]) for name in META}}
    if null_check is not None:
        head["null_check"] = plain_records(null_check)
    if tables:
        checked = check_tables(tables)
        head["tables"] = {name: plain_records(own) for name, own in checked.items()}
    check_head(head)
    own = rows.loc[:, list(COLUMNS)]
    return write_table(path, _flat(own), head, name="heads", records=plain_records(own))


def _flat(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose details are JSON text, for formats without nesting."""
    return with_natural(rows).assign(
        details=[json.dumps(plain(d), allow_nan=False) for d in rows["details"]]
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
    with refusing(path, "not an atlas"):
        head, rows = readers[path.suffix.lower()](path)
        check_head(head)
        return {
            "rows": check_rows(rows),
            **{name: head[name] for name in META},
            "null_check": check_null_check(head.get("null_check")),
            "tables": check_tables(head.get("tables")),
        }


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
