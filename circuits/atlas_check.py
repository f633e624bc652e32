"""What an atlas file may hold: every field that is read, shown or computed with, checked."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd

from ..interp.errors import InputError
from ..interp.probes import PROMPT_SETS as TOKEN_SETS
from ..interp.probes import SIGNAL_SET
from .grade import GRADES, UNLABELLED

SCHEMA_VERSION = 1
"""Raised when a reader of the old files would misread the new ones."""

PROMPT_SETS = (*TOKEN_SETS, SIGNAL_SET, "treebank")
"""Sets of documents that rows may rest on: those of the battery, and parsed documents."""

COLUMNS = (
    "site", "layer", "head", "kind", "score", "expected", "excess", "low", "high", "n", "grade",
    "legacy", "evidence", "details",
)  # fmt: skip
"""Fields of a row, in order; `details` holds whatever else a kind has to say."""

META = ("model", "versions", "settings")
"""What stands beside the rows, each an object; `null_check`, a list, and `tables` may follow."""

NULL_CHECK_COLUMNS = (
    "draw", "prompts", "kinds", "mean_score", "mean_expected", "false_labels", "p_values",
)  # fmt: skip
"""Fields of an entry of `null_check`."""

NUMBERS = ("score", "expected", "excess", "low", "high")
"""Fields of a row that are masses or differences of masses; null where no row was scored."""

_COUNTS = ("layer", "head", "n")
SITES = ("", "enc", "dec", "cross")
"""Stacks that a head's address may name."""
_LARGEST = 1e6  # masses are at most 1; anything near this is no atlas


def printable(text: str) -> str:
    """The text with a replacement character for whatever a terminal might act on.

    Example:
        >>> printable("folder\\x1b[31m")
        'folder�[31m'
    """
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def is_kind_name(name: Any) -> bool:
    """Whether it can name a kind: lower-case identifiers joined by dots.

    Example:
        >>> is_kind_name("syntactic.nsubj.to_head"), is_kind_name("Induction")
        (True, False)
    """
    return (
        isinstance(name, str)
        and name == name.lower()
        and all(part.isidentifier() for part in name.split("."))
    )


def check_head(head: Any) -> None:
    """Refuse a head (all but the rows) whose fields cannot be read or shown.

    Raises:
        InputError: the message names the field.
    """
    if not isinstance(head, dict):
        raise InputError("it carries no object with schema_version, model, versions, settings.")
    version = head.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(f"its schema_version is {version!r}; this release reads {SCHEMA_VERSION}.")
    for name in META:
        if not isinstance(head.get(name), dict):
            raise InputError(f"{name} is not an object.")
    json.dumps(head, allow_nan=False)  # ValueError: 1e999 and its like
    model, settings = head["model"], head["settings"]
    counts, lengths = settings.get("prompts"), settings.get("seq_len")
    wrong = {
        "model.name and model.dtype are not printable texts": not (
            _is_text(model.get("name")) and _is_text(model.get("dtype"))
        ),
        "model.hook_drift is not a number": not _is_number(model.get("hook_drift")),
        "versions are not printable texts": not all(map(_is_text, head["versions"].values())),
        "settings.seed is not a whole number": not _is_count(settings.get("seed")),
        "settings.bos is not true or false": not isinstance(settings.get("bos"), bool),
        "settings.prompts and settings.seq_len are not whole numbers by prompt set": not (
            _are_counts(counts) and _are_counts(lengths) and set(counts) == set(lengths)
        ),
    }
    _refuse(wrong, "")


def check_null_check(rows: Any) -> pd.DataFrame | None:
    """The check of the null as a frame, or None where the file has none.

    Raises:
        InputError: it is not a list of entries with the right fields.
    """
    if rows is None:
        return None
    if not isinstance(rows, list) or not all(map(_is_null_entry, rows)):
        raise InputError(
            f"null_check is not a list of objects with {', '.join(NULL_CHECK_COLUMNS)}, counts and "
            "numbers but for the name of the prompts."
        )
    return pd.DataFrame(rows, columns=list(NULL_CHECK_COLUMNS))


