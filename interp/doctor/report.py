"""What a check of a model found: a line per check, as text and as JSON."""

from __future__ import annotations

import json
import math
import os
import shutil
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import InputError, one_line
from ..files import atomic_write, read_json

SCHEMA_VERSION = 1
"""Raised when a reader of the old files would misread the new ones."""

HOLDS, FAILS, SKIPPED, TOLD = "holds", "FAILS", "skipped", "told"
_OUTCOMES = (HOLDS, FAILS, SKIPPED, TOLD)
_MAX_MIB = 4
_WIDEST = 110  # columns of text that read well


@dataclass(frozen=True)
class Finding:
    """One line of a report.

    Attributes:
        name: what was checked.
        outcome: `"holds"`, `"FAILS"`, `"skipped"` (it could not be checked, or does not apply) or
            `"told"` (information, which cannot fail).
        detail: what was measured, or why not.
        measured: the largest figure that was compared with the limit; None where there is none or
            it was not finite.
        limit: what it may be at most.

    Raises:
        InputError: another outcome, or a limit or figure that is no number.
    """

    name: str
    outcome: str
    detail: str
    measured: float | None = None
    limit: float | None = None

    def __post_init__(self) -> None:
        if self.outcome not in _OUTCOMES:
            raise InputError(f"an outcome is one of {', '.join(_OUTCOMES)}; got {self.outcome!r}.")
        if not all(isinstance(text, str) for text in (self.name, self.detail)):
            raise InputError(f"name and detail are text; got {self.name!r} and {self.detail!r}.")
        for value in (self.measured, self.limit):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float) or value != value
            ):
                raise InputError(f"{self.name}: expected a number or None; got {value!r}.")

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}{self._bound()}"

    def _bound(self) -> str:
        return "" if self.limit is None else f" (limit {figure(self.limit)})"


def figure(value: float) -> str:
    """A measured figure as reports have it.

    Example:
        >>> figure(1.234e-7), figure(0.0)
        ('1.2e-07', '0')
    """
    return f"{value:.1e}" if value else "0"


def judged(name: str, measured: float, limit: float, detail: str) -> Finding:
    """A finding that holds where a figure is within its limit; NaN is not.

    Example:
        >>> judged("rows", 1e-7, 1e-3, "off by 1e-7").outcome
        'holds'
        >>> judged("rows", float("nan"), 1e-3, "off by nan").outcome
        'FAILS'
    """
    outcome = HOLDS if measured <= limit else FAILS
    return Finding(name, outcome, detail, measured if math.isfinite(measured) else None, limit)


@dataclass(frozen=True, repr=False)
class CheckReport:
    """Whether a model is seen faithfully. It prints as a table.

    Attributes:
        model: the model's class.
        implementation: its own attention implementation, which hooked runs are compared with.
        dtype: of its weights.
        findings: what was checked, in order.

    Example:
        >>> report = CheckReport("Llama", "sdpa", "float32", (judged("rows", 0.0, 1e-3, "0 off"),))
        >>> report
        Llama, sdpa, float32: seen faithfully (1 check holds)
          rows  holds    0 off (limit 1.0e-03)
        >>> CheckReport.from_json(report.to_json()) == report
        True
    """

    model: str
    implementation: str
    dtype: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The checks that failed."""
        return tuple(finding for finding in self.findings if finding.outcome == FAILS)

    def __getitem__(self, name: str) -> Finding:
        """The finding of that name.

        Raises:
            InputError: there is none.
        """
        found = next((finding for finding in self.findings if finding.name == name), None)
        if found is None:
            names = ", ".join(finding.name for finding in self.findings)
            raise InputError(f"no check is called {name!r}; there are {names}.")
        return found

    def __repr__(self) -> str:
        width = min(shutil.get_terminal_size((_WIDEST, 0)).columns, _WIDEST)
        left = max((len(finding.name) for finding in self.findings), default=0)
        rows = [self._verdict()]
        for finding in self.findings:
            start = f"  {finding.name:{left}}  {finding.outcome:7}  "
            text = f"{finding.detail}{finding._bound()}"
            room = max(width - len(start), 24)
            first, *more = textwrap.wrap(text, room) or [""]
            rows += [start + first, *(" " * len(start) + line for line in more)]
        return "\n".join(row.rstrip() for row in rows)

    def _verdict(self) -> str:
        count = {o: sum(f.outcome == o for f in self.findings) for o in _OUTCOMES}
        told = f"{count[HOLDS]} {'check holds' if count[HOLDS] == 1 else 'checks hold'}"
        if count[FAILS]:
            told += f", {count[FAILS]} fail{'s' if count[FAILS] == 1 else ''}"
        if count[SKIPPED]:
            told += f", {count[SKIPPED]} skipped"
        verdict = "seen faithfully" if self.ok else "NOT seen faithfully"
        return f"{self.model}, {self.implementation}, {self.dtype}: {verdict} ({told})"

    def to_json(self) -> str:
        """The report as JSON text, which `from_json` reads back."""
        content = {"schema_version": SCHEMA_VERSION, "holds": self.ok, **asdict(self)}
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> CheckReport:
        """Read what `to_json` wrote.

        Raises:
            InputError: it is no report, or one of another schema.
        """
        try:
            content = json.loads(text)
            version = content["schema_version"]
            if version == SCHEMA_VERSION:
                findings = tuple(Finding(**entry) for entry in content["findings"])
                named = {key: str(content[key]) for key in ("model", "implementation", "dtype")}
                return cls(**named, findings=findings)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(
                f"this is not a report of a check ({type(error).__name__}: {one_line(error)})."
            ) from None
        raise InputError(f"the report has schema {version!r}; this version reads {SCHEMA_VERSION}.")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as .json, whole or not at all.

        Raises:
            InputError: another suffix, or the file cannot be written.
        """
        target = check_report_suffix(Path(path))
        with atomic_write(target) as partial:
            partial.write_text(self.to_json(), encoding="utf-8")
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CheckReport:
        """Read a file that `save` wrote.

        Raises:
            InputError: it cannot be read, or is no report.
        """
        content = read_json(Path(path), _MAX_MIB)
        try:
            return cls.from_json(json.dumps(content))
        except InputError as error:
            raise InputError(f"{str(path)!r}: {error}") from None


def check_report_suffix(path: Path) -> Path:
    """Refuse a file name that does not end in .json, before any work is done.

    Raises:
        InputError: another suffix.
    """
    if path.suffix.lower() != ".json":
        raise InputError(f"{path.name!r} ends in no known format; a report is written as .json.")
    return path
