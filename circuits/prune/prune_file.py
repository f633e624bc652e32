"""The folder of a pruning: `result.json` holds everything that is read back.

Beside it lie, for other programs, `curve.parquet`, `gates.parquet`, `differences.parquet`, and
`model/`, the model without the heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ...interp.errors import InputError, one_line
from ...interp.files import atomic_write, read_json
from ...interp.heads import HeadId
from ..table_file import plain_records, refusing, write_json
from .curve import CURVE_COLUMNS, DIFFERENCE_COLUMNS, WHOLE, Cut
from .methods import LABELLED_GRADES, METHODS
from .progress_file import MOST_MIB

SCHEMA_VERSION = 1
"""Raised when a reader of the old files would misread the new ones."""

RESULT = "result.json"
MODEL = "model"
UNFINISHED = "unfinished"
"""The folder within the folder in which an interrupted run is taken up again."""

GATE_COLUMNS = (
    "asked", "site", "layer", "head", "kv_head", "log_alpha", "p_open", "gate", "kept",
)  # fmt: skip
LABEL_COLUMNS = ("site", "layer", "head", "kind", "grade")

_TEXTS = frozenset({"method", "other", "documents", "site", "kind", "grade"})
_COUNTS = frozenset({
    "draw", "draws", "n_removed", "n", "n_documents", "second_copy_n", "layer", "head", "kv_head",
})  # fmt: skip
_FLAGS = frozenset({"finetuned", "kept"})
_TABLES = {
    "curve": CURVE_COLUMNS, "gates": GATE_COLUMNS, "differences": DIFFERENCE_COLUMNS,
    "labels": LABEL_COLUMNS,
}  # fmt: skip


def check_folder(folder: str | Path) -> Path:
    """The folder to write to, new, empty, or of an earlier pruning.

    Raises:
        InputError: it is a file, or a folder of something else.
    """
    place = Path(folder)
    try:
        if place.exists() and not place.is_dir():
            raise InputError(f"{str(folder)!r} is a file; give a folder to write to.")
        content = {path.name for path in place.iterdir()} if place.exists() else set()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {str(folder)!r}: {one_line(error)}.") from error
    if content and not content & {RESULT, UNFINISHED}:
        raise InputError(
            f"{str(folder)!r} holds something else than a pruning; give a new or empty folder."
        )
    return place


def write_result(folder: Path, fields: Mapping[str, Any], model: Cut | None = None) -> None:
    """Write the fields of a result to a folder, `result.json` last; each file whole or not at all.

    Args:
        folder: made if it does not exist.
        fields: of the result, and its `summary`.
        model: the cut whose model is written beside it.

    Raises:
        InputError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot make the folder {str(folder)!r}: {one_line(error)}.") from error
    for name in ("curve", "gates", "differences"):
        with atomic_write(folder / f"{name}.parquet") as partial:
            fields[name].to_parquet(partial, index=False)
    content = {
        "schema_version": SCHEMA_VERSION,
        "finished": fields["finished"],
        "summary": fields["summary"],
        "settings": fields["settings"],
        "caveats": [*fields["caveats"]],
        "heads": [str(head) for head in fields["heads"]],
        "cuts": [_cut_record(cut) for cut in fields["cuts"]],
        "model": None if model is None else _cut_record(model),
        **{name: plain_records(fields[name]) for name in _TABLES},
    }
    with atomic_write(folder / RESULT) as partial:
        write_json(content, partial)


def read_result(folder: Path) -> dict[str, Any]:
    """Read what `write_result` wrote, and check every field.

    Returns:
        The fields by name.

    Raises:
        InputError: no such folder, no result in it, or one that is damaged or of another schema.
    """
    file = folder / RESULT
    if not file.is_file():
        raise InputError(f"{str(folder)!r} holds no {RESULT}; give a folder of a pruning.")
    content = read_json(file, MOST_MIB)
    with refusing(file, "no result of a pruning"):
        return _fields(content)


def _cut_record(cut: Cut) -> dict[str, Any]:
    return {
        "method": cut.method, "draw": cut.draw, "asked": cut.asked, "finetuned": cut.finetuned,
        "heads": [str(head) for head in cut.heads],
    }  # fmt: skip


