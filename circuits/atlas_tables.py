"""Further tables of an atlas: effects of ablation, scores of weights, composition, stability."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..interp.errors import InputError, shown
from .atlas_check import SITES

_ADDRESS = ("site", "layer", "head")


def check_table(name: Any, rows: Any) -> pd.DataFrame:
    """A table that an atlas can carry, as a frame of plain cells.

    Args:
        name: an identifier, such as `causal`.
        rows: a DataFrame, or a list of objects with the same fields. Cells are texts, finite
            numbers, truth values, or missing; an address, where there is one, is in `site`, `layer`
            and `head`.

    Returns:
        A copy of the rows; in columns of numbers a missing cell is NaN, in others None.

    Raises:
        InputError: the message names the table, the column and the value.

    Example:
        >>> check_table("causal", [{"site": "", "layer": 1, "head": 2, "effect": None}])
          site  layer  head  effect
        0           1     2     NaN
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"a table's name is an identifier; got {name!r}.")
    frame = _frame(name, rows)
    named = [column for column in _ADDRESS if column in frame.columns]
    if named and len(named) < len(_ADDRESS):
        raise InputError(
            f"table {name}: an address takes the columns site, layer and head; it has only "
            f"{', '.join(named)}."
        )
    checked = {column: _cells(name, column, frame[column].tolist()) for column in frame.columns}
    if named:
        _check_address(name, checked)
    return pd.DataFrame({column: _series(values) for column, values in checked.items()})


def check_tables(tables: Any) -> dict[str, pd.DataFrame]:
    """The tables of a file, by name.

    Raises:
        InputError: it is not an object of tables; the message says what is wrong.
    """
    if tables is None:
        return {}
    if not isinstance(tables, Mapping):
        raise InputError(f"tables are an object of lists by name; got {type(tables).__name__}.")
    return {name: check_table(name, rows) for name, rows in tables.items()}


def _frame(name: str, rows: Any) -> pd.DataFrame:
    if isinstance(rows, pd.DataFrame):
        frame = rows.reset_index(drop=True)
    elif isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        if any(row.keys() != rows[0].keys() for row in rows):
            raise InputError(f"table {name}: its rows do not have the same fields.")
        frame = pd.DataFrame(rows)
    else:
        raise InputError(f"table {name} is a DataFrame or a list of objects; got {type(rows)}.")
    columns = frame.columns.tolist()
    if len(set(columns)) < len(columns) or not all(map(_is_text, columns)):
        raise InputError(f"table {name}: column names are printable texts, each once.")
    return frame


def _cells(name: str, column: str, values: list[Any]) -> list[Any]:
    return [_cell(name, column, value) for value in values]


def _cell(name: str, column: str, value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    finite = isinstance(value, bool | int | float) and abs(value) < 1e300
    if not finite and not _is_text(value):
        raise InputError(
            f"table {name}, column {column}: a cell is a printable text, a finite number, true, "
            f"false or missing; got {shown(value)}."
        )
    return value


def _check_address(name: str, columns: Mapping[str, list[Any]]) -> None:
    for site, layer, head in zip(*(columns[column] for column in _ADDRESS), strict=True):
        whole = type(layer) is int and type(head) is int
        if site not in SITES or not whole or not (0 <= layer <= 9999 and 0 <= head <= 9999):
            raise InputError(
                f"table {name}: a head is a site of {SITES}, a layer and a head from 0 to 9999; "
                f"got {site!r}, {layer!r}, {head!r}."
            )


def _series(values: list[Any]) -> pd.Series:
    present = [value for value in values if value is not None]
    if present and all(type(value) is int for value in present) and len(present) == len(values):
        return pd.Series(values, dtype="int64" if max(map(abs, present)) < 2**62 else object)
    if all(type(value) in (int, float) for value in present):
        return pd.Series(values, dtype=float)
    return pd.Series(values, dtype=object)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()
