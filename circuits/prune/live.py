"""What `headatlas prune` shows while it runs, on a terminal alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Progress = Callable[[str, int, int], None]
Watch = Callable[[Mapping[str, Any]], None]


@contextmanager
def live() -> Iterator[tuple[Progress, Watch]]:
    """A bar per stage, and beside that of the gates how they are doing, on a terminal alone."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    console, note = Console(stderr=True), [""]
    hidden = not console.is_terminal
    with Bars(*columns, console=console, transient=True, disable=hidden) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total, note="")
            said = note[0] if stage == "train gates" else ""
            bars.update(tasks[stage], completed=done, total=total, note=said)

        def watch(row: Mapping[str, Any]) -> None:
            note[0] = _note(row)

        yield report, watch


def _note(row: Mapping[str, Any]) -> str:
    return (
        f"{row['asked']:g}: loss {row['loss_nats']:.3f}, expected L0 {row['expected_open']:.1f} "
        f"({100 * row['open_probability']:.0f} % open), open now {row['open_heads']}"
    )
