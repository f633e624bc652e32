"""An atlas on a terminal: the labelled heads as a table, and a summary of one screen."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .atlas import HeadAtlas
from .words.label import WordRule

_STYLE = {"strong": "bold green", "weak": "green"}
_PER_KIND = 8
_ENOUGH = 32  # with fewer documents the bootstrap's intervals are rough
_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("head", "left"), ("kind", "left"), ("score", "right"), ("expected", "right"),
    ("excess [95 %]", "left"), ("natural", "right"), ("grade", "left"), ("legacy", "left"),
    ("evidence", "left"),
)  # fmt: skip
_LEGEND = (
    "score: mean attention mass per row, on random tokens; natural: on natural text. A positional "
    "kind's grade is the lower of the two, delimiter is measured on natural text alone. expected: "
    "the score by chance."
)
_WORD_LEGEND = (
    "score: share of words whose strongest word is the linked one; expected: that of the best "
    "baseline. The weight on linked words must also exceed what the head's habits of place give."
)
_BETWEEN = "Kinds between words: "


def show(atlas: HeadAtlas, console: Console | None = None) -> None:
    """Print the labelled heads, the best of each kind first, and the summary."""
    console = console or Console()
    table = Table(
        title=f"Heads of {escape(str(atlas.model['name']))}", title_justify="left",
        box=None, padding=(0, 1, 0, 0), header_style="underline",
    )  # fmt: skip
    shown = _COLUMNS if "causal" in atlas.tables else _COLUMNS[:-1]  # else all are pattern only
    for name, justify in shown:
        table.add_column(name, justify=justify, no_wrap=True)
    rows = atlas.table(details=True).to_dict("records")
    for kind in atlas.kinds:
        own = [row for row in rows if row["kind"] == kind]
        for row in own[:_PER_KIND]:
            table.add_row(*_cells(row)[: len(shown)], style=_STYLE[row["grade"]])
        if len(own) > _PER_KIND:
            table.add_row("…", f"{len(own) - _PER_KIND} more", style="dim")
    console.print(table)
    console.print(_legend(atlas), style="dim", highlight=False)
    console.print()
    console.print(escape(atlas.summary()), highlight=False)
    console.print(escape(_provenance(atlas)), style="dim", highlight=False)


def _legend(atlas: HeadAtlas) -> str:
    """What the columns mean for the kinds that were scored, and what the grades ask for."""
    sets = dict(zip(atlas.rows["kind"], atlas.rows["details"], strict=True))
    between = [details.get("prompts") == "treebank" for details in sets.values()]
    told = []
    if not all(between) or not between:
        told.append(_LEGEND + _margins(atlas.settings.get("rule")))
    if any(between):
        rule = WordRule()  # `classify` lets no one choose these margins
        grades = _grades(f"{100 * rule.strong:g} points", f"{100 * rule.margin:g}")
        told.append((_BETWEEN if told else "") + _WORD_LEGEND + grades)
    told.append("[95 %]: simultaneous over all rows. legacy: the field's threshold.")
    return "\n".join(told)


def _margins(rule: Any) -> str:
    """The margins of an atlas's rule; nothing where its settings, read from a file, lack them."""
    given = [rule.get(name) for name in ("strong", "margin")] if isinstance(rule, dict) else [None]
    if not all(isinstance(number, float | int) and 0 <= number <= 1 for number in given):
        return ""
    return _grades(*(f"{number:.2f}".removeprefix("0") for number in given))


def _grades(strong: str, margin: str) -> str:
    return f" strong: the whole interval of the excess at or above {strong}; weak: above {margin}."


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    details = row["details"]
    return (
        row["address"],
        f"{row['kind']} {details['variant']}" if "variant" in details else row["kind"],
        f"{row['score']:.3f}",
        f"{row['expected']:.3f}",
        f"{row['excess']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
        "–" if math.isnan(row["natural_score"]) else f"{row['natural_score']:.3f}",
        row["grade"],
        {True: "yes", False: "no", None: "–"}[row["legacy"]],
        row["evidence"],
    )


def _provenance(atlas: HeadAtlas) -> str:
    settings, model = atlas.settings, atlas.model
    sets = [f"{n} × {settings['seq_len'][name]} {name}" for name, n in settings["prompts"].items()]
    lines = [
        f"{', '.join(sets)} tokens; BOS {'yes' if settings['bos'] else 'no'}, "
        f"seed {settings['seed']}; {model['dtype']}, hook drift {model['hook_drift']:.1e}"
    ]
    if max(settings["prompts"].values()) < _ENOUGH:
        lines.append(f"fewer than {_ENOUGH} prompts: the intervals are rough")
    check = atlas.null_check
    if check is not None and len(check):
        draws = [
            f"{sum(own['false_labels'] > 0)} of {len(own)} draws on {name}"
            for name, own in check.groupby("prompts", sort=False)
        ]
        lines.append(
            f"permuted labels: any false label in {', '.join(draws)}; mean score "
            f"{check['mean_score'].mean():.4f}, expected {check['mean_expected'].mean():.4f}"
        )
    return "\n".join(lines)
