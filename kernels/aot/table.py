"""The gate's results as tables: on the terminal, in a document, in JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .gate import TARGETS, Reading, as_dict
from .run import Result

SCHEMA_VERSION = 1
_WIDE = 150  # where there is no terminal to fit
_BLOCK = re.compile(r"(<!-- figures: aot -->\n).*?(<!-- end -->)", re.DOTALL)
_COLUMNS = (
    "sm", "kernel", "M×N", "warps", "stages", "registers", "shared KB", "stack B",
    "spills", "hot spills", "mma", "slots/score", "",
)  # fmt: skip


def show(results: Sequence[Result]) -> None:
    """Print one row per case and architecture.

    Args:
        results: In the order of the rows.

    Example:
        >>> show([])
    """
    if not results:
        return
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="underline")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in ("kernel", "") else "right", no_wrap=True)
    for result in results:
        verdict = "FAILED" if result.failed else "ok"
        table.add_row(
            str(result.arch), escape(result.case), *_cells(result.reading), verdict,
            style="bold red" if result.failed else "",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


def _cells(reading: Reading | None) -> tuple[str, ...]:
    if reading is None:
        return ("–",) * 10
    return (
        "×".join(map(str, reading.blocks)), str(reading.warps), str(reading.stages),
        str(reading.registers), _kib(reading.shared), str(reading.stack), str(reading.spills),
        str(reading.hot_spills), str(reading.mma), _slots(reading),
    )  # fmt: skip


def _kib(n_bytes: int) -> str:
    return f"{n_bytes / 1024:.0f}"


def _slots(reading: Reading) -> str:
    return "–" if reading.slots is None else f"{reading.slots:.1f}"


def markdown(results: Sequence[Result]) -> str:
    """One row per case, one column per architecture, as a Markdown table.

    Args:
        results: In the order of the rows.

    Example:
        >>> fine = Reading((128, 64), 8, 3, 168, 131072, 0, 0, 0, 24, 0, 2, 11.5)
        >>> print(markdown([Result("forward 64 bf16", 90, fine, (), 1.0)]).split("\\n\\n")[1])
        | kernel | sm_90 |
        |---|---|
        | forward 64 bf16 | 168 / 128 / 0 / 11.5 |
    """
    archs = list(dict.fromkeys(result.arch for result in results))
    rows: dict[str, dict[int, str]] = {}
    for result in results:
        rows.setdefault(result.case, {})[result.arch] = _cell(result)
    failed = sum(result.failed for result in results)
    lines = [
        f"Triton {version('triton')}: {len(results)} kernels, {failed or 'none'} failed. Registers "
        "per thread / KB of shared memory / spills in loops that multiply / issue slots per score.",
        "",
        f"| kernel | {' | '.join(f'sm_{arch}' for arch in archs)} |",
        "|---" * (len(archs) + 1) + "|",
    ]
    for case, cells in rows.items():
        told = " | ".join(cells.get(arch, "–") for arch in archs)
        lines.append(f"| {case} | {told} |")
    return "\n".join(lines)


def _cell(result: Result) -> str:
    reading = result.reading
    if reading is None:
        return "**failed**"
    told = (str(reading.registers), _kib(reading.shared), str(reading.hot_spills), _slots(reading))
    return " / ".join(told) + " **failed**" * result.failed


def with_table(text: str, table: str) -> str:
    """A document with a new table between its markers.

    Args:
        text: The document, with `<!-- figures: aot -->` on a line and `<!-- end -->` after it.
        table: What to put between them.

    Raises:
        ValueError: The markers are missing or occur twice.

    Example:
        >>> with_table("a\\n<!-- figures: aot -->\\nold\\n<!-- end -->", "new")
        'a\\n<!-- figures: aot -->\\nnew\\n<!-- end -->'
    """
    new, n = _BLOCK.subn(lambda block: f"{block[1]}{table}\n{block[2]}", text)
    if n != 1:
        raise ValueError(
            "the table stands between the lines <!-- figures: aot --> and <!-- end -->, which must "
            f"occur once; they occur {n} times."
        )
    return new


def to_json(results: Sequence[Result]) -> str:
    """Every figure of every result as a JSON text.

    Args:
        results: In the order of the rows.

    Example:
        >>> json.loads(to_json([]))["results"]
        []
    """
    rows = [
        {
            "case": result.case,
            "arch": result.arch,
            "failures": list(result.failures),
            "seconds": round(result.seconds, 2),
            "reading": None if result.reading is None else as_dict(result.reading),
        }
        for result in results
    ]
    limits = {
        str(arch): {"mma": target.mma, "shared_limit": target.shared_limit}
        for arch, target in TARGETS.items()
    }
    versions = {name: version(name) for name in ("triton", "torch")}
    told = {
        "schema_version": SCHEMA_VERSION, "versions": versions, "targets": limits, "results": rows,
    }  # fmt: skip
    return json.dumps(told, indent=1) + "\n"
