"""What users have of heads, tables or arrays, as one value per head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped
from torch import Tensor

from ..errors import InputError, shown
from .style import as_text
from .weights import as_array

_MOST = 4096  # layers, or heads of a layer
_RANKS = {"strong": 2, "weak": 1}
_ADDRESS = ("site", "layer", "head")
_ORDER = ("", "enc", "dec", "cross")


@dataclass(frozen=True, eq=False)
class HeadValues:
    """One value per head.

    Attributes:
        name: what the values are called.
        said: what the figure shows, in words.
        site: of each head.
        place: its layer and its head.
        cells: its value: a number, or words in an array of objects, None where there is none.
        ends: of its interval.
    """

    name: str
    said: str
    site: Shaped[np.ndarray, " n"]
    place: Shaped[np.ndarray, "n 2"]
    cells: Shaped[np.ndarray, " n"]
    ends: Float[np.ndarray, "n 2"] | None = None

    @property
    def sites(self) -> list[str]:
        """Stacks, the encoder's first."""
        known = {site: place for place, site in enumerate(_ORDER)}
        return sorted(set(self.site.tolist()), key=lambda site: (known.get(site, 9), site))

    def grid(self, site: str, numbers: np.ndarray) -> np.ndarray:
        """Numbers of a stack's heads as [layer, head, …], NaN where there is no head."""
        own = self.site == site
        layers, heads = self.place[own].max(axis=0) + 1
        cells = np.full((layers, heads, *numbers.shape[1:]), np.nan)
        cells[tuple(self.place[own].T)] = numbers[own]
        return cells


def read_head_values(values: Any, kind: str | None, value: str | None) -> HeadValues:
    """Values of heads out of an array [layer, head], a table, or what has one as `rows`.

    Raises:
        InputError: as `plot_head_map` says.
    """
    if isinstance(values, np.ndarray | Tensor):
        return _from_array(as_array(values, "a head map"), kind, value)
    table = values if isinstance(values, pd.DataFrame) else getattr(values, "rows", None)
    if not isinstance(table, pd.DataFrame):
        raise InputError(
            "a head map shows an array [layer, head], a DataFrame with the columns layer and head, "
            f"or something with such rows; got {type(values).__name__}."
        )
    missing = [column for column in ("layer", "head") if column not in table]
    if missing:
        raise InputError(
            f"the table has no column {' and no '.join(missing)}; it has {_all(table)}."
        )
    table = table.reset_index(drop=True).rename(columns=str)
    if kind is not None:
        table = _of_kind(table, kind)
    if value is not None:
        as_text(value, "value")
    if value is None and kind is None and {"kind", "grade"} <= set(table):
        return _best_kinds(table)
    name = _column(table) if value is None else value
    if name not in table:
        raise InputError(f"the table has no column {shown(name)}; it has {_all(table)}.")
    return _from_column(table, name, name if kind is None else f"{kind}: {name}")


def _from_array(cells: np.ndarray, kind: str | None, value: str | None) -> HeadValues:
    if kind is not None:
        raise InputError("an array has no kinds; pass a table with that column, or no kind=.")
    if cells.ndim != 2 or 0 in cells.shape or max(cells.shape) > _MOST:
        raise InputError(
            f"a head map is [layer, head], at most {_MOST} of each; got the shape {cells.shape}."
        )
    _check_numbers(cells)
    name = "value" if value is None else as_text(value, "value")
    place = np.indices(cells.shape).reshape(2, -1).T
    return HeadValues(name, name, np.full(cells.size, "", object), place, cells.ravel())


