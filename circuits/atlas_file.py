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
from .grade import GRADES

SCHEMA_VERSION = 1
"""Raised when a reader of the old files would misread the new ones."""

COLUMNS = (
    "site", "layer", "head", "kind", "score", "expected", "excess", "low", "high", "n", "grade",
    "legacy", "evidence", "details",
)  # fmt: skip
"""Fields of a row, in order; `details` holds whatever else a kind has to say."""

META = ("model", "versions", "settings")
"""What stands beside the rows, each an object; `null_check` may follow, a list of objects."""

NULL_CHECK_COLUMNS = (
    "draw", "prompts", "kinds", "mean_score", "mean_expected", "false_labels", "p_values",
)  # fmt: skip
"""Fields of an entry of `null_check`."""

_NUMBERS = ("score", "expected", "excess", "low", "high")
_COUNTS = ("layer", "head", "n")
_SITES = ("", "enc", "dec", "cross")
_LARGEST = 1e6  # masses are at most 1; anything near this is no atlas
_SUFFIXES = (".json", ".csv", ".parquet")


def check_suffix(path: Path) -> None:
    """Refuse a file name whose suffix names no format, before any work is done.

    Raises:
        InputError: the suffix is not .json, .csv or .parquet.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{path.name!r} ends in no known format; use .json, .csv or .parquet.")


def write_atlas(
    rows: pd.DataFrame, meta: Mapping[str, Any], null_check: pd.DataFrame | None, path: Path
) -> Path:
    """Write rows and what stands beside them; the suffix picks the format.

    Raises:
        InputError: another suffix, or the folder cannot be written to.
    """
    check_suffix(path)
    write = {".json": _write_json, ".csv": _write_csv, ".parquet": _write_parquet}
    head = {"schema_version": SCHEMA_VERSION, **{name: _plain(meta[name]) for name in META}}
    if null_check is not None:
        head["null_check"] = _plain(null_check.to_dict("records"))
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
    return rows.assign(details=[json.dumps(_plain(d), allow_nan=False) for d in rows["details"]])


def read_atlas(path: Path) -> tuple[pd.DataFrame, dict[str, Any], pd.DataFrame | None]:
    """Read what `write_atlas` wrote as JSON or Parquet, and check every field.

    Returns:
        The rows, the objects of `META` by name, and the check of the null if there is one.

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
        _check_head(head)
        return _checked(rows), {name: head[name] for name in META}, _null_check(head)
    except InputError as error:
        raise InputError(f"{str(path)!r} is not an atlas: {error}") from None
    except (ValueError, TypeError, KeyError, OSError, RecursionError, OverflowError) as error:
        # ValueError covers JSON, Unicode and Arrow's own errors
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{str(path)!r} is not an atlas that can be read ({type(error).__name__}: {reason})."
        ) from None


def _read_json(path: Path) -> tuple[Any, Any]:
    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    return content, content.get("heads") if isinstance(content, dict) else None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _read_parquet(path: Path) -> tuple[Any, Any]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    head = json.loads((table.schema.metadata or {}).get(b"headatlas", b"null"))
    rows = table.to_pylist()
    for row in rows:
        row["details"] = json.loads(row.get("details") or "null")
    return head, rows


def _check_head(head: Any) -> None:
    if not isinstance(head, dict):
        raise InputError("it carries no object with schema_version, model, versions, settings.")
    version = head.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(f"its schema_version is {version!r}; this release reads {SCHEMA_VERSION}.")
    for name in META:
        if not isinstance(head.get(name), dict):
            raise InputError(f"{name} is not an object.")


def _null_check(head: dict[str, Any]) -> pd.DataFrame | None:
    rows = head.get("null_check")
    if rows is None:
        return None
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and set(row) == set(NULL_CHECK_COLUMNS) for row in rows
    ):
        raise InputError(f"null_check is not a list of objects with {NULL_CHECK_COLUMNS}.")
    return pd.DataFrame(rows, columns=list(NULL_CHECK_COLUMNS))


def _checked(rows: Any) -> pd.DataFrame:
    if not isinstance(rows, list) or not rows:
        raise InputError("it has no list of heads.")
    for row in rows:
        if not isinstance(row, dict) or set(row) != set(COLUMNS):
            raise InputError(f"each head needs the fields {', '.join(COLUMNS)}.")
        for name in _NUMBERS:
            row[name] = math.nan if row[name] is None else row[name]
        _check_row(row)
    places = {(row["site"], row["layer"], row["head"], row["kind"]) for row in rows}
    if len(places) < len(rows):
        raise InputError("two rows are of the same head and kind.")
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(_NUMBERS, float) | {"legacy": object})


def _check_row(row: dict[str, Any]) -> None:
    whole = all(type(row[name]) is int and 0 <= row[name] < 10**12 for name in _COUNTS)
    numbers = all(
        type(row[name]) in (int, float) and not abs(row[name]) > _LARGEST for name in _NUMBERS
    )
    wrong = {
        f"a grade that is none of {', '.join(GRADES)}": row["grade"] not in GRADES,
        "a legacy verdict that is not true, false or null": row["legacy"] is not None
        and not isinstance(row["legacy"], bool),
        "details that are not an object": not isinstance(row["details"], dict),
        "a layer, head or n that is not a whole number": not whole,
        "a layer or head beyond 9999": whole and max(row["layer"], row["head"]) > 9999,
        f"a site that is none of {_SITES}": row["site"] not in _SITES,
        "a kind that is not a name": not (
            isinstance(row["kind"], str) and row["kind"].isidentifier()
        ),
        "evidence that is not a text": not isinstance(row["evidence"], str)
        or not row["evidence"].isprintable(),
        "a score, expected, excess, low or high that is not a number": not numbers,
    }
    for problem, holds in wrong.items():
        if holds:
            raise InputError(f"a row has {problem}.")


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
