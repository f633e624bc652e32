"""One head in one paragraph: what it is labelled, with every number that bears on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from ..interp.heads import HeadId
from .grade import GRADES

Row = Mapping[str, Any]

_SETS = {"random": "random tokens", "natural": "natural text", "treebank": "parsed text"}
_READS = {"Q": "queries", "K": "keys", "V": "values"}
_TOLD, _NOTABLE = 3, 3.0  # how many sources or rows are told; from which z on a source is


def paragraph(head: HeadId, rows: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> str:
    """What is known of a head, in sentences.

    Args:
        head: its address.
        rows: its rows of the atlas, one per kind.
        tables: its rows of the atlas's further tables, by name; `causal`, `ov`, `composition`,
            `retrieval`, `in_context` and `stability` are told in words, of others (or of tables of
            these names with other columns) the first rows, column by column.
    """
    given = best_first([
        row for row in rows.to_dict("records") if row["grade"] in ("weak", "strong")
    ])  # fmt: skip
    causal = tables.get("causal", pd.DataFrame())
    tested = set(causal["kind"]) if "kind" in causal else set()
    told = [_opening(head, given, rows), *(_label(row, row["kind"] in tested) for row in given)]
    known = [name for name, table in tables.items() if _is_known(name, table)]
    for name, (_, tell) in _TELLERS.items():
        told += tell([*tables[name].to_dict("records")]) if name in known else []
    told += [_other(name, table) for name, table in tables.items() if name not in known]
    return " ".join(filter(None, told))


def best_first(rows: Iterable[Row]) -> list[Row]:
    """A head's rows by falling grade, then by falling excess."""
    return sorted(rows, key=lambda row: (-GRADES.index(row["grade"]), -row["excess"]))


def _is_known(name: str, table: pd.DataFrame) -> bool:
    """Whether a table has the columns that sentences of its name need; else it is a user's own."""
    return name in _TELLERS and set(_TELLERS[name][0].split()) <= set(table)


def _other(name: str, table: pd.DataFrame) -> str:
    """The first rows of a user's table; nothing where it has no column but the address."""
    lines = [line for row in table.head(_TOLD).to_dict("records") if (line := plain_line(row))]
    more = f"; and {len(table) - _TOLD} more rows" if len(table) > _TOLD else ""
    return f"{name}: {'; '.join(lines)}{more}." if lines else ""


def plain_line(row: Row) -> str:
    """A row of a further table: its columns but the address, in words.

    Example:
        >>> plain_line({"site": "", "layer": 0, "head": 1, "x": 2.0, "of": "me"})
        'x 2.000, of me'
    """
    shown = {name: value for name, value in row.items() if name not in ("site", "layer", "head")}
    return ", ".join(f"{name} {number(value)}" for name, value in shown.items())


def _opening(head: HeadId, given: list[Row], rows: pd.DataFrame) -> str:
    if given:
        labels = ", ".join(f"{row['kind']} ({row['grade']})" for row in given)
        return f"{head} is labelled {labels}."
    open_ = rows.loc[rows["grade"] == "ambiguous", "kind"].tolist()
    more = f"; more prompts would decide {', '.join(open_)}" if open_ else ""
    return f"{head} has no label among {len(rows)} kinds{more}."


def _label(row: Row, tested: bool) -> str:
    details = row["details"]
    place = _SETS.get(details["prompts"], details["prompts"])
    variant = f" ({details['variant']})" if details.get("variant") else ""
    interval = f"{row['excess']:+.3f} [{row['low']:.3f}, {row['high']:.3f}]"
    if details["prompts"] == "treebank":
        found = (
            f"its strongest word is the linked one in {row['score']:.1%} of {row['n']:,} "
            f"instances, the best baseline in {row['expected']:.1%}"
        )
    else:
        found = (
            f"{row['score']:.3f} of its weight lies there over {row['n']:,} rows of {place}, "
            f"{row['expected']:.3f} expected by chance"
        )
    legacy = {True: "yes", False: "no"}.get(row["legacy"])
    verdict = f"; the field's threshold says {legacy}" if legacy else ""
    return (
        f"{row['kind']}{variant}: {found} (excess {interval}){verdict}; "
        f"evidence: {row['evidence']}{'' if tested else ', not tested by removal'}."
    )


def _causal(rows: list[Row]) -> list[str]:
    by_kind: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_kind.setdefault((row["kind"], row["behaviour"]), []).append(row)
    told = []
    for (kind, behaviour), own in by_kind.items():
        effects = ", ".join(
            f"{row['ablation']} {_signed(row['effect'])} "
            f"[{number(row['low'])}, {number(row['high'])}]"
            for row in own
        )
        mean = next((row for row in own if row["ablation"] == "mean"), own[0])
        told.append(
            f"Harm of its removal to {behaviour}, which {kind} predicts: {effects}; its layer "
            f"alone predicts {_signed(mean['layer_effect'])} (p {number(mean['p'])}, "
            f"q {number(mean['q'])}{_uncontrolled(mean)})."
        )
    return told


def _uncontrolled(row: Row) -> str:
    """What a verdict rests on where there are too few other heads for a rate."""
    few = row.get("controlled") is False
    return "; few other heads: false discoveries are not controlled" if few else ""


def _ov(rows: list[Row]) -> list[str]:
    return [
        f"OV copying {number(row['copying'])} where random rotations give "
        f"{number(row['copying_expected'])} ± {number(row['copying_sd'])} "
        f"(z {number(row['copying_z'], '.1f')})."
        for row in rows
    ]


def _composition(rows: list[Row]) -> list[str]:
    told = []
    for kind, name in _READS.items():
        own = [row for row in rows if row["kind"] == kind and isinstance(row["z"], float)]
        own = [row for row in own if row["z"] > _NOTABLE]
        own.sort(key=lambda row: -row["z"])
        if own:
            best = ", ".join(f"{r['source']} (z {number(r['z'], '.0f')})" for r in own[:_TOLD])
            told.append(f"Its {name} read most from {best}.")
    return told


def _retrieval(rows: list[Row]) -> list[str]:
    return [
        f"Retrieval score {number(row['score'])} against {number(row['expected'])} "
        f"({row['grade']})."
        for row in rows
    ]


def _in_context(rows: list[Row]) -> list[str]:
    return [
        f"Without it, patterns frozen, the in-context-learning score changes by "
        f"{_signed(row['effect'])} nats [{number(row['low'])}, {number(row['high'])}]."
        for row in rows
    ]


def _stability(rows: list[Row]) -> list[str]:
    return [
        f"The label {row['kind']} holds in {row['held']} of {row['of']} conditions."
        for row in rows
        if row["held"]
    ]


_TELLERS: dict[str, tuple[str, Callable[[list[Row]], list[str]]]] = {
    "causal": ("kind behaviour ablation effect low high layer_effect p q", _causal),
    "ov": ("copying copying_expected copying_sd copying_z", _ov),
    "composition": ("kind source z", _composition),
    "retrieval": ("score expected grade", _retrieval),
    "in_context": ("effect low high", _in_context),
    "stability": ("kind held of", _stability),
}
"""By table: the columns that are told, and how."""


def number(value: Any, form: str = ".3f") -> str:
    """A cell of a table as text; a dash where a number is missing.

    Example:
        >>> number(0.25), number(None), number("mean")
        ('0.250', '–', 'mean')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return format(value, form) if isinstance(value, float) else str(value)


def _signed(value: Any) -> str:
    return number(value, "+.3f")