def _fields(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"it is of another schema than {SCHEMA_VERSION}.")
    if not isinstance(content.get("finished"), bool):
        raise InputError("finished must be true or false.")
    if not isinstance(content.get("settings"), dict):
        raise InputError("it has no settings.")
    caveats = _list(content, "caveats")
    if not all(isinstance(sentence, str) for sentence in caveats):
        raise InputError("caveats must be sentences.")
    heads = _heads(content.get("heads"), None)
    cuts = tuple(_cut(record, set(heads)) for record in _list(content, "cuts"))
    tables = {name: _table(content, name, columns) for name, columns in _TABLES.items()}
    found = {
        "finished": content["finished"], "settings": content["settings"],
        "caveats": tuple(caveats), "heads": heads, "cuts": cuts, **tables,
    }  # fmt: skip
    _check(found)
    return found


def _check(found: Mapping[str, Any]) -> None:
    """The tables are of the cuts and of the heads, and of nothing else."""
    heads, cuts = set(found["heads"]), found["cuts"]
    rows = [
        (row["method"], row["draw"], row["asked"], row["n_removed"])
        for row in found["curve"].to_dict("records")
    ]
    wanted = [(cut.method, cut.draw, cut.asked, len(cut.heads)) for cut in cuts]
    if rows != [(WHOLE, 0, 0.0, 0), *wanted]:
        raise InputError("the curve is not of the cuts.")
    for name in ("gates", "labels"):
        places = found[name][["site", "layer", "head"]].to_numpy(object).tolist()
        if not all(HeadId(*place) in heads for place in places):
            raise InputError(f"{name} name a head that is not among the heads.")
    if not set(found["labels"]["grade"]) <= set(LABELLED_GRADES):
        raise InputError(f"grades of labels are {', '.join(LABELLED_GRADES)}.")


def _cut(record: Any, heads: set[HeadId]) -> Cut:
    wanted = {"method", "draw", "asked", "finetuned", "heads"}
    if not isinstance(record, dict) or set(record) != wanted:
        raise InputError("a cut has other fields than it should.")
    if record["method"] not in METHODS:
        raise InputError("a cut is of an unknown method.")
    draw, asked, finetuned = (
        _cell(name, record[name], name) for name in ("draw", "asked", "finetuned")
    )
    if draw < 0 or not asked >= 0:
        raise InputError("a cut's draw or share is below 0.")
    return Cut(record["method"], draw, asked, _heads(record["heads"], heads), finetuned)


def _heads(names: Any, among: set[HeadId] | None) -> tuple[HeadId, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError("heads must be a list of addresses.")
    found = tuple(HeadId.parse(name) for name in names)
    if len(set(found)) != len(found) or (among is None and not found):
        raise InputError("heads are missing, or named twice.")
    if among is not None and not among >= set(found):
        raise InputError("a cut names a head that is not among the heads.")
    return found


def _list(content: Mapping[str, Any], name: str) -> list[Any]:
    found = content.get(name)
    if not isinstance(found, list):
        raise InputError(f"{name} must be a list.")
    return found


def _table(content: Mapping[str, Any], name: str, columns: Sequence[str]) -> pd.DataFrame:
    rows = []
    for record in _list(content, name):
        if not isinstance(record, dict) or set(record) != set(columns):
            raise InputError(f"a row of {name} has other columns than it should.")
        rows.append([_cell(name, record[column], column) for column in columns])
    return pd.DataFrame(rows, columns=list(columns))


def _cell(table: str, value: Any, column: str) -> Any:
    if column in _TEXTS:
        if not isinstance(value, str):
            raise InputError(f"{column} of {table} must be text; got {type(value).__name__}.")
        return value
    if column in _FLAGS:
        if not isinstance(value, bool):
            raise InputError(f"{column} of {table} must be true or false.")
        return value
    if column in _COUNTS:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
            raise InputError(f"{column} of {table} must be a count.")
        return value
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise InputError(f"{column} of {table} must be a number.")
    return float(value)
