"""An atlas on a terminal: the labelled heads as a table, and a summary of one screen."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .atlas import HeadAtlas
from .columns import MISSING, fitting
from .words.label import WordRule

_STYLE = {"strong": "bold green", "weak": "green"}
_PER_KIND = 8
_ENOUGH = 32  # with fewer documents the bootstrap's intervals are rough
COLUMNS = (
    "head", "kind", "score", "expected", "excess [95 %]", "natural", "grade", "legacy", "evidence",
)  # fmt: skip
_NUMBERS = ("score", "expected", "natural")
_SPARE = ("legacy", "natural", "expected")  # which go where there is no room, the least first
_MORE = "…"
_WORD_SET = "treebank"
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
    name = escape(str(atlas.model["name"]))
    if atlas.table().empty:
        console.print(f"No head of {name} is labelled.", highlight=False)
    else:
        shown, styles, left_out = _labelled(atlas, console.width)
        console.print(_table(shown, styles, f"Heads of {name}"))
        console.print(_legend(atlas, {*shown}, left_out), style="dim", highlight=False)
        console.print()
    console.print(escape(atlas.summary()), highlight=False)
    console.print(escape(provenance(atlas)), style="dim", highlight=False)


def _labelled(
    atlas: HeadAtlas, width: int
) -> tuple[dict[str, list[str]], list[str], tuple[str, ...]]:
    """Cells of the labelled heads by column, a style per line, and columns there is no room for."""
    lines, styles = [], []
    rows = atlas.table(details=True).to_dict("records")
    for kind in atlas.kinds:
        own = [row for row in rows if row["kind"] == kind]
        lines += [head_cells(row) for row in own[:_PER_KIND]]
        styles += [_STYLE[row["grade"]] for row in own[:_PER_KIND]]
        if len(own) > _PER_KIND:
            more = {"head": _MORE, "kind": f"{len(own) - _PER_KIND} more"}
            lines.append({**dict.fromkeys(_SPARE, MISSING), **more})
            styles.append("dim")
    names = COLUMNS if "causal" in atlas.tables else COLUMNS[:-1]  # else all are pattern only
    cells = {name: [line.get(name, "") for line in lines] for name in names}
    shown = fitting(cells, width, spare=_SPARE, wraps="kind")
    gone = (name for name in COLUMNS if name in cells and name not in shown)
    return shown, styles, tuple(name for name in gone if {*cells[name]} != {MISSING})


def _table(shown: dict[str, list[str]], styles: list[str], title: str) -> Table:
    table = Table(
        title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), header_style="underline"
    )
    for name in shown:
        # folded, where even so there is no room: a number that loses its end is another number
        table.add_column(name, justify="right" if name in _NUMBERS else "left", overflow="fold")
    for place, style in enumerate(styles):
        line = [own[place] for own in shown.values()]
        if line[0] == _MORE:  # which has no values to miss
            line = ["" if cell == MISSING else cell for cell in line]
        table.add_row(*map(escape, line), style=style)
    return table


def _legend(atlas: HeadAtlas, shown: set[str], left_out: tuple[str, ...]) -> str:
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
    legacy = " legacy: the field's threshold." if "legacy" in shown else ""
    told.append(f"[95 %]: simultaneous over all rows.{legacy}")
    if left_out:
        told.append(f"No room for: {', '.join(left_out)}; a wider terminal and files have them.")
    return "\n".join(told)


def _margins(rule: Any) -> str:
    """The margins of an atlas's rule; nothing where its settings, read from a file, lack them."""
    given = [rule.get(name) for name in ("strong", "margin")] if isinstance(rule, dict) else [None]
    if not all(isinstance(number, float | int) and 0 <= number <= 1 for number in given):
        return ""
    return _grades(*(f"{number:.2f}".removeprefix("0") for number in given))


def _grades(strong: str, margin: str) -> str:
    return f" strong: the whole interval of the excess at or above {strong}; weak: above {margin}."


def head_cells(row: dict[str, Any]) -> dict[str, str]:
    """A row of the atlas, with the head's address, as the text of each of `COLUMNS`."""
    details = row["details"]
    cells = (
        row["address"],
        f"{row['kind']} {details['variant']}" if "variant" in details else row["kind"],
        f"{row['score']:.3f}",
        f"{row['expected']:.3f}",
        f"{row['excess']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
        MISSING if math.isnan(row["natural_score"]) else f"{row['natural_score']:.3f}",
        row["grade"],
        {True: "yes", False: "no", None: MISSING}[row["legacy"]],
        row["evidence"],
    )
    return dict(zip(COLUMNS, cells, strict=True))


def _documents(settings: dict[str, Any]) -> str:
    """What was scored: tokens of each set, and parsed documents by their words."""
    told = []
    for name, n in settings["prompts"].items():
        if name == _WORD_SET:
            told.append(_parsed(n, settings.get("parsed")))
        else:
            told.append(f"{n} × {settings['seq_len'][name]} {name} tokens")
    return ", ".join(told)


def _parsed(n: int, parsed: Any) -> str:
    """Parsed documents, with their words and origin where the settings, read from a file, say."""
    said = parsed if isinstance(parsed, dict) else {}
    words, origin = said.get("words"), said.get("origin")
    counted = f" ({words:,} words)" if type(words) is int else ""
    made = " of the built-in grammar" if origin == "built-in grammar" else ""
    return f"{n} parsed document{'' if n == 1 else 's'}{made}{counted}"


def provenance(atlas: HeadAtlas) -> str:
    """How the numbers came about, in a line or more."""
    settings, model = atlas.settings, atlas.model
    lines = [
        f"{_documents(settings)}; BOS {'yes' if settings['bos'] else 'no'}, "
        f"seed {settings['seed']}; {model['dtype']}, hook drift {model['hook_drift']:.1e}"
    ]
    if max(settings["prompts"].values()) < _ENOUGH:
        lines.append(f"fewer than {_ENOUGH} prompts: the intervals are rough")
    rounds = settings.get("settled")
    if _WORD_SET in settings["prompts"] and isinstance(rounds, dict) and _WORD_SET in rounds:
        lines.append("documents were added for kinds on tokens alone, not for those between words")
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