def _of_kind(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    if "kind" not in table:
        raise InputError(f"the table has no column kind to choose {shown(kind)} by.")
    own = table.loc[table["kind"] == kind]
    if own.empty:
        raise InputError(f"the table has no rows of kind {shown(kind)}; it has {_kinds(table)}.")
    return own.reset_index(drop=True)


def _kinds(table: pd.DataFrame) -> str:
    return ", ".join(map(str, dict.fromkeys(table["kind"])))[:400]


def _column(table: pd.DataFrame) -> str:
    """The column to draw where none is named."""
    if "score" in table:
        return "score"
    others = [column for column in table if column not in (*_ADDRESS, "kind")]
    if len(others) != 1:
        raise InputError(f"which column is to be drawn? Pass value=, one of {_all(table)}.")
    return str(others[0])


def _best_kinds(table: pd.DataFrame) -> HeadValues:
    """The kind of each head by its grade, then by its excess."""
    excess = table["excess"] if "excess" in table else pd.Series(0.0, table.index)
    ranked = table.assign(
        _rank=[_RANKS.get(str(grade), 0) for grade in table["grade"]],
        _excess=pd.to_numeric(excess, errors="coerce"),
    )
    best = ranked.sort_values(["_rank", "_excess"], ascending=False, kind="stable")
    address = [column for column in _ADDRESS if column in table]
    best = best.drop_duplicates(address)
    best = best.assign(kind=[
        str(kind) if rank else None for kind, rank in zip(best["kind"], best["_rank"], strict=True)
    ])  # fmt: skip
    if all(kind is None for kind in best["kind"].tolist()):
        raise InputError(
            "no head is labelled weak or strong, so there is no kind to draw. Pass kind= to draw "
            f"the scores of one, of {_kinds(table)}."
        )
    said = "what each head does (its kind of best grade, weak or better)"
    return _from_column(best.reset_index(drop=True), "kind", said)


def _from_column(table: pd.DataFrame, name: str, said: str) -> HeadValues:
    site, place = _places(table)
    column = table[name]
    if isinstance(column, pd.DataFrame):
        raise InputError(f"the table has several columns {shown(name)}.")
    _check_once(site, place)
    found = [word for word in column if not _is_missing(word)]
    if found and all(isinstance(word, int | float | np.number | np.bool_) for word in found):
        column = pd.Series([np.nan if _is_missing(word) else float(word) for word in column])
    numbers = pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column)
    if numbers:
        cells = column.to_numpy(float, na_value=np.nan)
        _check_numbers(cells)
        return HeadValues(name, said, site, place, cells, _ends(table, name))
    words: list[str | None] = [None if _is_missing(word) else str(word) for word in column]
    if all(word is None for word in words):
        raise InputError("no head has a value to draw.")
    return HeadValues(name, said, site, place, np.array(words, object))


def _check_once(site: np.ndarray, place: np.ndarray) -> None:
    seen = set[tuple[str, int, int]]()
    for stack, (layer, head) in zip(site.tolist(), place.tolist(), strict=True):
        if (stack, layer, head) in seen:
            prefix = f"{stack}." if stack else ""
            raise InputError(
                f"the table has several rows for {prefix}L{layer}H{head}. Choose one per head, "
                "such as those of one kind (kind=), or filter the table first."
            )
        seen.add((stack, layer, head))


def _places(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The stack of each row, and its layer and head."""
    if table.empty:
        raise InputError("the table has no rows, so there is nothing to draw.")
    try:
        numbers = table[["layer", "head"]].to_numpy(float)
    except (TypeError, ValueError) as error:
        raise InputError("the columns layer and head hold whole numbers.") from error
    if not ((numbers >= 0) & (numbers < _MOST) & (numbers == np.floor(numbers))).all():
        raise InputError(f"the columns layer and head hold whole numbers from 0 to {_MOST - 1}.")
    site = [str(one) for one in table["site"]] if "site" in table else [""] * len(table)
    return np.array(site, object), numbers.astype(int)


def _ends(table: pd.DataFrame, name: str) -> np.ndarray | None:
    """The interval of the column, where the table has one: of the excess, or of a lone score."""
    of = "excess" if "excess" in table else "score"
    if name != of or not {"low", "high"} <= set(table):
        return None
    ends = table[["low", "high"]].apply(pd.to_numeric, errors="coerce")
    return ends.to_numpy(float)


def _check_numbers(cells: np.ndarray) -> None:
    if np.isinf(cells).any():
        raise InputError("values of heads are finite, or NaN for none; one is infinite.")
    if np.isnan(cells).all():
        raise InputError("no head has a value to draw.")


def _is_missing(word: Any) -> bool:
    return bool(pd.api.types.is_scalar(word) and pd.isna(word))


def _all(table: Mapping[Any, Any] | pd.DataFrame) -> str:
    return ", ".join(map(str, table))[:400]
