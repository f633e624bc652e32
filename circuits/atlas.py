"""The result: one row per head × kind, with what it took to get there."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ..interp.errors import InputError
from ..interp.heads import HeadId
from .atlas_file import META, read_atlas, write_atlas
from .grade import GRADES


@dataclass(frozen=True, eq=False)
class HeadAtlas:
    """What every head of a model does, as far as the kinds asked for can tell.

    The columns `score` and `mass` in print are the same thing: mean attention mass per scored row.

    Args:
        rows: one row per head × kind, with the columns of `atlas_file.COLUMNS`: `score` is the
            observed mass, `expected` the mass by chance, [`low`, `high`] the simultaneous
            interval of `excess`.
        model: name, class, size, dtype and the measured drift of the hooked forward.
        versions: of this package, torch, transformers and Python.
        settings: everything needed to run it again, the seed included.
        null_check: what permuted labels were graded, if that was asked for.

    Example:
        >>> import headatlas as ha
        >>> atlas = ha.classify(*ha.load("tiny"), kinds="induction", prompts=16, seq_len=96)
        >>> atlas.heads("induction", grade="strong")[0] in atlas.heads("induction")
        True
    """

    rows: pd.DataFrame
    model: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    null_check: pd.DataFrame | None = field(default=None, repr=False)

    def heads(self, kind: str, grade: str = "weak") -> list[HeadId]:
        """Heads of a kind with at least the given grade, largest excess first.

        Raises:
            InputError: the kind was not scored, or the grade does not exist.
        """
        self._check_kind(kind)
        if grade not in GRADES:
            raise InputError(f"grades are {', '.join(GRADES)}; got {grade!r}.")
        allowed = GRADES[GRADES.index(grade) :]
        found = _only(self.rows, (self.rows["kind"] == kind) & self.rows["grade"].isin(allowed))
        found = found.sort_values("excess", ascending=False, kind="stable")
        return [_address(row) for _, row in found.iterrows()]

    def table(
        self, kind: str | None = None, grade: str = "weak", *, details: bool = False
    ) -> pd.DataFrame:
        """Labelled heads, by kind and falling excess.

        Args:
            kind: one kind only; None takes all.
            grade: the least grade; `"none"` gives every row.
            details: whether to keep the column of that name.

        Returns:
            A DataFrame with the head's address in front.
        """
        if kind is not None:
            self._check_kind(kind)
        if grade not in GRADES:
            raise InputError(f"grades are {', '.join(GRADES)}; got {grade!r}.")
        rows = _only(self.rows, self.rows["grade"].isin(GRADES[GRADES.index(grade) :]))
        if kind is not None:
            rows = _only(rows, rows["kind"] == kind)
        order = {name: place for place, name in enumerate(self.kinds)}
        rows = rows.assign(_kind=[order[kind] for kind in rows["kind"]]).sort_values(
            ["_kind", "excess"], ascending=[True, False], kind="stable"
        )
        dropped = ["site", "layer", "head", "_kind", *([] if details else ["details"])]
        table = rows.drop(columns=dropped)
        table.insert(0, "address", [str(_address(row)) for _, row in rows.iterrows()])
        return table.reset_index(drop=True)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that were scored."""
        return tuple(dict.fromkeys(self.rows["kind"]))

    @property
    def n_heads(self) -> int:
        """How many heads were scored."""
        return len(self.rows[["site", "layer", "head"]].drop_duplicates())

    def __getitem__(self, head: str | HeadId) -> HeadCard:
        address = HeadId.parse(head)
        rows = self.rows
        own = _only(
            rows,
            (rows["site"] == address.site)
            & (rows["layer"] == address.layer)
            & (rows["head"] == address.head),
        )
        if own.empty:
            last = _address(rows.iloc[-1])
            raise InputError(
                f"no head {address} in this atlas of {self.n_heads} heads; the last is {last}."
            )
        return HeadCard(address, own)

    def _check_kind(self, kind: str) -> None:
        if kind not in self.kinds:
            raise InputError(f"kind {kind!r} was not scored; scored: {', '.join(self.kinds)}.")

    def summary(self) -> str:
        """Counts by kind and grade, and the strongest heads of each kind; one screen."""
        lines = [f"{self.model.get('name', 'model')}: {self.n_heads} heads"]
        for kind in self.kinds:
            grades = self.rows.loc[self.rows["kind"] == kind, "grade"]
            counts = ", ".join(
                f"{n} {grade}" for grade in GRADES[:0:-1] if (n := int((grades == grade).sum()))
            )
            best = " ".join(str(head) for head in self.heads(kind)[:4])
            more = " …" if len(self.heads(kind)) > 4 else ""
            lines.append(f"{kind:16} {counts or 'none':33} {best}{more}".rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        body = self.table().to_html(
            index=False, float_format=lambda x: f"{x:.3f}", escape=True, border=0
        )
        return f"<pre>{html.escape(self.summary())}</pre>{body}"

    def save(self, path: str | Path) -> Path:
        """Write the atlas; the suffix picks the format: .json, .csv or .parquet.

        JSON and Parquet hold everything and can be loaded again; CSV holds the rows. The file is
        replaced only once it is complete.

        Raises:
            InputError: another suffix, or the folder cannot be written to.
        """
        return write_atlas(self.rows, self._meta(), self.null_check, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> HeadAtlas:
        """Read an atlas that `save` wrote as .json or .parquet.

        Raises:
            InputError: the file is missing, is not an atlas, or is of another schema.
        """
        rows, meta, null_check = read_atlas(Path(path))
        return cls(rows, **meta, null_check=null_check)

    def _meta(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in META}


@dataclass(frozen=True, eq=False)
class HeadCard:
    """One head: its labels, numbers and evidence, for people.

    Args:
        head: the head's address.
        rows: its rows of the atlas, one per kind.
    """

    head: HeadId
    rows: pd.DataFrame

    @property
    def labels(self) -> dict[str, str]:
        """Kinds with a grade other than *none*."""
        given = self.rows[self.rows["grade"] != "none"]
        return dict(zip(given["kind"], given["grade"], strict=True))

    def __getitem__(self, kind: str) -> dict[str, Any]:
        own = self.rows[self.rows["kind"] == kind]
        if own.empty:
            raise InputError(
                f"kind {kind!r} was not scored; scored: {', '.join(self.rows['kind'])}."
            )
        return own.iloc[0].to_dict()

    def __repr__(self) -> str:
        labels = ", ".join(f"{kind} ({grade})" for kind, grade in self.labels.items())
        lines = [f"{self.head}: {labels or 'no label'}"]
        for row in self.rows.to_dict("records"):
            details = row["details"]
            name = f"{row['kind']} {details['variant']}" if "variant" in details else row["kind"]
            legacy = {True: "yes", False: "no", None: "–"}[row["legacy"]]
            text = details.get("natural")
            natural = "" if text is None else f"; on text {text['score']:.3f}, {text['grade']}"
            lines.append(
                f"  {name:16} mass {row['score']:.3f}, chance {row['expected']:.3f}, excess "
                f"{row['excess']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}] on "
                f"{details['prompts']} (n {row['n']}){natural}: {row['grade']}; "
                f"legacy {legacy}; evidence {row['evidence']}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def _only(rows: pd.DataFrame, condition: Any) -> pd.DataFrame:
    return rows.loc[condition, :]


def _address(row: Any) -> HeadId:
    return HeadId(str(row["site"]), int(row["layer"]), int(row["head"]))
