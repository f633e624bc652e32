"""The result: one row per head × kind, with what it took to get there."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..interp.errors import InputError
from ..interp.heads import HeadId
from .atlas_file import META, read_atlas, with_natural, write_atlas
from .atlas_tables import check_table
from .card import HeadCard
from .grade import GRADES
from .tested import causal_lines, causal_settings

if TYPE_CHECKING:
    from ..interp.explorer.explorer import Explorer
    from ..interp.explorer.window import Window
    from ..interp.heads import Heads

_ADDRESS = ["site", "layer", "head"]


@dataclass(frozen=True, eq=False)
class HeadAtlas:
    """What every head of a model does, as far as the kinds asked for can tell.

    As a container it holds the scored heads: `len(atlas)`, `"L18H6" in atlas`, iteration over
    `HeadId`s in layer order, and `atlas["L18H6"]` for a head's card.

    Args:
        rows: one row per head × kind, with the columns of `atlas_file.COLUMNS`: `score` is the
            mean attention mass per scored row, `expected` the score by chance, [`low`, `high`] the
            simultaneous interval of `excess`.
        model: name, class, size, dtype and the measured drift of the hooked forward.
        versions: of this package, torch, transformers and Python.
        settings: everything needed to run it again, the seed included.
        null_check: what permuted labels were graded, if that was asked for.
        tables: what else is known of the model, by name: `causal` (effects of ablation), `ov`
            (scores of the weights), `composition`, …; cards print a head's rows of them.

    Example:
        >>> import headatlas as ha
        >>> atlas = ha.classify(*ha.load("tiny"), kinds="induction", prompts=16, seq_len=96)
        >>> atlas.heads("induction", grade="strong")[0] in atlas, len(atlas)
        (True, 32)
    """

    rows: pd.DataFrame
    model: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    null_check: pd.DataFrame | None = field(default=None, repr=False)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    def heads(self, kind: str, grade: str = "weak") -> list[HeadId]:
        """Heads of a kind with at least the given grade, largest excess first.

        Grades in rising order: *none*, *insufficient*, *ambiguous*, *weak*, *strong*. The order is
        by excess for all of them, the grade aside: `heads(kind, "insufficient")` mixes all but
        *none*, and an excess of too few instances may stand first. Heads of equal excess come in
        order of their address, those without one (no instance at all) last.

        Raises:
            InputError: the kind was not scored, or the grade does not exist.
        """
        self._check_kind(kind)
        allowed = _at_least(grade)
        found = _only(self.rows, (self.rows["kind"] == kind) & self.rows["grade"].isin(allowed))
        found = found.sort_values(_ADDRESS, kind="stable")
        found = found.sort_values("excess", ascending=False, kind="stable", na_position="last")
        return [_address(row) for _, row in found.iterrows()]

    def labels(
        self, *, exclude: str | Collection[str] = (), grade: str = "weak"
    ) -> dict[HeadId, dict[str, str]]:
        """What each head does: its kinds with their grades; heads without a label are left out.

        `atlas.labels(exclude="first_position")` has the heads that do something besides resting
        on the sink.

        Args:
            exclude: kinds that do not count.
            grade: the least grade that does.

        Raises:
            InputError: a kind was not scored, or the grade does not exist.
        """
        left_out = {exclude} if isinstance(exclude, str) else set(exclude)
        for kind in left_out:
            self._check_kind(kind)
        allowed, found = _at_least(grade), dict[HeadId, dict[str, str]]()
        for row in self.rows.to_dict("records"):
            if row["grade"] in allowed and row["kind"] not in left_out:
                found.setdefault(_address(row), {})[row["kind"]] = row["grade"]
        return dict(sorted(found.items()))

    def table(
        self, kind: str | None = None, grade: str = "weak", *, details: bool = False
    ) -> pd.DataFrame:
        """Labelled heads, by kind and falling excess.

        Args:
            kind: one kind only; None takes all.
            grade: the least grade; `"none"` gives every row.
            details: whether to keep the column of that name.

        Returns:
            A DataFrame with the head's address in front, and the numbers on natural text
            (`natural_score`, `natural_low`, `natural_high`) after those on the kind's first set.
        """
        if kind is not None:
            self._check_kind(kind)
        rows = _only(self.rows, self.rows["grade"].isin(_at_least(grade)))
        if kind is not None:
            rows = _only(rows, rows["kind"] == kind)
        order = {name: place for place, name in enumerate(self.kinds)}
        rows = rows.assign(_kind=[order[kind] for kind in rows["kind"]]).sort_values(
            ["_kind", "excess"], ascending=[True, False], kind="stable"
        )
        dropped = ["site", "layer", "head", "_kind", *([] if details else ["details"])]
        table = with_natural(rows).drop(columns=dropped)
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

    def __len__(self) -> int:
        return self.n_heads

    def __iter__(self) -> Iterator[HeadId]:
        places = self.rows[_ADDRESS].drop_duplicates()
        return iter(sorted(_address(row) for _, row in places.iterrows()))

    def __contains__(self, head: object) -> bool:
        try:
            return HeadId.parse(head) in list(self)  # type: ignore[arg-type]
        except InputError:
            return False

    def __getitem__(self, head: str | HeadId) -> HeadCard:
        address = HeadId.parse(head)
        own = _of(self.rows, address)
        if own.empty:
            raise InputError(
                f"no head {address} in this atlas of {len(self)} heads; the last is {[*self][-1]}."
            )
        return HeadCard(address, own, self._about(address))

    def with_table(self, name: str, rows: Any) -> HeadAtlas:
        """A copy that carries a further table, in place of one of that name.

        Args:
            name: an identifier, such as `ov`.
            rows: a DataFrame of plain cells, or a value with such `rows`. Where a head is named,
                in the columns site, layer and head, the head's card shows the row.

        Raises:
            InputError: the name or a cell cannot be kept in a file.

        Example:
            >>> import headatlas as ha
            >>> atlas = ha.classify(*ha.load("tiny"), kinds="offset", prompts=16, seq_len=64)
            >>> atlas.with_table("mine", [{"site": "", "layer": 0, "head": 1, "x": 2.0}])["L0H1"]
            L0H1: ...
              mine: x 2.000
        """
        table = check_table(name, getattr(rows, "rows", rows))
        return replace(self, tables={**self.tables, name: table})

    def with_evidence(self, effects: Any) -> HeadAtlas:
        """A copy whose labels say whether ablating the head does what they predict.

        Effects on kinds that were tested before take the place of the old ones; others stay.
        Kinds that could not be tested are named, with the reasons, by `summary` and in
        `settings["causal"]["untested"]`.

        Args:
            effects: what `causal_effects` gives, or its `rows`: they name site, layer, head, kind
                and evidence.

        Raises:
            InputError: the rows lack one of these, or are of heads that do not have the label here.
        """
        given = check_table("causal", getattr(effects, "rows", effects))
        keys = [*_ADDRESS, "kind"]
        missing = [column for column in (*keys, "evidence") if column not in given]
        if missing:
            raise InputError(
                f"effects have no column {missing[0]}; pass what causal_effects gives."
            )
        found = {tuple(row[:-1]): row[-1] for row in given[[*keys, "evidence"]].to_numpy(object)}
        own = [tuple(row) for row in self.rows[keys].to_numpy(object)]
        labelled = self.rows["grade"].isin(GRADES[-2:])
        unknown = found.keys() - {key for key, has in zip(own, labelled, strict=True) if has}
        if unknown:
            site, layer, head, kind = min(unknown)
            raise InputError(
                f"the effects are of {HeadId(site, layer, head)} as {kind}, a label that this "
                "atlas does not give it; they belong to another atlas."
            )
        evidence = [
            found.get(key, old) for key, old in zip(own, self.rows["evidence"], strict=True)
        ]
        before = self.tables.get("causal")
        if before is not None and "kind" in before:
            kept = _only(before, ~before["kind"].isin(given["kind"].tolist()))
            given = pd.concat([kept, given], ignore_index=True) if len(kept) else given
        settings = {**self.settings}
        if hasattr(effects, "settings"):
            settings["causal"] = causal_settings(settings, effects, given["kind"].tolist())
        rows = self.rows.assign(evidence=evidence)
        return replace(self.with_table("causal", given), rows=rows, settings=settings)

    def _about(self, head: HeadId) -> dict[str, pd.DataFrame]:
        """The rows of the further tables that are about one head."""
        about = {name: _of(own, head) for name, own in self.tables.items() if "layer" in own}
        return {name: own for name, own in about.items() if len(own)}

    def _check_kind(self, kind: str) -> None:
        if kind not in self.kinds:
            raise InputError(f"kind {kind!r} was not scored; scored: {', '.join(self.kinds)}.")

    def summary(self) -> str:
        """Counts by kind and grade, and the strongest heads of each kind; one screen."""
        lines = [f"{self.model.get('name', 'model')}: {self.n_heads} heads"]
        too_few, judged = [], dict[str, str]()
        for kind in self.kinds:
            grades = self.rows.loc[self.rows["kind"] == kind, "grade"]
            if (grades == "insufficient").all():
                n = self.rows.loc[self.rows["kind"] == kind, "n"].max()
                too_few.append(f"{kind} {n}")
                continue
            counts = ", ".join(
                f"{n} {grade}" for grade in GRADES[:0:-1] if (n := int((grades == grade).sum()))
            )
            judged[kind] = counts or "none"
        width, longest = (max(map(len, own), default=0) for own in (judged, judged.values()))
        for kind, counts in judged.items():
            best = " ".join(str(head) for head in self.heads(kind)[:4])
            more = " …" if len(self.heads(kind)) > 4 else ""
            lines.append(f"{kind:{width}} {counts:{longest}} {best}{more}".rstrip())
        if too_few:
            more = f" and {len(too_few) - 4} more" if len(too_few) > 4 else ""
            lines.append(f"too few instances to judge: {', '.join(too_few[:4])}{more}")
        lines += causal_lines(self.rows, self.tables.get("causal"), self.settings)
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        body = self.table().to_html(
            index=False, float_format=lambda x: f"{x:.3f}", escape=True, border=0
        )
        return f"<pre>{html.escape(self.summary())}</pre>{body}"

    def explore(
        self,
        model: Any = None,
        tokenizer: Any = None,
        text_or_ids: Any = None,
        *,
        heads: Heads | None = None,
        windows: str | Window | Sequence[str | Window] = (),
        prepend_bos: bool | None = None,
        title: str | None = None,
        max_mib: int = 25,
        progress: Any = None,
    ) -> Explorer:
        """One offline page to look at the heads on: their map, their cards, and their patterns.

        Args:
            model: the one that this is an atlas of; None: no patterns.
            tokenizer: as in `headatlas.explore`, like all that follows.
            text_or_ids: a text to show patterns on.
            heads: whose patterns to keep.
            windows: parts of a long text to keep whole.
            prepend_bos: whether the text starts with a BOS token.
            title: of the page.
            max_mib: the largest page.
            progress: called with ("reading", layers done, layers).

        Raises:
            InputError: what `headatlas.explore` refuses.
        """
        from .explore import explore

        return explore(
            model, tokenizer, text_or_ids, atlas=self, heads=heads, windows=windows,
            prepend_bos=prepend_bos, title=title, max_mib=max_mib, progress=progress,
        )  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write the atlas; the suffix picks the format: .json, .csv or .parquet.

        JSON and Parquet hold everything and can be loaded again; CSV holds the rows. CSV and
        Parquet have the numbers on natural text in columns of their own, as `table` has. The file
        is replaced only once it is complete.

        Raises:
            InputError: another suffix, the folder cannot be written to, or `model` or `settings`
                lack what a reader needs.
        """
        return write_atlas(
            self.rows, self._meta(), Path(path), null_check=self.null_check, tables=self.tables
        )

    @classmethod
    def load(cls, path: str | Path) -> HeadAtlas:
        """Read an atlas that `save` wrote as .json or .parquet.

        Raises:
            InputError: the file is missing, is not an atlas, or is of another schema.
        """
        return cls(**read_atlas(Path(path)))

    def _meta(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in META}


def _at_least(grade: str) -> tuple[str, ...]:
    if grade not in GRADES:
        raise InputError(f"grades are {', '.join(GRADES)}; got {grade!r}.")
    return GRADES[GRADES.index(grade) :]


def _only(rows: pd.DataFrame, condition: Any) -> pd.DataFrame:
    return rows.loc[condition, :]


def _of(rows: pd.DataFrame, head: HeadId) -> pd.DataFrame:
    """The rows of one head."""
    place = (rows["site"] == head.site) & (rows["layer"] == head.layer)
    return _only(rows, place & (rows["head"] == head.head))


def _address(row: Any) -> HeadId:
    return HeadId(str(row["site"]), int(row["layer"]), int(row["head"]))
