"""Tables of what word-level scoring found, one line per kind, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ...interp.errors import InputError
from ...interp.heads import HeadId
from .coreference import NAME, prefix_ceiling
from .label import INSUFFICIENT

_HEADER = (
    "kind", "n", "baseline", "best head", "accuracy", "excess [95 %]", "mass (expected)",
    "chosen", "grade", "heads",
)  # fmt: skip


def kinds_table(rows: pd.DataFrame, *, least: int = 0) -> str:
    """Per kind its best head, what the baseline reaches, and how many heads are labelled.

    The best head is the one of the highest accuracy among those of the best grade.

    Args:
        rows: from `label_words`.
        least: leave out kinds with fewer visible instances.

    Returns:
        A Markdown table; percentages but for n and the number of heads labelled (strong + weak).

    Raises:
        InputError: no row is left.
    """
    kept = rows[rows.n >= least]
    if kept.empty:
        raise InputError(f"no kind has {least} visible instances.")
    lines = [_line(kind, kept.loc[kept.kind == kind]) for kind in kept.kind.unique()]
    return _markdown(_HEADER, lines)


def _line(name: Any, group: Any) -> list[str]:
    order = {"strong": 3, "weak": 2, "ambiguous": 1}
    ranked = group.assign(rank=group.grade.map(lambda grade: order.get(grade, 0)))
    best = ranked.sort_values(["rank", "score"], ascending=False, kind="stable").iloc[0]
    counts = group.grade.value_counts()
    details = best.details
    span = "—" if best.grade == INSUFFICIENT else f"[{_points(best.low)}, {_points(best.high)}]"
    return [
        str(name),
        str(best.n),
        f"{_percent(best.expected)} ({', '.join(dict.fromkeys(details['baselines']))})",
        _name(best),
        _percent(best.score),
        f"{_points(best.excess)} {span}",
        f"{_percent(details['mass'])} ({_percent(details['mass_expected'])})",
        _percent(details["chosen_accuracy"]),
        best.grade,
        f"{counts.get('strong', 0)} + {counts.get('weak', 0)}",
    ]


def coreference_table(rows: pd.DataFrame, *, heads: int = 5) -> str:
    """The best heads for coreference, with the baselines and the kinds of mention.

    Args:
        rows: from `label_words`, with the kind `coreference`.
        heads: how many heads to show.

    Raises:
        InputError: the kind is not among the rows.
    """
    own = rows.loc[rows.kind == NAME].sort_values(by="score", ascending=False, kind="stable")
    if own.empty:
        raise InputError("the rows hold no coreference; were the documents without clusters?")
    groups = sorted(own.iloc[0].details["groups"])
    header = ("", "all", *groups, "mass (expected)", "grade")
    lines = [_coreference_line(row, groups) for _, row in own.head(heads).iterrows()]
    first = own.iloc[0]
    for name, accuracy in first.details["baseline_accuracy"].items():
        label = f"offset {name}" if name[0] in "+-" else name.replace("_", " ")
        lines.append([label, _percent(accuracy), *[""] * len(groups), "", ""])
    counts = [str(first.details["groups"][group]["n"]) for group in groups]
    lines.append(["n", str(first.n), *counts, "", ""])
    return _markdown(header, lines)


def _coreference_line(row: Any, groups: Sequence[str]) -> list[str]:
    details = row.details
    return [
        _name(row),
        _percent(row.score),
        *(_percent(details["groups"][group]["accuracy"]) for group in groups),
        f"{_percent(details['mass'])} ({_percent(details['mass_expected'])})",
        row.grade,
    ]


def ceiling_line(documents: Iterable[Any]) -> str:
    """What a decoder cannot exceed on these documents, as a sentence."""
    found = prefix_ceiling(documents)
    return (
        f"Of {found.prefixes} distinct prefixes up to the pronoun {found.ambiguous} occur with "
        f"more than one answer: a decoder cannot exceed {_percent(found.accuracy)} % of the "
        f"{found.anaphors} instances."
    )


def _name(row: Any) -> str:
    return str(HeadId(row.site, int(row.layer), int(row["head"])))


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