def check_rows(rows: Any) -> pd.DataFrame:
    """The rows as a frame.

    Raises:
        InputError: a field is missing or wrong, or two rows are of the same head and kind.
    """
    if not isinstance(rows, list) or not rows:
        raise InputError("it has no list of heads.")
    for row in rows:
        if not isinstance(row, dict) or set(row) != set(COLUMNS):
            raise InputError(f"each head needs the fields {', '.join(COLUMNS)}.")
        for name in NUMBERS:
            row[name] = math.nan if row[name] is None else row[name]
        _check_row(row)
    places = {(row["site"], row["layer"], row["head"], row["kind"]) for row in rows}
    if len(places) < len(rows):
        raise InputError("two rows are of the same head and kind.")
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(NUMBERS, float) | {"legacy": object})


def _check_row(row: dict[str, Any]) -> None:
    numbers = all(
        type(row[name]) in (int, float) and not abs(row[name]) > _LARGEST for name in NUMBERS
    )
    whole = all(_is_count(row[name]) for name in _COUNTS)
    wrong = {
        f"a grade that is none of {', '.join(GRADES)}": row["grade"] not in GRADES,
        "a legacy verdict that is not true, false or null": row["legacy"] is not None
        and not isinstance(row["legacy"], bool),
        "a layer, head or n that is not a whole number": not whole,
        "a layer or head beyond 9999": whole and max(row["layer"], row["head"]) > 9999,
        f"a site that is none of {SITES}": row["site"] not in SITES,
        "a kind that is not a name": not (is_kind_name(row["kind"])),
        "evidence that is not a text": not _is_text(row["evidence"]),
        "a score, expected, excess, low or high that is not a number": not numbers,
        "a low above its high": numbers and row["low"] > row["high"],
        "a label and no numbers": numbers
        and row["grade"] not in UNLABELLED
        and any(math.isnan(row[name]) for name in NUMBERS),
        "details that are not an object": not isinstance(row["details"], dict),
    }
    _refuse(wrong, "a row has ")
    _check_details(row["details"])


def _check_details(details: dict[str, Any]) -> None:
    json.dumps(details, allow_nan=False)
    companions = details.get("companions", {})
    sets = [details[name] for name in PROMPT_SETS if name in details]
    wrong = {
        "no prompt set": details.get("prompts") not in PROMPT_SETS,
        "a variant that is not a text": not _is_text(details.get("variant", "")),
        "companions that are not numbers by name": not (
            isinstance(companions, dict)
            and all(map(_is_text, companions))
            and all(value is None or _is_number(value) for value in companions.values())
        ),
        "a further prompt set without numbers and grade": not all(map(_is_graded, sets)),
    }
    _refuse(wrong, "the details of a row have ")


def _refuse(wrong: dict[str, bool], where: str) -> None:
    for problem, holds in wrong.items():
        if holds:
            raise InputError(f"{where}{problem}.")


def _is_graded(numbers: Any) -> bool:
    """Whether it is what `details` says of a further prompt set."""
    if not isinstance(numbers, dict) or numbers.get("grade") not in GRADES:
        return False
    values = [numbers.get(name, "") for name in NUMBERS]
    missing = numbers["grade"] in UNLABELLED
    if not all(_is_number(value) or (value is None and missing) for value in values):
        return False
    low, high = numbers["low"], numbers["high"]
    return low is None or high is None or low <= high


def _is_null_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or set(entry) != set(NULL_CHECK_COLUMNS):
        return False
    p_values = entry["p_values"]
    return (
        entry["prompts"] in PROMPT_SETS
        and all(_is_count(entry[name]) for name in ("draw", "kinds", "false_labels"))
        and all(_is_number(entry[name]) for name in ("mean_score", "mean_expected"))
        and isinstance(p_values, list)
        and all(_is_number(p) and 0 <= p <= 1 for p in p_values)
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 10**12


def _are_counts(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and set(value) <= set(PROMPT_SETS)
        and all(map(_is_count, value.values()))
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()
